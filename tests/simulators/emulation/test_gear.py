"""What the devices of a scenario get: lives that suit them, and no longer than the emulation may last."""

from __future__ import annotations

import pytest

from simulators.emulation.gear import horizon_of, lives_of
from simulators.emulation.living import is_calm
from simulators.emulation.scenario import FleetTable
from simulators.profiles import DAY

NAMES = tuple(f"device-{number}" for number in range(6))


def test_boards_stay_where_they_are_and_phones_follow_their_owners() -> None:
    mixed = FleetTable(trace="diurnal", profiles={"pi-4": 0.5, "phone-mid": 0.5})
    found = lives_of(mixed, NAMES, 1)
    assert {life.profile.kind: is_calm(life) for life in found.values()} == {"board": True, "phone": False}


def test_without_profiles_all_follow_the_trace_that_is_asked_for() -> None:
    assert not any(is_calm(life) for life in lives_of(FleetTable(trace="diurnal"), NAMES, 1).values())


@pytest.mark.parametrize(("speedup", "days"), [(0.5, 1), (1.0, 1), (3.0, 3), (60.0, 7)])
def test_lives_are_made_for_a_day_of_the_wall_and_a_week_at_most(speedup: float, days: int) -> None:
    table = FleetTable(trace="diurnal")
    found = lives_of(table, NAMES, 1, horizon_of(speedup))
    assert {life.trace.horizon for life in found.values()} == {days * DAY}
    short = lives_of(table, NAMES, 1)
    for name, life in found.items():
        assert all(life.at(hour * 3600.0) == short[name].at(hour * 3600.0) for hour in range(24)), name
