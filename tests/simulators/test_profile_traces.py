"""Traces: their canonical form, the ones that are drawn, files of one's own, and what they amount to."""

from __future__ import annotations

import json
import math
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepfl.errors import ConfigError
from simulators.profiles import (
    ALWAYS,
    AWAY,
    DAY,
    HOUR,
    MONDAY,
    Diurnal,
    Interval,
    Presence,
    Trace,
    always,
    diurnal,
    fleet_traces,
)
from simulators.profiles.spans import poisson, united
from simulators.profiles.trace_file import load_traces, parsed, traces_of, written
from simulators.profiles.trace_picture import picture
from simulators.profiles.trace_statistics import by_hour, statistics
from simulators.profiles.traces_command import main

HEADER = "device,start,end,online,charging,wifi,idle,zone"
ONLINE = Presence(online=True)
QUIET = Diurnal(uses=0, losses=0)

presences = st.builds(Presence, st.booleans(), st.booleans(), st.booleans(), st.booleans())
gaps = st.lists(st.tuples(st.floats(0, 100), st.floats(0.001, 100), presences), max_size=8)


def spread(parts: list[tuple[float, float, Presence]]) -> list[Interval]:
    """Intervals in order, with gaps."""
    at, found = 0.0, []
    for gap, length, presence in parts:
        start = at + gap
        at = start + length
        found.append(Interval(start, at, presence))
    return [each for each in found if each.start < each.end]


def canonical(trace: Trace) -> bool:
    """Whether the intervals fill the time from 0 on, each once, and no two neighbours are alike."""
    ends = [0.0, *(each.end for each in trace.intervals)]
    pairs = zip(trace.intervals, trace.intervals[1:], strict=False)
    return (
        all(each.start == end for each, end in zip(trace.intervals, ends, strict=False))
        and all(each.start < each.end for each in trace.intervals)
        and all(a.presence != b.presence for a, b in pairs)
    )


@given(gaps, st.floats(1, 900))
def test_any_intervals_become_one_trace_that_tells_the_same(
    parts: list[tuple[float, float, Presence]], horizon: float
) -> None:
    intervals = spread(parts)
    trace = Trace.of(intervals, horizon)
    assert canonical(trace)
    assert trace.horizon == horizon
    for at in [each.start for each in intervals] + [each.end for each in intervals] + [0.0]:
        if at < horizon:
            inside = [each.presence for each in intervals if each.start <= at < each.end]
            assert trace.at(at) == (inside[0] if inside else AWAY)


@given(gaps, st.floats(0, 900), st.floats(0, 900))
def test_a_part_of_a_trace_is_the_same_as_the_whole(
    parts: list[tuple[float, float, Presence]], start: float, end: float
) -> None:
    trace = Trace.of(spread(parts), 800.0)
    found = list(trace.between(start, end))
    assert math.isclose(math.fsum(each.end - each.start for each in found), max(end - start, 0.0), abs_tol=1e-9)
    assert all(trace.at(each.start) == each.presence for each in found)


def test_overlaps_and_hopeless_horizons_are_refused() -> None:
    with pytest.raises(ConfigError, match="the interval 5 to 9 overlaps"):
        Trace.of([Interval(0, 6, ALWAYS), Interval(5, 9, AWAY)], 10)
    with pytest.raises(ConfigError, match="the interval 6 to 6 overlaps the one before it, or is empty"):
        Trace.of([Interval(6, 6, ALWAYS)], 10)
    for horizon in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ConfigError, match="is no horizon"):
            Trace.of([], horizon)
    with pytest.raises(ConfigError, match="do not fill the time"):
        Trace((Interval(0, 1, ALWAYS), Interval(1, 2, ALWAYS)))


def test_always_is_one_interval_and_goes_on_after_the_horizon() -> None:
    trace = always(DAY)
    assert trace.intervals == (Interval(0.0, DAY, ALWAYS),)
    assert trace.at(1e9) == trace.at(-1.0) == ALWAYS
    assert list(trace.between(2 * DAY, math.inf)) == [Interval(2 * DAY, math.inf, ALWAYS)]


