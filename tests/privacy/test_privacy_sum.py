"""The sum of a round: what one device can change of it, and what is left where there is no noise."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from _plans import model, plan_of, uploads_of
from hypothesis import given, settings
from hypothesis import strategies as st
from test_privacy_clipping import ALLOWED

from coordinator import updater
from coordinator.privacy.release import CLIP, Adaptive, Bounded, Release, blurred, clip_of, key_for, public, released
from coordinator.reduction import Upload
from edgepfl.algorithms import Cohort
from edgepfl.plan import Role, Weighting
from edgepfl.privacy import clipped, norm_of
from edgepfl.tree import Tree, Trees

PLAN = plan_of("fedavg")
KEY = bytes(range(32))
COHORT = ("ant", "bee", "cat", "dog")
WILD = 1e4


def upload_of(device: str, times: float = 1.0) -> Trees:
    return {slot: tree.map(lambda x: np.float32(times * x)) for slot, tree in uploads_of(PLAN, device, 1).items()}


def folded(contributions: dict[str, Trees], release: Release, name: str = "fedavg") -> tuple[Cohort, Bounded]:
    plan = plan_of(name)
    reduction = Bounded(plan.by_role(Role.UP), contributions, release)
    for place, (device, trees) in enumerate(contributions.items(), 1):
        reduction.offer(device, Upload(place, 3, lambda trees=trees: trees))  # type: ignore[misc]  # the default binds it now
    return reduction.close(tuple(contributions)), reduction


def sums_of(contributions: dict[str, Trees], release: Release) -> Trees:
    return {slot: tree.map(lambda x: x.numpy()) for slot, tree in folded(contributions, release)[0].total.items()}


@given(st.sampled_from(COHORT), st.floats(0.0, WILD), st.floats(0.01, 100))
@settings(max_examples=50)
def test_one_device_changes_a_sum_by_no_more_than_the_clip(device: str, times: float, clip: float) -> None:
    """Whatever it sends: the coordinator clips, too."""
    contributions = {each: upload_of(each, times if each == device else 1.0) for each in COHORT}
    release = Release(clip, noise=1.0, divisor=4.0)
    whole = sums_of(contributions, release)
    without = sums_of({name: trees for name, trees in contributions.items() if name != device}, release)
    change = norm_of({slot: whole[slot] - without[slot] for slot in whole})
    assert change <= clip * (1 + 1e-12)
    assert change == pytest.approx(min(clip, norm_of(contributions[device])), rel=2e-6)


def test_all_weigh_the_same_however_many_examples_they_have() -> None:
    contributions = {device: upload_of(device) for device in COHORT}
    found = sums_of(contributions, Release(1e6, 0.0, 4.0))["delta"]
    for name, tensor in found.items():
        expected = sum(np.asarray(trees["delta"][name], float) for trees in contributions.values())
        np.testing.assert_allclose(tensor, expected, rtol=1e-15)


def test_what_a_device_clipped_is_not_changed() -> None:
    sent, _ = clipped(upload_of("ant", 10.0), 1.0)
    contributions = {"ant": sent, "bee": upload_of("bee", 0.01)}
    got, reduction = folded(contributions, Release(1.0, 0.0, 1.0))
    assert reduction.below == 1  # only bee
    for name, tensor in got.total["delta"].items():
        np.testing.assert_array_equal(tensor, sum(np.asarray(c["delta"][name], float) for c in contributions.values()))


@pytest.mark.parametrize("name", ALLOWED)
def test_without_noise_and_bound_it_is_the_plain_round(name: str) -> None:
    plan = plan_of(name, weighting="uniform")
    algorithm = updater.algorithm_of(plan, {})
    assert algorithm.weighting is Weighting.UNIFORM
    contributions = {device: uploads_of(plan, device, 1) for device in COHORT}
    plain = updater.reduction(algorithm, plan, COHORT)
    for device, trees in contributions.items():
        plain.offer(device, Upload(5, 3, lambda trees=trees: trees))  # type: ignore[misc]  # likewise
    state = updater.first_state(algorithm, plan, model())
    expected = updater.next_state(algorithm, state, plain.close(COHORT))
    release = Release(1e6, 0.0, divisor=len(COHORT))
    got, reduction = folded(contributions, release, name)
    private, memory = blurred(release, got, got.total, reduction.below, KEY)
    assert memory == {}
    found = updater.next_state(algorithm, state, private)
    for slot, tree in expected.items():
        for tensor in tree:
            torch.testing.assert_close(found[slot][tensor], tree[tensor], rtol=2e-7, atol=0)


def test_an_update_sees_neither_devices_nor_numbers() -> None:
    got, _ = folded({device: upload_of(device) for device in COHORT}, Release(1.0, 1.0, 4.0))
    assert got.devices == COHORT
    private, _ = blurred(Release(1.0, 1.0, 4.0), got, got.total, 0, KEY)
    assert (private.devices, private.examples, private.steps, private.fleet, private.stack) == ((), (), (), (), {})


def test_the_noise_on_a_mean_is_that_of_the_sum_over_the_divisor() -> None:
    zeros = {"delta": Tree({"w": np.zeros(100_000)})}
    means, _ = released(Release(0.5, 3.0, divisor=20.0), zeros, 0, 0, KEY)
    spread = float(np.mean(np.square(means["delta"]["w"])))
    assert abs(spread / (1.5 / 20) ** 2 - 1) < 5.4 * math.sqrt(2 / 100_000)
    rounded, _ = released(Release(0.5, 3.0, divisor=20.0, rounding=1e-3), zeros, 0, 0, KEY)  # 1e-3 sqrt(1e5) = 0.32
    assert float(np.mean(np.square(rounded["delta"]["w"]))) / spread == pytest.approx((0.8162 / 0.5) ** 2, rel=1e-3)


def test_a_key_is_for_one_sum() -> None:
    one = key_for(KEY, ("ant", "bee"), ("1", "2"))
    assert one == key_for(KEY, ("ant", "bee"), ("1", "2"))
    others = {
        key_for(KEY, ("ant",), ("1",)),
        key_for(KEY, ("ant", "bee"), ("1", "3")),
        key_for(KEY, ("ant", "cat"), ("1", "2")),
        key_for(KEY[::-1], ("ant", "bee"), ("1", "2")),
    }
    assert len({one, *others}) == 5


def test_the_clip_comes_to_the_quantile() -> None:
    """Andrew et al. 2021: from far below and far above, with noise."""
    norms = np.exp(np.random.default_rng(1).normal(0, 1, 1000))
    for first in (0.01, 100.0):
        clip = first
        for number in range(120):
            adaptive = Adaptive(0.7, 0.2, bits=50.0)
            release = Release(clip, 1.0, 1000.0, adaptive=adaptive)
            below = int((norms <= clip).sum())
            _, clip = released(release, {"d": Tree({"w": np.zeros(1)})}, below, 1000, bytes([number] * 32))
        assert clip == pytest.approx(np.quantile(norms, 0.7), rel=0.15)


def test_a_moved_clip_is_remembered_beside_the_algorithms_state() -> None:
    adaptive = Adaptive(0.5, 0.2, bits=0.0)
    got, reduction = folded({device: upload_of(device) for device in COHORT}, Release(1e3, 0.0, 4.0, adaptive=adaptive))
    _, memory = blurred(Release(1e3, 0.0, 4.0, adaptive=adaptive), got, got.total, reduction.below, KEY)
    assert clip_of(memory, 7.0) == pytest.approx(1e3 * math.exp(-0.1))  # all are below it, and half should be
    assert clip_of({}, 7.0) == 7.0
    assert public({"w": Tree({}), **memory}) == {"w": Tree({})}
    assert list(memory) == [CLIP]


def test_one_device_changes_the_bits_by_half() -> None:
    moved = partial(Adaptive(0.5, 1.0, 0.0).moved, 1.0, normal=0.0)
    there, gone = moved(below=3, devices=5, divisor=5.0), moved(below=2, devices=4, divisor=5.0)
    assert abs(math.log(there / gone)) == pytest.approx(0.5 / 5)
