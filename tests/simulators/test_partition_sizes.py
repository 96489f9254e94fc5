"""Laws of sizes, and other sizes for devices that keep their classes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepfl.errors import ConfigError
from edgepfl.seeds import generator
from simulators.partition_sizes import Law, Lognormal, Power, Sizes, mixed, resized, sizes

LAWS = st.one_of(
    st.builds(Power, st.floats(0, 4), st.integers(1, 20)),
    st.builds(Sizes, st.floats(0.01, 100), st.integers(1, 20)),
    st.builds(Lognormal, st.floats(0, 4), st.integers(1, 20)),
)


@given(law=LAWS, devices=st.integers(1, 40), total=st.integers(0, 5000), seed=st.integers(0, 1 << 32))
def test_whole_numbers_sum_up_and_reach_the_minimum(law: Law, devices: int, total: int, seed: int) -> None:
    shares = law.shares(devices, generator(seed, "law"))
    assert shares.sum() == pytest.approx(1)
    if devices * law.least > total:
        with pytest.raises(ConfigError, match="examples are not") as caught:
            sizes(total, shares, law.least)
        assert f"at most {total // law.least} devices" in caught.value.remedy
        return
    found = sizes(total, shares, law.least)
    assert found.sum() == total
    assert found.min() >= law.least
    assert np.abs(found - law.least - shares * (total - devices * law.least)).max() <= 1


def test_no_skew_is_equal_shares_and_much_is_one_device() -> None:
    rng = generator(0, "x")
    for law in (Power(0.0), Lognormal(0.0), Sizes(1e9)):
        assert law.shares(10, rng) == pytest.approx(0.1, abs=1e-3)
    for most in (Power(50.0), Sizes(1e-3)):
        assert most.shares(10, rng).max() > 0.99


def test_a_power_law_gives_ranks_to_devices_by_chance() -> None:
    found = Power(1.0).shares(6, generator(3, "law"))
    weights = 1 / np.arange(1, 7)
    assert np.sort(found)[::-1] == pytest.approx(weights / weights.sum())
    assert list(found) != sorted(found, reverse=True)


@given(
    hands=st.lists(st.lists(st.integers(0, 60), min_size=3, max_size=3), min_size=1, max_size=6),
    wanted=st.lists(st.integers(0, 150), min_size=6, max_size=6),
    least=st.integers(1, 12),
)
def test_devices_keep_their_classes_and_no_class_gives_more_than_it_has(
    hands: list[list[int]], wanted: list[int], least: int
) -> None:
    before = np.array(hands, np.int64) + np.array([5, 0, 0])  # nobody's hand is empty
    goal = np.array(wanted[: len(hands)], np.int64)
    after = resized(before, goal, least)
    assert after.min() >= 0
    assert np.all(after.sum(axis=0) <= before.sum(axis=0))
    assert not after[before == 0].any()
    reached = after.sum(axis=1)
    assert np.all(reached >= np.minimum(before.sum(axis=1), least))
    short = reached < goal
    left = before.sum(axis=0) - after.sum(axis=0)
    assert not (left[None, :] * (before > 0))[short].any()  # who falls short has nothing left to take


@given(
    totals=st.lists(st.integers(0, 200), min_size=3, max_size=3),
    devices=st.integers(1, 8),
    alpha=st.sampled_from([1e-4, 0.1, 10.0]),
    seed=st.integers(0, 1 << 32),
)
def test_mixes_use_everything_up(totals: list[int], devices: int, alpha: float, seed: int) -> None:
    rng = generator(seed, "mixes")
    every = np.array(totals, np.int64)
    wanted = sizes(int(every.sum()), Power(1.0).shares(devices, rng), 0)
    wishes = rng.dirichlet(np.full(3, alpha), devices)
    found = mixed(wishes, wanted, every)
    assert np.array_equal(found.sum(axis=0), every)
    assert np.array_equal(found.sum(axis=1), wanted)
    assert found.min() >= 0
    fits = wanted[0] * wishes[0] + 1 < every  # the first device has its choice
    if fits.all():
        assert np.abs(found[0] - wanted[0] * wishes[0]).max() <= 1


def test_the_proportions_stay_while_classes_last() -> None:
    before = np.array([[30, 10, 0], [10, 20, 10], [0, 40, 40]])
    assert resized(before, np.array([20, 8, 100]), 4).tolist()[:2] == [[15, 5, 0], [2, 4, 2]]