habits = st.builds(
    Diurnal,
    night=st.floats(18, 24),
    morning=st.floats(0, 10),
    spread=st.floats(0, 3),
    charged=st.floats(0, 1),
    plugs=st.floats(0, 5),
    uses=st.floats(0, 20),
    home=st.floats(0, 1),
    away_hours=st.floats(0, 24),
    losses=st.floats(0, 5),
    zones=st.just((-5 * HOUR, 0.0, 5.5 * HOUR)),
)


@settings(deadline=None, max_examples=40)
@given(habits, st.integers(0, 1 << 62), st.floats(0.1, 3), st.sampled_from([0.0, MONDAY, MONDAY + 12345.0]))
def test_drawn_traces_are_canonical_the_same_again_and_begin_alike(
    people: Diurnal, seed: int, days: float, epoch: float
) -> None:
    trace = diurnal(people, "phone-1", seed, days * DAY, epoch=epoch)
    assert canonical(trace)
    assert trace.zone in people.zones
    assert trace == diurnal(people, "phone-1", seed, days * DAY, epoch=epoch)
    longer = diurnal(people, "phone-1", seed, days * DAY + 2 * DAY, epoch=epoch)
    assert Trace.of(longer.intervals, days * DAY, longer.zone) == trace


def test_devices_and_seeds_are_different_people() -> None:
    traces = {(device, seed): diurnal(Diurnal(), device, seed, DAY) for device in ("a", "b") for seed in (1, 2)}
    assert len(set(traces.values())) == 4


def test_rates_of_zero_mean_never() -> None:
    nobody = Diurnal(charged=0, plugs=0, uses=0, losses=0, away_hours=0, home=1)
    trace = diurnal(nobody, "a", 1, 5 * DAY)
    assert trace.intervals == (Interval(0.0, 5 * DAY, Presence(online=True, wifi=True, idle=True)),)
    assert not any(each.presence.wifi for each in diurnal(Diurnal(home=0), "a", 1, 2 * DAY).intervals)


def test_night_is_local() -> None:
    people = Diurnal(charged=1, plugs=0, spread=0, uses=0, losses=0, home=1, night=22, morning=6)
    trace = diurnal(people, "a", 1, 3 * DAY, zone=-5 * HOUR)
    charges = [each.presence.charging for each in (trace.intervals)]
    assert any(charges)
    for hour in range(3 * 24):
        local = (hour - 5 + 0.5) % 24
        assert trace.at(HOUR * (hour + 0.5)).charging == (local >= 22 or local < 6), hour


def test_what_follows_from_published_habits_is_like_what_google_saw() -> None:
    """More of a fleet is ready by night; they saw 4 times as many, of those that pace steering let in."""
    us = (-5 * HOUR,) * 5 + (-6 * HOUR,) * 3 + (-8 * HOUR,) * 2
    people = Diurnal(zones=us, uses=20)
    found = statistics(list(fleet_traces([str(each) for each in range(150)], 3, 4 * DAY, people).values()))
    shares = found.by_hour["ready"]
    assert 4 < found.contrast < 9
    assert shares.index(max(shares)) in range(6, 12)  # UTC: night in the United States
    night = statistics(list(fleet_traces([str(each) for each in range(150)], 3, 4 * DAY, QUIET).values()), local=True)
    assert night.by_hour["charging"][3] == pytest.approx(0.64, abs=0.06)


