"""``edgepfl traces``: who of a fleet is there at which hour."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from edgepfl.errors import ConfigError
from simulators.profiles.trace import DAY, Trace
from simulators.profiles.trace_file import MOST, load_traces, traces_of, written
from simulators.profiles.trace_picture import picture
from simulators.profiles.trace_statistics import HOURS, TraceStatistics, statistics

_EPILOG = """\
examples:
  edgepfl traces                                     1000 people's phones over a week, by hour of the day
  edgepfl traces --svg traces.svg                    the same as a picture
  edgepfl traces --devices 20 --days 1 --csv t.csv   as a file, to look at and to change
  edgepfl traces t.csv --local                       of a file, by each device's own clock

A device is ready that is online, charging, on Wi-Fi and idle.  docs/profiles.md tells the columns of a file.
"""


def main(arguments: list[str]) -> int:
    """Tell of traces, and draw or write them.

    Raises:
        ConfigError: a value is impossible, or a file cannot be read or written.
    """
    words = _parser().parse_args(arguments)
    traces = _traces(words)
    found = statistics(list(traces.values()), local=words.local)
    if words.csv:
        _write(words.csv, "".join(f"{line}\n" for line in written(traces)))
    if words.svg:
        title = f"{found.devices} devices over {found.horizon / DAY:.3g} days, by hour of the day"
        _write(words.svg, picture(found, title))
    print(_json(found, words.seed) if words.json else _told(found))
    return 0


def _traces(words: argparse.Namespace) -> Mapping[str, Trace]:
    if words.file not in {"diurnal", "always"}:
        return load_traces(Path(words.file), None)
    if words.devices < 1 or not words.days > 0:
        raise ConfigError("a fleet has devices, and lives for a while", where="--devices, --days", remedy="Give more")
    if words.days * DAY > MOST:
        raise ConfigError(f"{words.days:g} days are too many", where="--days", remedy=f"Give {MOST / DAY:g} at most")
    names = [f"device-{number:05}" for number in range(words.devices)]
    return traces_of(words.file, names, words.seed, words.days * DAY)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise ConfigError(
            f"it cannot be written ({error.strerror})", where=str(path), remedy="Name another file"
        ) from error


def _json(found: TraceStatistics, seed: int) -> str:
    finite = found.contrast if math.isfinite(found.contrast) else None
    return json.dumps({"seed": seed, **asdict(found), "contrast": finite})


def _told(found: TraceStatistics) -> str:
    lines = ["hour   " + "".join(f"{name:>10}" for name in found.by_hour)]
    for hour in range(HOURS):
        shares = "".join(f"{100 * shares[hour]:8.1f} %" for shares in found.by_hour.values())
        lines.append(f"{hour:02}:00  {shares}")
    fleet = f"{found.devices} devices over {found.horizon / DAY:.3g} days, {found.intervals:.0f} intervals each"
    best = f"{found.contrast:.3g} times as many in the best hour as in the worst"
    ready = f"ready: {best}; for {found.stretch / 60:.0f} minutes at a time; {found.never} devices never"
    return "\n".join([*lines, "", fleet, ready])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="edgepfl traces",
        description="Tell who of a fleet is online, charging, on Wi-Fi and idle at which hour of the day.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "file", nargs="?", default="diurnal", metavar="FILE", help="a CSV file, diurnal or always (default: diurnal)"
    )
    parser.add_argument("--devices", type=int, default=1000, help="of diurnal and always (default: 1000)")
    parser.add_argument("--days", type=float, default=7.0, help="likewise (default: 7)")
    parser.add_argument("--seed", type=int, default=0, help="likewise (default: 0)")
    parser.add_argument("--local", action="store_true", help="by each device's own clock; else by UTC")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw it")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the traces")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser
