"""Uploads arrive in any order; the next state is the same, bit for bit."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from _exported import DEVICES, EVERY, exported
from _federation import Federation, assert_same_bits

from coordinator.reduction import Reduction, Upload
from coordinator.updater import next_state
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
    reduction = Reduction(slots, cohort, federation.algorithm.weighting)
    for device in arrivals:
        reduction.offer(device, upload(slots, device))
    got = reduction.close(sorted(arrivals))
    state: Trees = next_state(federation.algorithm, federation.state, got)
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
    expected = after(name, sorted(COUNTS), sorted(COUNTS))
    for arrivals in itertools.permutations(COUNTS):
        assert_same_bits(after(name, arrivals, cohort), expected)


@pytest.mark.parametrize("name", EVERY)
def test_means_are_weighted_as_the_algorithm_says_and_sums_are_not(name: str) -> None:
    federation = Federation(exported(name))
    slots, uniform = federation.plan.by_role(Role.UP), federation.algorithm.weighting is Weighting.UNIFORM
    reduction = Reduction(slots, DEVICES, federation.algorithm.weighting)
    weights = {device: 1.0 if uniform else examples.count for device, examples in DEVICES.items()}
    uploads = {device: federation.train(device).upload for device in DEVICES}
    for device, trees in uploads.items():
        reduction.offer(device, Upload(DEVICES[device].count, 5, lambda trees=trees: trees))  # type: ignore[misc]  # the default binds it now
    got = reduction.close(sorted(DEVICES))
    assert got.total.keys() | got.stack.keys() == slots.keys()
    for slot, tree in got.total.items():
        mean = slots[slot].reduce is Reduce.MEAN
        for tensor, found in tree.items():
            terms = [
                (weights[device] if mean else 1.0) * np.float64(uploads[device][slot][tensor]) for device in DEVICES
            ]
            expected = sum(terms) / (sum(weights.values()) if mean else 1.0)
            np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6, atol=1e-9)


def test_the_uploads_would_show_another_order() -> None:
    large, small = 1e17, 1.5
    assert (large - large) + small != (large + small) - large
