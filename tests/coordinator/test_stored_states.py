"""Every algorithm's state, stored tensor by tensor, comes back as it is in memory: nothing changes unnoticed."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
from _plans import model, plan_of, uploads_of

from coordinator import pieces, updater
from coordinator.checkpoint import Saved, Vault
from coordinator.fusion import ENGINES
from coordinator.reduction import Upload
from edgepfl import algorithms
from edgepfl.algorithms import Algorithm
from edgepfl.plan import Plan
from edgepfl.tree import Trees

ALL = ("ant", "bee", "cat")
COHORTS = (("ant", "bee"), ("bee", "cat"), ALL, ("cat",), ("ant", "dog"))
FPFC: dict[str, float | str] = {"finalize": "cluster_mean", "lam": 0.5, "nu": 0.2}


@pytest.fixture(autouse=True)
def each_tensor_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every tensor were big, so that only those which are new objects are written."""
    monkeypatch.setattr(pieces, "APART", 1)


def trained(algorithm: Algorithm, plan: Plan, saved: Saved, number: int, cohort: tuple[str, ...]) -> Trees:
    """The state after one more round."""
    own = updater.of_round(algorithm, plan, number=number, seed=1)
    folding = updater.reduction(own, plan, cohort)
    for device in cohort:
        folding.offer(device, Upload(5, 3, functools.partial(uploads_of, plan, device, number)))
    got = folding.close(cohort, number=number, fleet=ALL)
    return updater.next_state(own, saved.state, got, last=number == len(COHORTS))


def check(algorithm: Algorithm, plan: Plan, folder: Path, cohorts: tuple[tuple[str, ...], ...]) -> None:
    """After each round what is stored is what is in memory, and nothing else is needed."""
    vault = Vault.at(folder)
    saved = vault.save(algorithm, 0, updater.first_state(algorithm, plan, model()))
    for number, cohort in enumerate(cohorts, 1):
        saved = vault.save(algorithm, number, trained(algorithm, plan, saved, number, cohort), saved)
        vault.keep_only(saved.checkpoint.blobs, set())
        back = vault.load(algorithm, saved.checkpoint)
        assert back.download == saved.download
        assert {slot: set(tree) for slot, tree in back.state.items()} == {s: set(t) for s, t in saved.state.items()}
        for slot, tree in saved.state.items():
            for name, tensor in tree.items():
                assert torch.equal(tensor, back.state[slot][name]), f"{slot}/{name} after round {number}"


@pytest.mark.parametrize("name", algorithms.names())
def test_of_every_algorithm(name: str, tmp_path: Path) -> None:
    plan = plan_of(name)
    check(updater.algorithm_of(plan, {}), plan, tmp_path, COHORTS)


@pytest.mark.parametrize("rule", ["either", "both"])
@pytest.mark.parametrize("engine", ENGINES)
def test_of_every_engine_of_fpfc(engine: str, rule: str, tmp_path: Path) -> None:
    plan = plan_of("fpfc", **FPFC, pair_rule=rule)
    everybody = (ALL,) * 3
    cohorts = everybody if engine == "potential" else COHORTS
    check(updater.algorithm_of(plan, {}, engine), plan, tmp_path, cohorts)


def test_an_engine_that_changes_its_form_leaves_nothing_behind(tmp_path: Path) -> None:
    plan = plan_of("fpfc", lam=0.5)
    hybrid, lean = (updater.algorithm_of(plan, {}, engine) for engine in ("hybrid", "lean"))
    slots = []
    for algorithm in (hybrid, lean):
        saved = Vault.at(tmp_path).save(algorithm, 0, updater.first_state(algorithm, plan, model()))
        for number, cohort in enumerate(COHORTS[:3], 1):
            state = trained(algorithm, plan, saved, number, cohort)
            saved = Vault.at(tmp_path).save(algorithm, number, state, saved)
        slots.append(set(saved.state))
    assert slots[0] == slots[1]  # it has gone over to vectors of pairs
