"""A device's battery, against a simulation in small steps, and against the law that energy is conserved."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepfl.errors import ConfigError
from simulators.profiles import (
    ALWAYS,
    Activity,
    Battery,
    DeviceProfile,
    Interval,
    Presence,
    Spent,
    Trace,
    always,
    empties,
    full,
    lived,
    profile,
)
from simulators.profiles.energy import REVIVED, turns

CELL = DeviceProfile(
    name="cell",
    about="a small phone",
    kind="phone",
    battery_wh=1.0,
    watts_charger=6.0,
    watts_idle=0.5,
    watts_training=8.0,
    watts_transmitting=2.0,
    watts_use=1.0,
)
UNPLUGGED = Presence(online=True, wifi=True, idle=True)

presences = st.builds(Presence, st.booleans(), st.booleans(), st.booleans(), st.booleans())
traces = st.lists(st.tuples(st.floats(1, 2000), presences), min_size=1, max_size=6).map(
    lambda parts: laid([length for length, _ in parts], [presence for _, presence in parts])
)
activities = st.sampled_from(Activity)
watts = st.floats(0, 10)
cells = st.builds(
    lambda idle, more, use, charger: msgspec.structs.replace(
        CELL,
        watts_idle=idle,
        watts_training=idle + more,
        watts_transmitting=idle + more / 2,
        watts_use=use,
        watts_charger=charger,
    ),
    watts,
    watts,
    watts,
    st.floats(0.1, 10),
)
levels = st.floats(0, 1)


def laid(lengths: list[float], found: list[Presence]) -> Trace:
    at, intervals = 0.0, []
    for length, presence in zip(lengths, found, strict=True):
        intervals.append(Interval(at, at + length, presence))
        at += length
    return Trace.of(intervals, at)


def unplugged(seconds: float) -> Trace:
    return laid([seconds], [UNPLUGGED])


def stepped(battery: Battery, trace: Trace, until: float, activity: Activity, step: float) -> tuple[float, float]:
    """Charge and joules spent by Euler's method: the oracle, which knows of no corner."""
    draws = {Activity.IDLE: 0.5, Activity.TRAINING: 8.0, Activity.TRANSMITTING: 2.0}
    charge, dead, spent, now = battery.charge, battery.dead, 0.0, battery.now
    while now < until - 1e-9:
        presence = trace.at(now)
        draw = 0.0 if dead else draws[activity] + (0.0 if presence.idle else 1.0)
        into = (6.0 if presence.charging else 0.0) - draw
        spent += draw * step
        charge = min(max(charge + into * step, 0.0), battery.capacity)
        dead = (dead and charge < REVIVED * battery.capacity) or (charge <= 0.0 and into < 0)
        now += step
    return charge, spent


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.integers(1, 8), presences), min_size=1, max_size=4), activities, levels)
def test_it_agrees_with_a_simulation_in_small_steps(
    parts: list[tuple[int, Presence]], activity: Activity, level: float
) -> None:
    trace = laid([100.0 * length for length, _ in parts], [presence for _, presence in parts])
    start, step = full(CELL, level=level), 0.25
    found = lived(start, CELL, trace, trace.horizon, activity)
    charge, spent = stepped(start, trace, trace.horizon, activity, step)
    turned = len(list(turns(start, CELL, trace, trace.horizon, activity)))
    slack = 10.0 * step * (turned + len(trace.intervals) + 1)  # watts for a step at each corner
    assert found.charge == pytest.approx(charge, abs=slack)
    assert found.spent.total == pytest.approx(spent, abs=slack)


@settings(deadline=None)
@given(cells, traces, st.lists(st.tuples(st.floats(0, 3000), activities), max_size=6), levels)
def test_energy_is_conserved_and_the_battery_stays_within_its_bounds(
    cell: DeviceProfile, trace: Trace, work: list[tuple[float, Activity]], level: float
) -> None:
    start = battery = full(cell, level=level)
    for seconds, activity in work:
        battery = lived(battery, cell, trace, battery.now + seconds, activity)
        assert 0 <= battery.charge <= battery.capacity
        assert 0 <= (battery.level or 0) <= 1
    assert math.isclose(start.charge + battery.mains, battery.charge + battery.spent.total, rel_tol=1e-9, abs_tol=1e-6)


@settings(deadline=None)
@given(traces, activities, levels, st.lists(st.floats(0, 1), max_size=5))
def test_looking_in_between_changes_nothing(trace: Trace, activity: Activity, level: float, looks: list[float]) -> None:
    start = battery = full(CELL, level=level)
    for part in sorted(looks):
        battery = lived(battery, CELL, trace, part * trace.horizon, activity)
    battery = lived(battery, CELL, trace, trace.horizon, activity)
    once = lived(start, CELL, trace, trace.horizon, activity)
    assert battery.charge == pytest.approx(once.charge, abs=1e-5)
    assert battery.spent.total == pytest.approx(once.spent.total, abs=1e-5)


