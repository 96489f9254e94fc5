"""Which conditions a device meets: each limit from both sides, each absent sensor, and numbers near their limits."""

from __future__ import annotations

import hashlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepfl import eligibility
from edgepfl.eligibility import Conditions, Readings, judge, unmet

ALL = Conditions(
    charging=True,
    min_battery=0.6,
    max_temperature=75.0,
    not_throttled=True,
    unmetered=True,
    wifi=True,
    min_free_memory_mib=100,
    min_free_disk_mib=50,
    max_load=0.5,
    min_examples=10,
    min_interval=60.0,
    windows=("22:00-06:00",),
)
WELL = Readings(
    powered=True,
    battery=0.9,
    temperature=45.0,
    throttled=False,
    link="wifi",
    metered=False,
    free_memory_mib=400.0,
    free_disk_mib=900.0,
    load=0.1,
    examples=120,
    rested=3600.0,
    minute=23 * 60,
)
UNWELL: dict[str, tuple[dict[str, object], str]] = {
    "charging": ({"powered": False}, "not charging"),
    "min_battery": ({"battery": 0.34}, "battery at 34 %, at least 60 % needed"),
    "max_temperature": ({"temperature": 81.2}, "temperature 81 C, at most 75"),
    "not_throttled": ({"throttled": True}, "its processor is throttled"),
    "unmetered": ({"metered": True}, "its connection is metered"),
    "wifi": ({"link": "cellular"}, "connected by cellular, not by Wi-Fi"),
    "min_free_memory_mib": ({"free_memory_mib": 99.0}, "99 MiB of memory free, at least 100 needed"),
    "min_free_disk_mib": ({"free_disk_mib": 3.0}, "3 MiB of disk free, at least 50 needed"),
    "max_load": ({"load": 1.25}, "load 1.25 for each core, at most 0.50"),
    "min_examples": ({"examples": 9}, "9 examples, at least 10 needed"),
    "min_interval": ({"rested": 12.0}, "it took part 12 s ago, at least 60 s needed"),
    "windows": ({"minute": 12 * 60 + 5}, "it is 12:05 there, and the time must be in 22:00-06:00"),
}
ABSENT: dict[str, tuple[dict[str, object], str]] = {
    "charging": ({"powered": None}, "it cannot tell whether it is charging"),
    "min_battery": ({"battery": None, "powered": None}, "no battery sensor"),
    "max_temperature": ({"temperature": None}, "no temperature sensor"),
    "wifi": ({"link": None}, "it cannot tell whether it is on Wi-Fi"),
    "min_free_memory_mib": ({"free_memory_mib": None}, "it cannot tell how much memory is free"),
    "min_free_disk_mib": ({"free_disk_mib": None}, "it cannot tell how much disk is free"),
    "max_load": ({"load": None}, "it cannot tell its load"),
    "windows": ({"minute": None}, "its clock is not set, and the time of the day matters"),
}
HARMLESS: tuple[dict[str, object], ...] = (
    {"throttled": None},
    {"metered": None},
    {"rested": None},
    {"battery": None},  # on mains, with nothing to run down
    {"link": "ethernet"},
)


CHARGING = hashlib.sha256(b'{"charging":true}').hexdigest()[: eligibility.DIGEST_CHARACTERS]
"""The name of a policy for ever, whatever conditions there will be."""


def alone(name: str) -> Conditions:
    """One of the conditions of ``ALL``."""
    return Conditions(**{name: getattr(ALL, name)})


def like(**changes: object) -> Readings:
    """A device that is well but for this."""
    return msgspec.structs.replace(WELL, **changes)


def test_a_device_that_is_well_meets_everything_and_nobody_who_asks_nothing_is_refused() -> None:
    assert judge(ALL, WELL) == ()
    assert judge(Conditions(), Readings()) == ()


def test_every_condition_has_its_case() -> None:
    policy = {"on_lost", "pause_limit", "windows_without_clock"}
    assert UNWELL.keys() == set(Conditions.__struct_fields__) - policy


@pytest.mark.parametrize("name", UNWELL)
def test_one_thing_amiss_is_one_reason_in_words_and_only_where_it_is_asked(name: str) -> None:
    changes, why = UNWELL[name]
    assert judge(ALL, like(**changes)) == ((name, why),)
    assert unmet(alone(name), like(**changes)) == (why,)
    others = Conditions(**{each: getattr(ALL, each) for each in UNWELL if each != name})
    assert judge(others, like(**changes)) == ()


@pytest.mark.parametrize("name", ABSENT)
def test_what_cannot_be_measured_is_unmet_where_it_protects(name: str) -> None:
    changes, why = ABSENT[name]
    assert unmet(alone(name), like(**changes)) == (why,)


@pytest.mark.parametrize("changes", HARMLESS, ids=str)
def test_what_cannot_be_measured_is_met_where_nothing_can_go_wrong(changes: dict[str, object]) -> None:
    assert unmet(ALL, like(**changes)) == ()


