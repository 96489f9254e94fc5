"""Epsilon is that of dp-accounting, and what follows from it is right."""

from __future__ import annotations

import math
import sys

import dp_accounting
import pytest
from dp_accounting import pld, rdp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from coordinator.privacy import accountant
from coordinator.privacy.config import TAIL, Accountant, Privacy, Sampling, Trust
from coordinator.privacy.events import Entry, Event, combined, counted, most
from edgepfl.errors import ConfigError

DELTA = 1e-5


@pytest.mark.parametrize(
    ("noise", "fraction", "rounds", "expected"), [(1.0, 0.1, 100, 7.9), (1.2, 0.02, 500, 2.2), (1.8, 0.1, 100, 3.0)]
)
def test_known_values(noise: float, fraction: float, rounds: int, expected: float) -> None:
    assert accountant.epsilon({Event(noise, fraction): rounds}, DELTA) == pytest.approx(expected, abs=0.05)


def test_poisson_samples_are_the_librarys() -> None:
    direct = rdp.RdpAccountant()
    for noise, rounds in ((1.1, 30), (0.9, 5)):
        direct.compose(dp_accounting.PoissonSampledDpEvent(0.2, dp_accounting.GaussianDpEvent(noise)), rounds)
    assert accountant.epsilon({Event(1.1, 0.2): 30, Event(0.9, 0.2): 5}, DELTA) == direct.get_epsilon(DELTA)


def test_fixed_samples_have_twice_the_sensitivity() -> None:
    direct = rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    direct.compose(dp_accounting.SampledWithoutReplacementDpEvent(100, 10, dp_accounting.GaussianDpEvent(2.0)), 40)
    event = Event(4.0, sample=10, source=100, replaced=True)
    assert accountant.epsilon({event: 40}, DELTA) == direct.get_epsilon(DELTA)
    with pytest.raises(ConfigError, match="fixed size"):
        accountant.epsilon({event: 40}, DELTA, Accountant.PLD)


def test_the_other_accountant_is_tighter() -> None:
    direct = pld.PLDAccountant()
    direct.compose(dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(2.0)), 10)
    tight = accountant.epsilon({Event(2.0, 0.1): 10}, DELTA, Accountant.PLD)
    assert tight == direct.get_epsilon(DELTA) < accountant.epsilon({Event(2.0, 0.1): 10}, DELTA)


def test_who_knows_the_cohorts_has_no_sampling() -> None:
    event = Event(3.0, 0.1)
    exact = accountant.known(event.known, 9, DELTA)
    assert exact == pytest.approx(dp_accounting.get_epsilon_gaussian(1.0, DELTA))
    assert accountant.epsilon({event.known: 9}, DELTA) >= exact > accountant.epsilon({event: 9}, DELTA)


def test_nothing_and_no_noise() -> None:
    assert accountant.epsilon({}, DELTA) == 0
    assert accountant.epsilon({Event(1.0): 0}, DELTA) == 0
    assert accountant.epsilon({Event(0.0): 1}, DELTA) == math.inf
    assert accountant.known(Event(0.0), 1, DELTA) == math.inf
    assert accountant.known(Event(1.0), 0, DELTA) == 0


def test_noise_and_rounds_for_a_budget() -> None:
    noise = accountant.noise_for(Event(1.0, 0.1), 100, 3.0, DELTA)
    assert noise == pytest.approx(1.80, abs=0.01)
    assert accountant.epsilon({Event(noise, 0.1): 100}, DELTA) <= 3.0
    assert accountant.epsilon({Event(noise * 0.999, 0.1): 100}, DELTA) > 3.0
    event = Event(2.0, 0.5)
    rounds = accountant.rounds_for(event, 5.0, DELTA, 1000)
    assert accountant.epsilon({event: rounds}, DELTA) <= 5.0 < accountant.epsilon({event: rounds + 1}, DELTA)
    assert accountant.rounds_for(event, 1e3, DELTA, 7) == 7


@given(st.integers(1, 300), st.floats(0.01, 0.99), st.integers(0, 20), st.integers(0, 300))
@settings(max_examples=40)
def test_the_tails_are_a_binomials(devices: int, fraction: float, least: int, above: int) -> None:
    most_devices = least + above
    number = stats.binom(devices, fraction)
    expected = number.cdf(least - 1) + number.sf(most_devices)
    assert accountant.outside(devices, fraction, least, most_devices) == pytest.approx(expected, rel=1e-6, abs=1e-13)
    goal = accountant.goal_for(devices, fraction, 1e-6)
    assert number.sf(goal) <= 1.01e-6
    assert goal == 1 or number.sf(goal - 1) > 0.99e-6


def test_the_tail_is_within_its_part_of_delta() -> None:
    privacy = Privacy(fraction=0.1, delta=1e-5, epsilon=3.0, population=1000)
    assert privacy.counted_delta == pytest.approx((1 - TAIL) * 1e-5)
    assert 50 * (1 + math.exp(3.0)) * privacy.tail(50) == pytest.approx(TAIL * 1e-5)
    for whole in (
        Privacy(fraction=1.0),
        Privacy(sampling=Sampling.FIXED, fraction=0.1),
        Privacy(trust=Trust.LOCAL, fraction=0.1),
    ):
        assert whole.counted_delta == whole.delta


@given(st.floats(0.1, 10), st.floats(0.06, 100))
def test_bits_and_sum_together_are_what_is_counted(noise: float, bits: float) -> None:
    """Two Gaussian mechanisms at once are one of sensitivity sqrt(1/z1^2 + 1/z2^2) over its noise."""
    left = combined(noise, bits)
    if math.isinf(left):
        assert 2 * bits <= noise * (1 + 1e-12)
    else:
        assert left >= noise
        assert (left**-2 + (2 * bits) ** -2) ** -0.5 == pytest.approx(noise, rel=1e-6)


def test_a_ledger_is_counted() -> None:
    entries = [Entry(n, 0, Event(1.0, 0.5), ("ant", "bee")[: 1 + n % 2], 1.0) for n in range(1, 4)]
    assert counted(entries) == {Event(1.0, 0.5): 3}
    assert most(entries) == 3
    assert most([]) == 0


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ConfigError, match=r"pip install 'edgepfl\[privacy\]'"):
        accountant.epsilon({Event(1.234): 1}, DELTA)