def test_it_runs_flat_when_the_charge_is_drawn() -> None:
    start = full(CELL)  # 3600 J at 8 W
    assert empties(start, CELL, unplugged(1000.0), 1000.0, Activity.TRAINING) == pytest.approx(450.0)
    assert empties(start, CELL, unplugged(1000.0), 449.0, Activity.TRAINING) is None
    assert empties(start, CELL, unplugged(1e5), math.inf) == pytest.approx(7200.0)  # idle, at 0.5 W
    flat = lived(start, CELL, unplugged(1000.0), 1000.0, Activity.TRAINING)
    assert (flat.dead, flat.charge, flat.level) == (True, 0.0, 0.0)
    assert flat.spent.training == pytest.approx(3600.0)


def test_a_dead_device_draws_nothing_and_comes_back_when_it_has_charged() -> None:
    trace = laid([1000.0, 1000.0], [UNPLUGGED, ALWAYS])
    found = list(turns(full(CELL), CELL, trace, 1100.0, Activity.TRAINING))
    revived = 1000.0 + REVIVED * 3600.0 / 6.0  # 6 W from its charger, and nothing drawn
    assert [each.dead for each in found] == [True, False]
    assert [each.now for each in found] == pytest.approx([450.0, revived])
    assert found[-1].spent.total == pytest.approx(3600.0)


def test_training_on_a_weak_charger_runs_it_flat_again_and_again() -> None:
    trace = always(2000.0)  # 6 W in, 8 W out
    found = [each.dead for each in turns(full(CELL, level=0.1), CELL, trace, 2000.0, Activity.TRAINING)]
    assert found == [bool(number % 2 == 0) for number in range(len(found))]
    assert len(found) > 4


def test_a_full_battery_takes_no_more_than_the_device_draws() -> None:
    found = lived(full(CELL), CELL, always(100.0), 100.0)
    assert (found.charge, found.mains, found.spent.idle) == (3600.0, 50.0, 50.0)


def test_use_by_the_owner_comes_on_top_and_is_told_apart() -> None:
    trace = laid([100.0], [Presence(online=True, idle=False)])
    spent = lived(full(CELL), CELL, trace, 100.0, Activity.TRANSMITTING).spent
    assert spent == Spent(transmitting=200.0, owner=100.0)


def test_a_round_costs_the_difference_of_two_looks() -> None:
    trace = always(1e4)
    before = lived(full(CELL), CELL, trace, 100.0)
    after = lived(lived(before, CELL, trace, 160.0, Activity.TRAINING), CELL, trace, 170.0, Activity.TRANSMITTING)
    assert after.spent - before.spent == Spent(training=480.0, transmitting=20.0)
    assert (after.spent - before.spent) + before.spent == after.spent


def test_a_board_on_mains_never_runs_flat_and_counts_its_joules() -> None:
    board = profile("pi-4")
    found = lived(full(board), board, unplugged(10.0), 100.0, Activity.TRAINING)
    assert (found.level, found.dead, found.spent.training, found.mains) == (None, False, 300.0, 300.0)


def test_time_does_not_run_backwards() -> None:
    battery = lived(full(CELL), CELL, always(100.0), 50.0)
    assert lived(battery, CELL, always(100.0), 20.0) == battery


def test_an_empty_start_is_a_device_that_is_off() -> None:
    off = full(CELL, level=0.0)
    assert off.dead
    assert lived(off, CELL, unplugged(100.0), 100.0, Activity.TRAINING).spent == Spent()
    with pytest.raises(ConfigError, match=r"1\.5 is no level of charge"):
        full(CELL, level=1.5)


def test_a_charger_that_gives_just_what_is_drawn_keeps_the_charge() -> None:
    even = msgspec.structs.replace(CELL, watts_charger=0.5)
    found = lived(full(even, level=0.5), even, always(100.0), 100.0)
    assert (found.charge, found.mains) == (1800.0, 50.0)


def test_a_full_battery_in_use_stays_full_to_the_last_bit() -> None:
    """0.1 + 0.2 - 0.1 - 0.2 is no 0 in binary, and a rate that is none would be followed for ever."""
    odd = msgspec.structs.replace(CELL, watts_idle=0.1, watts_use=0.2)
    trace = laid([100.0], [Presence(online=True, charging=True)])
    found = lived(full(odd), odd, trace, 100.0)
    assert found.charge == 3600.0
    assert found.mains == pytest.approx(30.0)
