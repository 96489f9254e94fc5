"""FPFC with each engine, from cohorts to downloads, against FPFC with the plain one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from _fusing import copied

from coordinator.fusion import ENGINES, with_engine
from edgepfl.algorithms import Cohort
from edgepfl.algorithms.fpfc import FPFC, Finalize, PairRule
from edgepfl.tree import Tree, Trees

pytestmark = pytest.mark.usefixtures("small_slabs")

NAMES = ("owl", "ant", "fox", "bee", "elk", "cat")  # they join in another order than that of their names
FIRST = Tree({"body": torch.linspace(-1, 1, 4, dtype=torch.float64), "head": torch.ones(2, 3, dtype=torch.float64)})


def cohorts(*, everyone: bool) -> list[Cohort]:
    """Rounds in which the fleet grows, of uploads near the centres of two clusters."""
    rng, found = np.random.default_rng(5), []
    for number in range(1, 13):
        fleet = sorted(NAMES[: 6 if everyone else min(2 + number // 2, 6)])
        devices = fleet if everyone else sorted(rng.choice(fleet, 2, replace=False).tolist())
        rows = np.stack([(NAMES.index(name) % 2) + 0.1 * rng.normal(size=10) for name in devices])
        stack = Tree({"body": torch.tensor(rows[:, :4]), "head": torch.tensor(rows[:, 4:].reshape(-1, 2, 3))})
        examples = tuple(range(5, 5 + len(devices)))
        steps = (1,) * len(devices)
        total = {"delta": Tree({})}
        got = Cohort(tuple(devices), examples, steps, total, {"fused": stack}, number, tuple(fleet), ("body",))
        found.append(got)
    return found


def near(one: Tree, other: Tree) -> None:
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("rule", list(PairRule))
def test_the_downloads_are_those_of_the_plain_engine(name: str, rule: PairRule) -> None:
    plain = FPFC(lam=0.3, xi=0.05, pair_rule=rule, lam_first=0.1, lam_rounds=4, finalize=Finalize.CLUSTER_MEAN, nu=0.5)
    algorithm = with_engine(plain, name)
    state, expected = algorithm.init(FIRST), plain.init(FIRST)
    for got in cohorts(everyone=name == "potential"):
        rho = 1.0 + 0.05 * got.number  # what decay does to a runtime hyperparameter
        assert isinstance(algorithm, FPFC)
        plain, algorithm = replace(plain, rho=rho), replace(algorithm, rho=rho)
        state, expected = algorithm.update(copied(state), got), plain.update(expected, got)
        assert state["places"].keys() == set(got.fleet)
        models, uploaded = algorithm.models(state), got.stack["fused"]["body"]
        assert all(torch.equal(models[device][:4], row) for device, row in zip(got.devices, uploaded, strict=True))
        asked = (*NAMES, "unknown")
        one, other = algorithm.send_each(state, asked), plain.send_each(expected, asked)
        assert list(one) == list(asked)
        for device in asked:
            near(one[device]["zeta"], other[device]["zeta"])
    assert isinstance(algorithm, FPFC)
    near(algorithm.models(state), plain.models(expected))
    ended, wanted = algorithm.conclude(state), plain.conclude(expected)
    apart = rule is PairRule.EITHER or name == "potential"  # of two ends that seldom meet, theta is still 0
    assert len({tuple(row.tolist()) for row in wanted["mean"].values()}) == 1 + apart
    near(ended["mean"], wanted["mean"])


@pytest.mark.parametrize("name", ENGINES)
def test_sums_over_columns_go_through_the_cohorts_across(name: str) -> None:
    calls: list[int] = []

    def across(partial: torch.Tensor) -> torch.Tensor:
        calls.append(partial.numel())
        return partial

    algorithm = with_engine(FPFC(), name)
    state: Trees = algorithm.init(FIRST)
    for got in cohorts(everyone=True)[:4]:
        calls.clear()
        state = algorithm.update(state, replace(got, across=across))
        assert 1 <= len(calls) <= 2


def test_every_tensor_of_a_state_can_be_stored() -> None:
    for name in ENGINES:
        algorithm = with_engine(FPFC(), name)
        state: Trees = algorithm.init(FIRST)
        for got in cohorts(everyone=True)[:4]:
            state = algorithm.update(state, got)
        kinds = {tensor.dtype for tree in state.values() for tensor in tree.values()}
        assert kinds <= {torch.float64, torch.int64, torch.bool}
        assert all(torch.isfinite(tensor).all() for tree in state.values() for tensor in tree.values())