def test_impossible_habits_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"diurnal, charged: 1\.2 is impossible. Give 0 to 1"):
        Diurnal(charged=1.2)
    with pytest.raises(ConfigError, match="diurnal, plugs: -1 is impossible"):
        Diurnal(plugs=-1)
    with pytest.raises(ConfigError, match="the night begins before the morning"):
        Diurnal(night=5, morning=7)
    with pytest.raises(ConfigError, match="there is no time zone"):
        Diurnal(zones=())


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), max_size=12), st.floats(0, 100))
def test_united_spans_are_disjoint_and_cover_the_same(pairs: list[tuple[float, float]], at: float) -> None:
    found = united(pairs)
    edges = [edge for span in found for edge in span]
    assert edges == sorted(set(edges))
    assert (at in found) == any(start <= at < end for start, end in pairs)


def test_poisson_spans_come_at_their_rate() -> None:
    found = poisson(np.random.default_rng(5), 4.0, (60.0, 60.0), 500 * DAY)
    assert len(found.starts) == pytest.approx(2000, rel=0.08)
    assert not poisson(np.random.default_rng(5), 0.0, (60.0, 60.0), 500 * DAY).starts


def test_shares_by_hour_are_those_of_a_look_every_minute() -> None:
    traces = [diurnal(Diurnal(zones=(2 * HOUR,)), str(each), 7, 2 * DAY) for each in range(5)]
    for local in (False, True):
        exact = by_hour(traces, lambda now: now.charging, local=local)
        for hour in range(24):
            first = (hour - 2 * local) % 24 * HOUR
            looks = [
                trace.at(day * DAY + first + 60.0 * minute + 30.0).charging
                for trace in traces
                for day in range(2)
                for minute in range(60)
            ]
            assert exact[hour] == pytest.approx(sum(looks) / len(looks), abs=0.02)


def test_statistics_of_a_known_fleet() -> None:
    half = Trace.of([Interval(0, 12 * HOUR, ALWAYS), Interval(12 * HOUR, DAY, ONLINE)], DAY)
    found = statistics([half, always(DAY), Trace.of([], DAY)])
    assert found.by_hour["ready"] == (2 / 3,) * 12 + (1 / 3,) * 12
    assert found.by_hour["online"] == (2 / 3,) * 24
    assert (found.contrast, found.stretch, found.never, found.devices) == (2.0, 18 * HOUR, 1, 3)
    assert statistics([Trace.of([], DAY)]).contrast == math.inf


def test_a_file_gives_traces_with_gaps_and_zones() -> None:
    lines = [HEADER, "a,0,10,1,1,1,1,+05:30", "b,0,5,1,0,0,1,-08:00", "a,20,30,yes,no,TRUE,0,+05:30"]
    traces = parsed(lines, "t.csv")
    assert traces["a"].intervals == (
        Interval(0, 10, ALWAYS),
        Interval(10, 20, AWAY),
        Interval(20, 30, Presence(online=True, wifi=True)),
    )
    assert (traces["a"].zone, traces["b"].zone, traces["b"].horizon) == (19800.0, -28800.0, 30.0)
    short = parsed(["device,start,end,charging,wifi,idle", "a,0,10,1,1,1"], "t.csv", 60.0)
    assert (short["a"].at(5), short["a"].at(50), short["a"].horizon) == (ALWAYS, AWAY, 60.0)


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        ([], "line 1: it lacks the column 'device'"),
        ([HEADER], "it has no line of a device"),
        (["device,start,end,charging,wifi"], "line 1: it lacks the column 'idle'"),
        ([HEADER + ",speed"], "line 1: there is no column 'speed'"),
        ([HEADER, "a,0,10,1,1,1,1,+00:00", "a,5,20,1,1,1,1"], "line 3: a is said twice what it does at 5 s"),
        ([HEADER, "a,0,10,1,1,1,maybe"], "line 2: idle is 'maybe'. Give 1 or 0"),
        ([HEADER, "a,0,10,1,1"], "line 2: wifi is ''"),
        ([HEADER, "a,zero,10,1,1,1,1"], "line 2: start is 'zero', which is no number of seconds"),
        ([HEADER, "a,nan,10,1,1,1,1"], "line 2: start is 'nan'"),
        ([HEADER, "a,10,10,1,1,1,1"], "line 2: 10 to 10 is no span of time"),
        ([HEADER, "a,0,1e300,1,1,1,1"], "line 2: 0 to 1e.300 is no span of time"),
        ([HEADER, "x" * 200_000 + ",0,10,1,1,1,1"], "line 2: it is no CSV"),
        ([HEADER, "a,-1,10,1,1,1,1"], "line 2: -1 to 10 is no span of time"),
        ([HEADER, ",0,10,1,1,1,1"], "line 2: device is empty"),
        ([HEADER, "a,0,10,1,1,1,1,GMT"], "line 2: zone is 'GMT'"),
        ([HEADER, "a,0,10,1,1,1,1,+15:00"], "line 2: zone is '.15:00'"),
        ([HEADER, "a,0,9,1,1,1,1,+01:00", "a,9,10,1,1,1,1,+02:00"], "line 3: a has two time zones"),
        ([HEADER, "a,0,10,1,1,1,1,+00:00,7"], "line 2: it has more values than columns"),
    ],
)
def test_a_wrong_file_is_refused_with_the_line(lines: list[str], wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        parsed(lines, "t.csv")


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 1000))
def test_what_is_written_is_read_again(seed: int) -> None:
    zones = Diurnal(zones=(-3.5 * HOUR, 0.0, 9 * HOUR), uses=5)
    traces = {name: diurnal(zones, name, seed, DAY) for name in ("a", "b")}
    assert parsed(written(traces), "t.csv") == traces


