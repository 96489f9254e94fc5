"""Data that change with the round: a pure function of device, round and seed, and what agents train on."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from _inputs import only
from hypothesis import given
from hypothesis import strategies as st

from device_agent.data import Examples
from edgepfl.errors import ConfigError
from edgepfl.seeds import generator
from simulators.datasets import Drift, load
from simulators.datasets.drift import Course, What, drifting, drifts

CLASSES = 5


def examples(train: int = 400, test: int = 200, *shape: int) -> Examples:
    rng = generator(0, "examples")
    x = rng.normal(0, [1.0, 2.0, 4.0], (train + test, *shape, 3)).astype(np.float32)
    y = rng.integers(0, CLASSES, train + test)
    return Examples(x[:train], y[:train], x[train:], y[train:])


BEFORE = examples()


def test_levels_are_those_of_their_course() -> None:
    courses = {
        Course.ABRUPT: [0, 0, 0, 1, 1, 1, 1, 1, 1, 1],
        Course.GRADUAL: [0, 0, 0, 0.5, 1, 1, 1, 1, 1, 1],
        Course.RECURRING: [0, 0, 0, 1, 1, 0, 0, 1, 1, 0],
    }
    for course, levels in courses.items():
        drift = Drift(course=course, start=3, length=2)
        assert [drift.level(round_) for round_ in range(10)] == levels


@pytest.mark.parametrize("by", [1, 3])
def test_labels_move_on_and_inputs_stay(by: int) -> None:
    after = drifting(Drift(start=2, by=by), BEFORE, CLASSES, 0, 2, seed=1)
    assert np.array_equal(after.train_y, (BEFORE.train_y + by) % CLASSES)
    assert np.array_equal(after.test_y, (BEFORE.test_y + by) % CLASSES)
    assert after.train_y.dtype == BEFORE.train_y.dtype
    assert after.train_x is BEFORE.train_x
    assert drifting(Drift(start=2), BEFORE, CLASSES, 0, 1, seed=1) is BEFORE


def test_features_are_shifted_by_their_own_deviation_and_labels_stay() -> None:
    after = drifting(Drift(What.FEATURES, start=1, strength=2.0), BEFORE, CLASSES, 0, 1, seed=1)
    for old, new in ((BEFORE.train_x, after.train_x), (BEFORE.test_x, after.test_x)):
        moved = only(new) - only(old)
        assert np.abs(moved) == pytest.approx(np.tile(2 * only(BEFORE.train_x).std(0), (len(moved), 1)), rel=1e-3)
    assert np.array_equal(after.train_y, BEFORE.train_y)
    assert only(after.train_x).dtype == np.float32
    other = drifting(Drift(What.FEATURES, start=1, strength=2.0), BEFORE, CLASSES, 3, 1, seed=1)
    assert not np.allclose(only(other.train_x), only(after.train_x))
    series = examples(40, 20, 6)  # 6 channels of 3 samples
    found = drifting(Drift(What.FEATURES, start=1), series, CLASSES, 0, 1, seed=1)
    assert np.ptp(only(found.train_x) - only(series.train_x), axis=(0, 2)) == pytest.approx(0, abs=1e-5)


def test_a_gradual_change_takes_nothing_back() -> None:
    drift = Drift(course=Course.GRADUAL, start=1, length=10)
    changed = [drifting(drift, BEFORE, CLASSES, 0, n, seed=1).train_y != BEFORE.train_y for n in range(12)]
    for before, after in pairwise(changed):
        assert not (before & ~after).any()
    assert [each.mean() for each in changed] == pytest.approx([min(n / 10, 1) for n in range(12)], abs=0.08)


def test_only_a_share_of_the_devices_drifts() -> None:
    drift = Drift(share=0.3, start=1)
    who = [drifts(drift, number, 5) for number in range(1000)]
    assert np.mean(who) == pytest.approx(0.3, abs=0.05)
    still = who.index(False)
    assert drifting(drift, BEFORE, CLASSES, still, 9, seed=5) is BEFORE
    assert drifting(drift, BEFORE, CLASSES, who.index(True), 9, seed=5) is not BEFORE


@given(
    text=st.sampled_from(["labels:gradual", "features:recurring,length=3", "labels:abrupt,share=0.5"]),
    round_=st.integers(0, 40),
    number=st.integers(0, 5),
    seed=st.integers(0, 1 << 40),
)
def test_it_depends_on_device_round_and_seed_only(text: str, round_: int, number: int, seed: int) -> None:
    drift = Drift.parse(text)
    found, again = (drifting(drift, BEFORE, CLASSES, number, round_, seed) for _ in range(2))
    assert np.array_equal(only(found.train_x), only(again.train_x))
    assert np.array_equal(found.train_y, again.train_y)
    assert (found.count, len(found.test_y)) == (BEFORE.count, len(BEFORE.test_y))


def test_a_fleets_devices_drift_and_begin_as_they_were() -> None:
    plain, moving = (load("digits", devices=4, seed=1, drift=text) for text in ("", "labels:abrupt,start=3"))
    assert moving.drift == Drift(start=3)
    for name in plain.devices:
        held = moving.devices[name]
        assert np.array_equal(held.train_y, plain.devices[name].train_y)
        assert np.array_equal(held.of_round(2).train_y, plain.devices[name].train_y)
        assert np.array_equal(held.of_round(3).train_y, (plain.devices[name].train_y + 1) % 10)
        assert np.array_equal(moving.examples(name, 3).test_y, held.of_round(3).test_y)
        assert plain.devices[name].of_round(3).count == held.count


def test_text_is_read_as_it_is_written() -> None:
    assert Drift.parse("labels") == Drift()
    assert Drift.parse("features:gradual,start=5,length=30,share=0.5,strength=2") == Drift(
        What.FEATURES, Course.GRADUAL, 5, 30, 0.5, strength=2.0
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "colours",
        "labels:slow",
        "labels,start=0",
        "labels,start=x",
        "labels,length=0",
        "labels,share=0",
        "labels,share=2",
        "labels,by=0",
        "features,strength=0",
        "features,strength=nan",
        "labels,rate=2",
    ],
)
def test_what_is_no_drift_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Drift.parse(text)
    assert "drift" in caught.value.where
    assert caught.value.remedy


def test_what_cannot_drift_is_refused() -> None:
    values = Examples(BEFORE.train_x, only(BEFORE.train_x)[:, 0], BEFORE.test_x, only(BEFORE.test_x)[:, 0])
    with pytest.raises(ConfigError, match="no labels"):
        drifting(Drift(start=1), values, CLASSES, 0, 1, 0)
    words = Examples(np.ones((4, 3), np.int64), BEFORE.train_y[:4], np.ones((2, 3), np.int64), BEFORE.test_y[:2])
    with pytest.raises(ConfigError, match="cannot be shifted"):
        drifting(Drift(What.FEATURES, start=1), words, CLASSES, 0, 1, 0)
