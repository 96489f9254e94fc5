"""Traces from a CSV file of the user's own, and traces by the words of a command line or scenario.

One line is one interval of one device; what no line covers is offline::

    device,start,end,online,charging,wifi,idle,zone
    phone-1,0,25200,1,1,1,1,+01:00
    phone-1,25200,64800,1,0,0,1,+01:00

``start`` and ``end`` are seconds from the start of the emulation, in order for each device; ``online`` may be left out
(1), and so may ``zone`` (+00:00): hours and minutes east of UTC of the device's local time, the same on all its lines.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from edgepfl.errors import ConfigError
from simulators.profiles.trace import DAY, HOUR, MONDAY, Interval, Presence, Trace
from simulators.profiles.traces import Diurnal, fleet_traces

NEEDED = ("device", "start", "end", "charging", "wifi", "idle")
OPTIONAL = ("online", "zone")
MOST = 3660 * DAY
"""Seconds that a trace may cover: ten years."""
_YES, _NO = {"1", "true", "yes"}, {"0", "false", "no"}
_ZONE = re.compile(r"([+-])(\d\d):([0-5]\d)")

Row = Mapping[str, str]


def load_traces(path: Path, horizon: float | None = None) -> dict[str, Trace]:
    """The traces of a CSV file, by device, in the file's order.

    Args:
        path: the file's, in UTF-8.
        horizon: seconds that each covers; None: up to the last end of any.

    Raises:
        ConfigError: it cannot be read, or a line is wrong; the error names the line.
    """
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the traces cannot be read ({error})", where=str(path), remedy="Give a CSV file") from error
    return parsed(text.splitlines(), str(path), horizon)


def parsed(lines: Iterable[str], where: str, horizon: float | None = None) -> dict[str, Trace]:
    """The traces of CSV lines; ``where`` is their name in errors.

    Raises:
        ConfigError: as :func:`load_traces`.
    """
    intervals: dict[str, list[Interval]] = {}
    zones: dict[str, float] = {}
    for number, row in _rows(lines, where):
        place = f"{where}, line {number}"
        device = _text(row, "device", place)
        own = intervals.setdefault(device, [])
        interval = _interval(row, place)
        if own and interval.start < own[-1].end:
            raise _wrong(f"{device} is said twice what it does at {interval.start:g} s", place, "Give lines in order")
        zone = _zone(row.get("zone") or "+00:00", place)
        if zones.setdefault(device, zone) != zone:
            raise _wrong(f"{device} has two time zones", place, "Give it the same on all its lines")
        own.append(interval)
    if not intervals:
        raise ConfigError("it has no line of a device", where=where, remedy="See docs/profiles.md for the columns")
    until = horizon or max(own[-1].end for own in intervals.values())
    return {device: Trace.of(own, until, zones[device]) for device, own in intervals.items()}


def traces_of(
    source: str, devices: Sequence[str], seed: int, horizon: float, *, epoch: float = MONDAY
) -> dict[str, Trace]:
    """Each device's trace, from a word.

    Args:
        source: ``"always"``, ``"diurnal"``, or the path of a CSV file.  A device that the file names gets its own
            trace; if it names none of them, its traces are dealt out in turn.
        devices: their names.
        seed: of the emulation.
        horizon: seconds.
        epoch: Unix time of the emulation's start.

    Raises:
        ConfigError: the file cannot be read or is wrong, or it names some of the devices only.
    """
    if source in {"always", "diurnal"}:
        return fleet_traces(devices, seed, horizon, Diurnal() if source == "diurnal" else None, epoch=epoch)
    known = load_traces(Path(source), horizon)
    missing = [device for device in devices if device not in known]
    if len(missing) == len(devices):
        own = list(known.values())
        return {device: own[number % len(own)] for number, device in enumerate(devices)}
    if missing:
        raise ConfigError(
            f"it has no line for {missing[0]}, but for others",
            where=source,
            remedy="Give lines for all devices, or for none of them by name and they are dealt out in turn",
        )
    return {device: known[device] for device in devices}


def written(traces: Mapping[str, Trace]) -> Iterator[str]:
    """The lines of a CSV file, without line ends; :func:`parsed` gives the same traces."""
    yield "device,start,end,online,charging,wifi,idle,zone"
    for device, trace in traces.items():
        sign, minutes = "-" if trace.zone < 0 else "+", round(abs(trace.zone) / 60)
        zone = f"{sign}{minutes // 60:02}:{minutes % 60:02}"
        for each in trace.intervals:
            now = each.presence
            flags = (str(int(flag)) for flag in (now.online, now.charging, now.wifi, now.idle))
            yield ",".join((device, repr(each.start), repr(each.end), *flags, zone))


def _rows(lines: Iterable[str], where: str) -> Iterator[tuple[int, Row]]:
    reader = csv.DictReader(lines, restkey="", restval="", skipinitialspace=True)
    columns = reader.fieldnames or ()
    lacking = [name for name in NEEDED if name not in columns]
    unknown = [name for name in columns if name not in {*NEEDED, *OPTIONAL}]
    if lacking or unknown:
        wrong = f"it lacks the column {lacking[0]!r}" if lacking else f"there is no column {unknown[0]!r}"
        raise _wrong(wrong, f"{where}, line 1", f"The columns are {', '.join((*NEEDED, *OPTIONAL))}")
    for row in _read(reader, where):
        if row.get(""):
            raise _wrong("it has more values than columns", f"{where}, line {reader.line_num}", "Remove some")
        yield reader.line_num, row


def _read(reader: csv.DictReader[str], where: str) -> Iterator[Row]:
    try:
        yield from reader
    except csv.Error as error:
        raise _wrong(f"it is no CSV ({error})", f"{where}, line {reader.line_num + 1}", "Mend the line") from error


def _interval(row: Row, place: str) -> Interval:
    start, end = (_seconds(row, name, place) for name in ("start", "end"))
    if not 0 <= start < end <= MOST:
        remedy = f"Give seconds, the start first, and at most {MOST:g}"
        raise _wrong(f"{start:g} to {end:g} is no span of time", place, remedy)
    online, charging, wifi, idle = (_flag(row, name, place) for name in ("online", "charging", "wifi", "idle"))
    return Interval(start, end, Presence(online, charging, wifi, idle))


def _text(row: Row, name: str, place: str) -> str:
    if not row[name].strip():
        raise _wrong(f"{name} is empty", place, "Fill it in")
    return row[name].strip()


def _seconds(row: Row, name: str, place: str) -> float:
    text = _text(row, name, place)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise _wrong(f"{name} is {text!r}, which is no number of seconds", place, "Give seconds, such as 3600")
    return value


def _flag(row: Row, name: str, place: str) -> bool:
    text = (row.get(name) or "").strip().lower()
    if name == "online" and not text:
        return True
    if text not in _YES | _NO:
        raise _wrong(f"{name} is {text!r}", place, "Give 1 or 0")
    return text in _YES


def _zone(text: str, place: str) -> float:
    found = _ZONE.fullmatch(text.strip())
    hours = int(found[2]) + int(found[3]) / 60 if found else math.inf
    if found is None or hours > 14:  # noqa: PLR2004  no place on Earth is further from UTC
        raise _wrong(f"zone is {text!r}", place, "Give hours and minutes east of UTC, such as +05:30")
    return (-HOUR if found[1] == "-" else HOUR) * hours


def _wrong(what: str, where: str, remedy: str) -> ConfigError:
    return ConfigError(what, where=where, remedy=remedy)
