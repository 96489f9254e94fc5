"""One device's life: what happens, in which order, and what its sensors say of it."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepfl.eligibility import Conditions, unmet
from edgepfl.errors import ConfigError
from simulators.profiles import (
    CALM,
    DAY,
    HOUR,
    MONDAY,
    Activity,
    Churn,
    Diurnal,
    Interval,
    Kind,
    Life,
    Presence,
    Situation,
    Trace,
    always,
    diurnal,
    fleet_lives,
    full,
    lived,
    profile,
)
from simulators.profiles.lives import churn_of, lives

PHONE, BOARD = profile("phone-mid"), profile("pi-zero-2")
ROUGH = Churn(
    joins=(0.0, 6 * HOUR), leaves=0.3, reboots=3, cuts=6, fills=2, skew=90, unset=0.5, full_for=(600.0, 2 * HOUR)
)

spans = st.tuples(st.floats(0, 5000), st.floats(0, 5000)).map(lambda pair: (min(pair), max(pair)))
churns = st.builds(
    Churn,
    joins=spans,
    leaves=st.floats(0, 3),
    reboots=st.floats(0, 20),
    cuts=st.floats(0, 20),
    cut_for=spans,
    fills=st.floats(0, 10),
    full_for=spans,
    skew=st.floats(0, 1000),
    unset=st.floats(0, 1),
    set_after=spans,
)


def phone(seed: int, churn: Churn, days: float = 1.0) -> Life:
    trace = diurnal(Diurnal(uses=4), "phone-1", seed, days * DAY)
    return Life(PHONE, trace, churn, seed, "phone-1")


def replayed(life: Life) -> Situation:
    """What a driver knows that only listens: the situation of the last happening."""
    last = Situation()
    for each in life.happenings():
        last = each.now
    return last


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 1 << 62), churns)
def test_happenings_come_in_order_alternate_and_are_the_same_again(seed: int, churn: Churn) -> None:
    life = phone(seed, churn)
    found = list(life.happenings())
    order = list(Kind)
    keys = [(each.at, order.index(each.kind)) for each in found]
    assert keys == sorted(set(keys))
    for on, off in ((Kind.ONLINE, Kind.OFFLINE), (Kind.FULL, Kind.ROOM), (Kind.DOWN, Kind.UP)):
        kinds = [each.kind for each in found if each.kind in {on, off}]
        assert all(a != b for a, b in pairwise(kinds)), (on, kinds)
    assert [each.kind for each in found].count(Kind.JOIN) == 1
    assert [each.kind for each in found].count(Kind.LEAVE) == (life.leaves < math.inf)
    assert found == list(phone(seed, churn).happenings())


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 1 << 62), churns, st.lists(st.floats(0, 1), max_size=8))
def test_who_listens_knows_what_who_looks_sees(seed: int, churn: Churn, looks: list[float]) -> None:
    life = phone(seed, churn)
    found = list(life.happenings())
    for part in looks:
        now = part * DAY
        known = [each.now for each in found if each.at <= now]
        if known and known[-1].member:
            assert known[-1] == life.at(now)
        else:
            assert not life.at(now).member
    assert all(each.now == life.at(each.at) for each in found)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1 << 62), churns, st.lists(st.floats(0, 1), max_size=4))
def test_parts_of_a_life_make_the_whole(seed: int, churn: Churn, parts: list[float]) -> None:
    life = phone(seed, churn)
    whole = list(life.happenings())
    just_then = [whole[int(part * (len(whole) - 1))].at for part in parts]
    edges = [0.0, *sorted([*just_then, *(part * DAY for part in parts)]), math.inf]
    assert [each for a, b in pairwise(edges) for each in life.happenings(a, b)] == whole


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 1 << 62), churns)
def test_a_longer_horizon_only_adds(seed: int, churn: Churn) -> None:
    short, long = phone(seed, churn, days=1.0), phone(seed, churn, days=2.0)
    assert list(long.happenings(0.0, DAY)) == list(short.happenings(0.0, DAY))


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1 << 62), churns)
def test_nobody_is_online_who_does_not_run_or_has_left(seed: int, churn: Churn) -> None:
    for each in phone(seed, churn).happenings():
        assert each.now.running or not each.now.online
        assert each.now.member or not each.now.running
        assert each.now.presence.online or not each.now.online


def test_an_always_calm_life_is_a_join() -> None:
    life = Life(profile("host"), always(DAY))
    assert [(each.at, each.kind) for each in life.happenings()] == [(0.0, Kind.JOIN), (0.0, Kind.ONLINE)]
    assert replayed(life) == life.at(5 * DAY)
    assert (life.joins, life.leaves, life.skew) == (0.0, math.inf, 0.0)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 1 << 62))
def test_a_calm_life_changes_only_with_its_trace(seed: int) -> None:
    life = phone(seed, CALM)
    starts = {each.start for each in life.trace.intervals}
    seen = {Kind.JOIN, Kind.ONLINE, Kind.OFFLINE, Kind.CHARGING, Kind.LINK, Kind.USE}
    assert all(each.at in starts and each.kind in seen for each in life.happenings())


def test_a_rough_life_has_all_of_it() -> None:
    kinds = {each.kind for seed in range(12) for each in phone(seed, ROUGH, days=2.0).happenings()}
    assert kinds == set(Kind)


def test_other_devices_have_other_lives() -> None:
    trace = always(5 * DAY)
    found = [list(Life(BOARD, trace, ROUGH, 7, device).happenings()) for device in ("a", "b")]
    assert found[0] != found[1]


def test_a_reboot_takes_the_boards_time() -> None:
    life = Life(BOARD, always(5 * DAY), Churn(reboots=2), 3)
    found = [each for each in life.happenings() if each.kind in {Kind.DOWN, Kind.UP}]
    pairs = list(zip(found[::2], found[1::2], strict=True))
    assert len(pairs) > 3
    for down, up in pairs:
        assert up.at - down.at == pytest.approx(BOARD.boot_seconds)
        assert not life.at((down.at + up.at) / 2).online
    host = Life(profile("host"), always(5 * DAY), Churn(reboots=2), 3)
    assert any(each.kind is Kind.DOWN for each in host.happenings())  # it names no time, and takes some


def test_a_clock_that_is_not_set_stands_at_1970_until_the_network_sets_it() -> None:
    offline = Trace.of([Interval(100.0, DAY, Presence(online=True))], DAY)
    life = Life(BOARD, offline, Churn(unset=1.0, set_after=(30.0, 30.0)), 1)
    assert (life.wall(0.0), life.wall(129.0), life.minute(129.0)) == (0.0, 129.0, None)
    assert (life.wall(130.0), life.minute(130.0)) == (MONDAY + 130.0, 2)
    assert [(each.at, each.kind) for each in life.happenings() if each.kind is Kind.CLOCK] == [(130.0, Kind.CLOCK)]
    lost = Life(BOARD, Trace.of([], DAY), Churn(unset=1.0), 1)
    assert (lost.wall(DAY), lost.minute(DAY), lost.at(DAY).clock) == (DAY, None, False)


def test_a_network_that_fails_does_not_set_the_clock() -> None:
    churn = Churn(unset=1.0, cuts=2000.0, cut_for=(5000.0, 5000.0), set_after=(0.0, 0.0))
    life = Life(BOARD, always(DAY), churn, 1)
    cut = next(each.at for each in life.happenings() if each.kind is Kind.OFFLINE)
    assert life.minute(cut + 1.0) is not None  # set at once, as it was online at the start
    dark = Life(BOARD, Trace.of([Interval(cut + 1.0, DAY, Presence(online=True))], DAY), churn, 1)
    assert dark.minute(cut + 4000.0) is None
    assert dark.minute(cut + 5001.0) is not None


def test_a_clock_is_wrong_by_its_skew() -> None:
    found = [Life(PHONE, always(DAY), Churn(skew=600.0), seed).skew for seed in range(200)]
    assert all(abs(each) <= 600 for each in found)
    assert min(found) < -400
    assert max(found) > 400
    life = Life(PHONE, always(DAY, zone=-2 * HOUR), Churn(skew=600.0), 5)
    assert life.wall(1000.0) == MONDAY + 1000.0 + life.skew
    assert life.minute(1000.0) == math.floor((DAY - 2 * HOUR + 1000.0 + life.skew) / 60) % 1440


def test_leaving_comes_at_its_rate() -> None:
    left = [Life(PHONE, always(DAY), Churn(leaves=0.5), 1, str(each)).leaves < DAY for each in range(2000)]
    assert sum(left) / len(left) == pytest.approx(1 - math.exp(-0.5), abs=0.03)


def test_eligibility_sees_battery_charger_link_disk_and_time() -> None:
    plugged = Interval(0.0, HOUR, Presence(online=True, charging=True, wifi=True, idle=True))
    out = Interval(HOUR, DAY, Presence(online=True, idle=False))
    life = Life(PHONE, Trace.of([plugged, out], DAY), CALM, 1)
    asks = Conditions(
        charging=True,
        min_battery=0.5,
        unmetered=True,
        wifi=True,
        max_load=0.5,
        min_free_memory_mib=900,
        min_free_disk_mib=1000,
        windows=("00:00-02:00",),
    )
    assert unmet(asks, life.readings(10.0)) == ()
    names = unmet(asks, life.readings(20 * HOUR))
    assert [each.split(",")[0] for each in names] == [
        "not charging",
        "battery at 0 %",
        "its connection is metered",
        "connected by cellular",
        "load 1.00 for each core",
        "it is 20:00 there",
    ]
    more = Conditions(min_free_memory_mib=2000)
    assert unmet(more, life.readings(10.0)) == ("1000 MiB of memory free, at least 2000 needed",)


def test_work_shows_in_the_readings_through_the_battery() -> None:
    life = Life(PHONE, Trace.of([Interval(0, DAY, Presence(online=True, idle=True))], DAY))
    tired = lived(full(PHONE), PHONE, life.trace, 2 * HOUR, Activity.TRAINING)
    assert (life.readings(2 * HOUR, tired).battery or 1) < (life.readings(2 * HOUR).battery or 0)
    assert life.readings(2 * HOUR, tired, examples=7, rested=3.0).examples == 7


def test_a_full_disk_and_a_lost_network_are_seen() -> None:
    life = Life(BOARD, always(20 * DAY), Churn(fills=2, cuts=2), 4)
    at = {each.kind: each.at for each in life.happenings()}
    assert life.readings(at[Kind.FULL]).free_disk_mib == 0.0
    assert life.readings(at[Kind.ROOM]).free_disk_mib == BOARD.storage_mib
    lost = life.readings(at[Kind.OFFLINE])
    assert (lost.link, lost.metered) == (None, None)


def test_a_board_on_mains_counts_as_charging_and_the_host_has_room_for_all() -> None:
    out = Trace.of([Interval(0, DAY, Presence(online=True))], DAY)
    assert unmet(Conditions(charging=True, min_battery=1.0), Life(BOARD, out).readings(5.0)) == ()
    asks = Conditions(min_free_memory_mib=1 << 20, min_free_disk_mib=1 << 20)
    assert unmet(asks, Life(profile("host"), out).readings(5.0)) == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("leaves", -1.0),
        ("cuts", math.nan),
        ("reboots", math.inf),
        ("unset", 1.5),
        ("cut_for", (5.0, 1.0)),
        ("joins", (-1.0, 1.0)),
    ],
)
def test_impossible_churn_is_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"churn, {name}: .* is impossible"):
        Churn(**{name: value})  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize("name", ["leaves", "reboots", "cuts", "fills"])
def test_a_rate_that_would_make_events_without_end_is_refused(name: str) -> None:
    assert getattr(Churn(**{name: 86400.0}), name) == 86400  # type: ignore[arg-type]  # by name
    with pytest.raises(
        ConfigError, match=rf"churn, {name}: 1e\+09 a day is more than one a second. Give at most 86400"
    ):
        Churn(**{name: 1e9})  # type: ignore[arg-type]  # likewise


def test_churn_from_a_table() -> None:
    found = churn_of({"joins": 600, "cuts": 2, "cut_for": [1, 9], "full_for": 60})
    assert found == Churn(joins=(0.0, 600.0), cuts=2.0, cut_for=(1.0, 9.0), full_for=(60.0, 60.0))
    assert churn_of({}) == CALM
    with pytest.raises(ConfigError, match=r"churn: there is no setting 'storms'\. The settings are joins, leaves"):
        churn_of({"storms": 1})
    with pytest.raises(ConfigError, match=r"churn, cut_for: .* is impossible. Give two numbers"):
        churn_of({"cut_for": [1, 2, 3]})
    with pytest.raises(ConfigError, match=r"churn, cuts: .* is impossible. Give a number"):
        churn_of({"cuts": [1, 2]})


def test_a_fleet_gets_profiles_traces_and_lives() -> None:
    devices = [f"device-{number}" for number in range(10)]
    traces = {device: always(DAY) for device in devices}
    found = lives(devices, traces, 3, shares={"pi-4": 3, "phone-low": 2}, churn=ROUGH)
    assert sorted(life.profile.name for life in found.values()) == ["phone-low"] * 4 + ["pi-4"] * 6
    assert len({life.joins for life in found.values()}) == 10
    assert found == lives(devices, traces, 3, shares={"pi-4": 3, "phone-low": 2}, churn=ROUGH)
    assert {life.profile.name for life in lives(devices, traces, 3).values()} == {"host"}
    with pytest.raises(ConfigError, match="there is no device profile 'pi-9'"):
        lives(devices, traces, 3, shares={"pi-9": 1})


def test_boards_do_not_follow_peoples_days() -> None:
    devices = [f"device-{number}" for number in range(10)]
    found = fleet_lives("diurnal", devices, 3, DAY, shares={"pi-4": 1, "phone-low": 1})
    for device, life in found.items():
        usual = diurnal(Diurnal(), device, 3, DAY) if life.profile.name == "phone-low" else always(DAY)
        assert life.trace == usual, device
    traces = {device: always(DAY) for device in devices}
    assert fleet_lives("always", devices, 3, DAY, churn=ROUGH) == lives(devices, traces, 3, churn=ROUGH)


def test_a_file_holds_for_all_devices(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("device,start,end,charging,wifi,idle\na,0,60,0,1,1\n", "utf-8")
    life = fleet_lives(str(path), ["device-1"], 3, DAY, shares={"pi-4": 1})["device-1"]
    assert life.trace.intervals[0] == Interval(0.0, 60.0, Presence(online=True, wifi=True, idle=True))