def test_all_that_is_amiss_is_told_in_the_order_of_the_fields() -> None:
    found = judge(ALL, like(**{name: value for changes, _ in UNWELL.values() for name, value in changes.items()}))
    assert [each.name for each in found] == [name for name in Conditions.__struct_fields__ if name in UNWELL]
    assert eligibility.reason(found[:2]) == "not charging, battery at 34 %, at least 60 % needed"


@pytest.mark.parametrize(
    ("reading", "name", "unwell", "limit", "again"),
    [
        ("battery", "min_battery", 0.59, 0.6, 0.63),
        ("temperature", "max_temperature", 75.5, 75.0, 72.0),
        ("free_memory_mib", "min_free_memory_mib", 99.0, 100.0, 105.0),
        ("free_disk_mib", "min_free_disk_mib", 49.0, 50.0, 52.5),
        ("load", "max_load", 0.51, 0.5, 0.4),
    ],
)
def test_a_number_near_its_limit_does_not_come_and_go(
    reading: str, name: str, unwell: float, limit: float, again: float
) -> None:
    assert judge(ALL, like(**{reading: limit})) == ()
    assert [each.name for each in judge(ALL, like(**{reading: unwell}))] == [name]
    between = (limit + again) / 2
    for value, met in ((limit, False), (between, False), (again, True)):
        assert (judge(ALL, like(**{reading: value}), {name}) == ()) is met
    assert judge(ALL, like(**{reading: between})) == ()


@pytest.mark.parametrize(
    ("window", "inside", "outside"),
    [
        ("22:00-06:00", (22 * 60, 0, 5 * 60 + 59), (6 * 60, 12 * 60, 22 * 60 - 1)),
        ("01:30-02:00", (90, 119), (89, 120)),
        ("00:00-00:00", (0, 1439), ()),
    ],
)
def test_a_window_holds_its_first_minute_and_not_its_last_also_over_midnight(
    window: str, inside: tuple[int, ...], outside: tuple[int, ...]
) -> None:
    asked = Conditions(windows=(window,))
    assert [unmet(asked, like(minute=minute)) for minute in inside] == [()] * len(inside)
    assert all(unmet(asked, like(minute=minute)) for minute in outside)
    both = Conditions(windows=(window, "12:00-13:00"))
    assert unmet(both, like(minute=12 * 60)) == ()


def test_a_clock_that_was_never_set_counts_as_outside_unless_the_policy_says_otherwise() -> None:
    assert unmet(Conditions(windows=("00:00-00:00",)), like(minute=None))
    assert not unmet(Conditions(windows=("01:00-02:00",), windows_without_clock=True), like(minute=None))
    assert unmet(Conditions(windows=("01:00-02:00",), windows_without_clock=True), like(minute=600))


def test_the_digest_names_the_policy_whatever_way_it_came() -> None:
    packed = msgspec.msgpack.encode(ALL)
    assert eligibility.digest(msgspec.msgpack.decode(packed, type=Conditions)) == eligibility.digest(ALL)
    spelled = msgspec.convert({"charging": True, "on_lost": "pa" + "use", "pause_limit": 600}, Conditions)
    assert eligibility.digest(spelled) == eligibility.digest(Conditions(charging=True)) == CHARGING
    assert eligibility.digest(None) == ""
    others = [alone(name) for name in UNWELL]
    assert len({eligibility.digest(each) for each in others}) == len(others)
    assert all(len(eligibility.digest(each)) == eligibility.DIGEST_CHARACTERS for each in others)


def test_a_condition_of_tomorrow_changes_what_a_device_of_today_names() -> None:
    tomorrow = msgspec.convert({"charging": True, "no_rain": True}, Conditions)
    assert tomorrow == Conditions(charging=True)  # so its digest is not that of the coordinator's policy


NUMBERS = st.floats(-1e12, 1e12)


@given(
    st.builds(
        Readings,
        powered=st.none() | st.booleans(),
        battery=st.none() | NUMBERS,
        temperature=st.none() | NUMBERS,
        throttled=st.none() | st.booleans(),
        metered=st.none() | st.booleans(),
        free_memory_mib=st.none() | NUMBERS,
        free_disk_mib=st.none() | NUMBERS,
        load=st.none() | NUMBERS,
        rested=st.none() | NUMBERS,
        minute=st.none() | st.integers(0, 1439),
    ),
    st.sets(st.sampled_from(sorted(UNWELL))),
)
def test_a_second_look_at_the_same_readings_changes_nothing(readings: Readings, before: set[str]) -> None:
    first = judge(ALL, readings, before)
    again = judge(ALL, readings, {each.name for each in first})
    assert again == first
    assert {each.name for each in judge(ALL, readings)} <= {each.name for each in first}
    assert all(len(each.why) <= 256 for each in first)
