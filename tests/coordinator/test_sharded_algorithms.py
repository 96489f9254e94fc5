"""Every algorithm's server, its columns divided among ranks: the same as whole."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence

import _plans
import pytest
import torch
from _crews import in_ranks, whole_of
from _plans import MODEL, model, plan_of, uploads_of

from coordinator import updater
from coordinator.aggregator.crew import Crew
from coordinator.aggregator.shards import cut, cut_slots, placed, places
from coordinator.fusion import ENGINES, with_engine
from edgepfl import algorithms
from edgepfl.algorithms import Algorithm, Cohort
from edgepfl.algorithms.fpfc import FPFC
from edgepfl.plan import Plan, Reduce, Role, TensorSpec, Weighting
from edgepfl.tree import Tree, Trees

ROUNDS = (("ant", "bee"), ("bee", "cat"), ("ant", "bee", "cat"))
"""Their cohorts; cat is new in the second."""
STEPS = 3

OPTIONS: dict[str, dict[str, float | str]] = {
    "fpfc": {"finalize": "cluster_mean", "lam": 0.5, "nu": 0.2},
    "feddc": {"grad_correction": "scaffold"},
    "feddr": {"gamma": 0.1},
}


def exact(trees: Trees) -> Trees:
    return {
        slot: tree.map(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)
        for slot, tree in trees.items()
    }


def cut_trees(trees: Trees, slots: frozenset[str], crew: Crew) -> Trees:
    """A rank's columns of a device's or of the server's slots."""
    return {
        slot: tree.map(lambda tensor: cut(tensor, crew.rank, crew.ranks)) if slot in slots else tree
        for slot, tree in trees.items()
    }


def reduced(algorithm: Algorithm, plan: Plan, number: int, got: dict[str, Trees]) -> Cohort:
    """What a round brings in, in float64."""
    rows = {device: {**up, **algorithm.rebuild(up, STEPS)} for device, up in got.items()}
    examples = {device: 5 + place for place, device in enumerate(got)}
    uniform = algorithm.weighting is Weighting.UNIFORM
    weights = {device: 1.0 if uniform else float(examples[device]) for device in got}
    total, stack = {}, {}
    reduces = {name: slot.reduce for name, slot in plan.by_role(Role.UP).items()} | dict(algorithm.rebuilt)
    for name, reduce in reduces.items():
        trees = [rows[device][name] for device in got]
        if reduce is Reduce.STACK:
            stack[name] = Tree({tensor: torch.stack([tree[tensor] for tree in trees]) for tensor in trees[0]})
        elif reduce is Reduce.SUM:
            total[name] = sum(trees[1:], trees[0])
        else:
            shares = [tree * (weights[device] / sum(weights.values())) for device, tree in zip(got, trees, strict=True)]
            total[name] = sum(shares[1:], shares[0])
    return Cohort(
        tuple(got), tuple(examples.values()), (STEPS,) * len(got), total, stack, number, fleet=("ant", "bee", *got)
    )


def rounds(
    algorithm: Algorithm, plan: Plan, state: Trees, cohorts: Sequence[tuple[str, ...]], crew: Crew | None
) -> tuple[Trees, Sequence[Trees]]:
    """The state after three rounds, and what ant is sent after each."""
    sent = []
    for number, cohort in enumerate(cohorts, 1):
        uploads = {d: exact(updater.torch_of(uploads_of(plan, d, number))) for d in cohort}
        if crew is not None:
            uploads = {d: cut_trees(up, cut_slots(algorithm), crew) for d, up in uploads.items()}
        got = reduced(algorithm, plan, number, uploads)
        got = dataclasses.replace(got, fleet=tuple(sorted(set(got.fleet))))
        state = algorithm.update(state, got if crew is None else dataclasses.replace(got, across=crew.across))
        if number == len(cohorts):
            state = algorithm.conclude(state)
        sent.append(dict(algorithm.send(state, "ant")))
    return state, sent


def check(parts: Sequence[Trees], whole: Trees) -> None:
    personal = {name: spec for name, spec in MODEL.items() if name.startswith("head")}
    shared = {name: spec for name, spec in MODEL.items() if name not in personal}
    found = whole_of(parts, whole, MODEL, personal, shared)
    for slot, tree in whole.items():
        for name, tensor in tree.items():
            torch.testing.assert_close(found[slot][name], tensor, rtol=1e-12, atol=1e-12, msg=f"{slot}/{name}")


def compared(
    plan: Plan,
    algorithm: Algorithm,
    ranks: int,
    seen: Callable[[Trees], Trees] = lambda state: state,
    cohorts: Sequence[tuple[str, ...]] = ROUNDS,
) -> None:
    """Three rounds of ranks in threads, and of one server: what is seen of their states, and what they send."""
    first = exact(updater.first_state(algorithm, plan, model()))
    expected, sent = rounds(algorithm, plan, first, cohorts, None)

    def sharded(crew: Crew) -> tuple[Trees, Sequence[Trees]]:
        found = places(algorithm, plan)
        state = {
            slot: Tree({t: placed(found, (slot, t), [x], crew.rank, crew.ranks).clone() for t, x in tree.items()})
            for slot, tree in first.items()
        }
        return crew.together(lambda: rounds(algorithm, plan, state, cohorts, crew))

    results = in_ranks(ranks, sharded)
    check([seen(state) for state, _ in results], seen(expected))
    for number, whole in enumerate(sent):
        check([each[number] for _, each in results], whole)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("name", algorithms.names())
def test_the_same_as_whole(name: str, ranks: int) -> None:
    plan = plan_of(name, **OPTIONS.get(name, {}))
    compared(plan, updater.algorithm_of(plan, {}, "naive"), ranks)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("rule", ["either", "both"])
@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_of_fpfc(engine: str, rule: str, ranks: int) -> None:
    compared_engines(engine, rule, ranks)


@pytest.mark.parametrize("engine", ENGINES)
def test_ranks_without_any_column(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    specs = {"only": TensorSpec((1,))}
    for module in (_plans, sys.modules[__name__]):
        monkeypatch.setattr(module, "MODEL", specs)
    compared_engines(engine, "either", 3)


def compared_engines(engine: str, rule: str, ranks: int) -> None:
    plan = plan_of("fpfc", **OPTIONS["fpfc"], pair_rule=rule)
    algorithm = with_engine(updater.algorithm_of(plan, {}), engine)

    def seen(state: Trees) -> Trees:
        """Engines arrange what they keep by the number of columns."""
        assert isinstance(algorithm, FPFC)
        far = algorithm.distances(state)
        norms = {"omega": torch.from_numpy(far.omega), "theta": torch.from_numpy(far.theta)}
        return {"models": algorithm.models(state), "mean": state["mean"], "norms": Tree(norms)}

    everybody = (ROUNDS[-1],) * 3
    compared(plan, algorithm, ranks, seen, everybody if engine == "potential" else ROUNDS)
