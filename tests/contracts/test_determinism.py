"""The same run again: disturbed, with the same seed, with another, and with steps too small to see."""

from __future__ import annotations

import numpy as np
import pytest
from _exported import DEVICES, EVERY, exported, rates
from _federation import Federation, assert_equal, assert_same_bits, differ

from edgepfl.plan import MODEL, Role
from edgepfl.tree import Tree
from simulators.federation import Values, named

TINY = 1e-30
"""A learning rate that moves no float32 near 1, and by which one can still divide."""


@pytest.mark.parametrize("name", EVERY)
def test_the_same_seed_gives_the_same_bits_and_another_gives_others(name: str) -> None:
    once, again, other = (Federation(exported(name), seed=seed).run() for seed in (7, 7, 8))
    assert_same_bits(again.everything(), once.everything())
    moved = moved_models(once)
    assert moved
    assert moved <= differ(once.trajectory(), other.trajectory())


def moved_models(federation: Federation) -> set[str]:
    """Which parameters the third round left other than the first."""
    values = federation.trajectory()
    third = {each for each in values if each.startswith("round 3,") and each.rpartition("/")[2] in federation.model}
    before = {each: each.replace("round 3,", "round 1,") for each in third}
    return {each for each in third if before[each] in values and not np.array_equal(values[each], values[before[each]])}


@pytest.mark.parametrize("name", EVERY)
def test_training_in_between_leaves_no_trace(name: str) -> None:
    """Evaluation, and a training whose result is thrown away, as after a crash or a cancelled attempt."""
    disturbed, quiet = Federation(exported(name)), Federation(exported(name)).run()
    disturbed.round(["pi-1", "pi-2", "pi-3"])
    disturbed.judgement()
    for device in DEVICES:
        disturbed.train(device)
    disturbed.run([["pi-1", "pi-3"], ["pi-2", "pi-3"]])
    assert_same_bits(disturbed.everything(), quiet.everything())
    assert len(disturbed.history) == 3


@pytest.mark.parametrize("name", EVERY)
def test_without_a_step_that_counts_no_model_leaves_its_first_value(name: str) -> None:
    """Whatever else a method does to models, pulls and duals and means of them, all are equal before the first step."""
    subject = exported(name)
    assert rates(subject)
    still = Federation(subject, subject.settings(**dict.fromkeys(rates(subject), TINY)))
    moved = Federation(subject)
    first = beginnings(still)
    for federation in (still, moved):
        federation.round(sorted(DEVICES))
    assert_equal(now(still, first), first)
    assert differ(now(moved, first), first)


def beginnings(federation: Federation) -> Values:
    """Before the first round: the server's models, and what devices keep of models, corrections and weights of such."""
    given = {MODEL} | federation.plan.by_role(Role.DOWN).keys() | federation.plan.hyper.keys()
    values = named("server's", {slot: parameters(federation, tree) for slot, tree in federation.state.items()})
    for device in DEVICES:
        memory = federation.interpreter.open(federation.start(device), federation.devices[device])
        for slot, each in federation.plan.by_role(Role.KEEP).items():
            tree = Tree({tensor: memory["slot", slot, tensor] for tensor in each.tensors})
            values |= named(f"{device}'s", {slot: tree if each.first in given else parameters(federation, tree)})
    return values


def parameters(federation: Federation, tree: Tree) -> Tree:
    """The tensors that are named as the model's."""
    return tree.like(tree.keys() & federation.model.keys())


def now(federation: Federation, first: Values) -> Values:
    """The present values of what there was at first."""
    values = named("server's", federation.state)
    for device, trees in federation.kept.items():
        values |= named(f"{device}'s", trees)
    return {each: values[each] for each in first}
