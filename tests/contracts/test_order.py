"""Uploads arrive in any order; the next state is the same, bit for bit."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import torch
from _exported import DEVICES, EVERY, exported
from _federation import Federation, assert_same_bits

from coordinator import updater
from coordinator.reduction import Upload
from device_agent.interpreter import RoundResult
from edgepfl.algorithms import Algorithm
from edgepfl.plan import Reduce, Role, SlotPlan, Weighting
from edgepfl.seeds import generator
from edgepfl.tree import Tree, Trees
from simulators.federation import Values, named

COUNTS = {"pi-1": 10, "pi-2": 10, "pi-3": 7, "pi-4": 13}
SCALES = {"pi-1": 1e17, "pi-2": -1e17, "pi-3": 1.0, "pi-4": 1.0}  # the large two cancel, and swallow what they meet


def upload(slots: Mapping[str, SlotPlan], device: str) -> Upload:
    """Numbers whose sum depends on the order in which they are added, in double precision too."""
    shift = generator(2, "upload", device if abs(SCALES[device]) == 1 else "large")
    trees = {
        slot: Tree(
            {
                name: (SCALES[device] * (1 + shift.random(spec.shape))).astype(spec.dtype)
                for name, spec in sorted(each.tensors.items())
            }
        )
        for slot, each in slots.items()
    }
    return Upload(COUNTS[device], 5, lambda: trees)


def after(name: str, arrivals: Sequence[str], cohort: Sequence[str]) -> Values:
    federation = Federation(exported(name))
    slots = federation.plan.by_role(Role.UP)
    reduction = updater.reduction(federation.tuned, federation.plan, cohort)
    for device in arrivals:
        reduction.offer(device, upload(slots, device))
    got = reduction.close(sorted(arrivals), number=1, fleet={*cohort, "pi-9"}, statistics=federation.plan.statistics)
    state: Trees = updater.numpy_of(updater.next_state(federation.tuned, federation.server, got))
    reduced = {slot: tree.map(lambda tensor: tensor.numpy()) for slot, tree in {**got.total, **got.stack}.items()}
    return named("next", state) | named("reduced", reduced)


@pytest.mark.parametrize("name", EVERY)
def test_every_order_of_four_uploads_gives_the_same_bits(name: str) -> None:
    expected = after(name, sorted(COUNTS), sorted(COUNTS))
    for arrivals in itertools.permutations(COUNTS):
        assert_same_bits(after(name, arrivals, sorted(COUNTS)), expected)
    assert all(np.isfinite(array).all() for array in expected.values())


@pytest.mark.parametrize("name", EVERY)
def test_so_it_does_when_one_of_the_cohort_never_reports(name: str) -> None:
    cohort = [*COUNTS, "pi-0", "pi-22"]
    expected = after(name, sorted(COUNTS), cohort)
    for arrivals in itertools.permutations(COUNTS):
        assert_same_bits(after(name, arrivals, cohort), expected)
    assert expected.keys() >= after(name, sorted(COUNTS), sorted(COUNTS)).keys()


@pytest.mark.parametrize("name", EVERY)
def test_means_are_weighted_as_the_algorithm_says_and_sums_are_not(name: str) -> None:
    federation = Federation(exported(name))
    algorithm, slots = federation.tuned, federation.plan.by_role(Role.UP)
    reduction = updater.reduction(algorithm, federation.plan, DEVICES)
    results = {device: federation.train(device) for device in DEVICES}
    for device, result in results.items():
        reduction.offer(device, Upload(DEVICES[device].count, result.steps, lambda trees=result.upload: trees))  # type: ignore[misc]  # the default binds it now
    got = reduction.close(sorted(DEVICES))
    uploads = {device: with_rebuilt(algorithm, result) for device, result in results.items()}
    reduce = {slot: each.reduce for slot, each in slots.items()} | dict(algorithm.rebuilt)
    assert got.total.keys() | got.stack.keys() == reduce.keys()
    for slot, tree in got.total.items():
        weighted = reduce[slot] is Reduce.MEAN and algorithm.weighting is Weighting.EXAMPLES
        weights = {device: examples.count if weighted else 1 for device, examples in DEVICES.items()}
        whole = sum(weights.values()) if reduce[slot] is Reduce.MEAN else 1
        for tensor, found in tree.items():
            expected = sum(weights[device] * uploads[device][slot][tensor] for device in DEVICES) / whole
            np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6, atol=1e-9)


def with_rebuilt(algorithm: Algorithm, result: RoundResult) -> Trees:
    """A device's upload and what the server computes of it, in double precision."""
    sent = {slot: tree.map(lambda array: torch.from_numpy(array).double()) for slot, tree in result.upload.items()}
    both = {**sent, **algorithm.rebuild(sent, result.steps)}
    return {slot: tree.map(lambda tensor: tensor.numpy()) for slot, tree in both.items()}


def test_the_uploads_would_show_another_order() -> None:
    large, small = 1e17, 1.5
    assert (large - large) + small != (large + small) - large
