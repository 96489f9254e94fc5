"""The same run again: through storage, disturbed, with the same seed, with another, and without a learning rate."""

from __future__ import annotations

import numpy as np
import pytest
from _exported import DEVICES, EVERY, exported, rates
from _federation import Federation, assert_equal, assert_same_bits, differ

from coordinator import updater
from coordinator.journal import specs_of
from edgepfl import codec
from edgepfl.plan import MODEL, Role
from edgepfl.tree import Trees
from simulators.federation import Values, named


def through_bytes(trees: Trees) -> Trees:
    """As a checkpoint or a device's store gives them back."""
    return codec.decode(codec.encode(trees), specs_of(trees), where="checkpoint")


@pytest.mark.parametrize("name", EVERY)
def test_state_and_keep_survive_storage_to_the_bit(name: str) -> None:
    in_memory, stored = Federation(exported(name)).run(), Federation(exported(name), carry=through_bytes).run()
    assert_same_bits(stored.trajectory(), in_memory.trajectory())
    assert_same_bits(stored.judgement(), in_memory.judgement())
    assert len(stored.history) == 3


@pytest.mark.parametrize("name", EVERY)
def test_the_same_seed_gives_the_same_bits_and_another_gives_others(name: str) -> None:
    once, again, other = (Federation(exported(name), seed=seed).run() for seed in (7, 7, 8))
    assert_same_bits(again.everything(), once.everything())
    moved = {label for label in once.trajectory() if any(array in label for array in ("weight", "bias"))}
    assert moved
    assert moved <= differ(once.trajectory(), other.trajectory())


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


def models(federation: Federation) -> tuple[set[str], set[str]]:
    """The names of the state's and of the KEEP slots that are models, or weights of such; others are corrections."""
    first = updater.first_state(federation.algorithm, federation.plan, federation.model)
    state = {
        slot
        for slot, tree in first.items()
        if tree.keys() <= federation.model.keys()
        and all(np.array_equal(array, federation.model[tensor]) for tensor, array in tree.items())
    }
    known = state | {MODEL} | federation.plan.hyper.keys()
    return state, {slot for slot, each in federation.plan.by_role(Role.KEEP).items() if each.first in known}


@pytest.mark.parametrize("name", EVERY)
def test_without_a_learning_rate_no_model_moves(name: str) -> None:
    subject = exported(name)
    federation = Federation(subject).run()
    (shared, own), state, kept = models(federation), federation.state, dict(federation.kept)
    federation.hyper |= dict.fromkeys(rates(subject), 0.0)
    federation.round(sorted(DEVICES))
    assert shared
    assert rates(subject)
    assert_equal(chosen(federation.state, shared), chosen(state, shared))
    for device, trees in kept.items():
        assert_equal(chosen(federation.kept[device], own), chosen(trees, own))


def chosen(trees: Trees, slots: set[str]) -> Values:
    return named("now", {slot: trees[slot] for slot in slots})