def test_a_file_is_dealt_out_by_name_or_in_turn(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"{HEADER}\na,0,10,1,1,1,1\nb,0,10,1,0,1,1\n", "utf-8")
    a, b = load_traces(path, DAY).values()
    assert traces_of(str(path), ["b", "a"], 0, DAY) == {"b": b, "a": a}
    assert list(traces_of(str(path), ["x", "y", "z"], 0, DAY).values()) == [a, b, a]
    with pytest.raises(ConfigError, match="it has no line for z, but for others"):
        traces_of(str(path), ["a", "z"], 0, DAY)
    with pytest.raises(ConfigError, match="the traces cannot be read"):
        traces_of(str(tmp_path / "none.csv"), ["a"], 0, DAY)
    assert traces_of("always", ["a"], 0, DAY) == {"a": always(DAY)}
    assert traces_of("diurnal", ["a"], 4, DAY) == {"a": diurnal(Diurnal(), "a", 4, DAY)}


def test_the_picture_has_a_curve_for_each_measure() -> None:
    found = statistics([always(DAY), Trace.of([Interval(0, 6 * HOUR, ONLINE)], DAY)])
    drawn = picture(found, "two devices & a <day>")
    curves = ET.fromstring(drawn).findall("{http://www.w3.org/2000/svg}polyline")  # noqa: S314  we drew it
    assert len(curves) == len(found.by_hour)
    assert all(len((curve.get("points") or "").split()) == 48 for curve in curves)
    assert "two devices &amp; a &lt;day&gt;" in drawn


def test_the_command_tells_draws_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    svg, file = tmp_path / "t.svg", tmp_path / "t.csv"
    assert main(["--devices", "4", "--days", "1", "--seed", "3", "--json", "--svg", str(svg), "--csv", str(file)]) == 0
    read = json.loads(capsys.readouterr().out)
    assert (read["devices"], read["seed"], len(read["by_hour"]["ready"])) == (4, 3, 24)
    assert svg.read_text("utf-8").startswith("<svg")
    assert main([str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["by_hour"] == read["by_hour"]
    assert main(["always", "--devices", "2"]) == 0
    assert "1 times as many in the best hour as in the worst" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="--devices, --days"):
        main(["--devices", "0"])
    with pytest.raises(ConfigError, match="too many"):
        main(["--devices", "1", "--days", "1e9"])
    with pytest.raises(ConfigError, match="it cannot be written"):
        main(["always", "--svg", str(tmp_path / "none" / "t.svg")])
