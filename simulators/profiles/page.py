"""Device profiles for people: a table for the terminal, one profile with its sources, and the tables of the manual."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from simulators.profiles.profile import NUMBERS, DeviceProfile

BLOCKS = ("profiles", "sources")
"""The generated parts of docs/profiles.md."""

UNITS = {
    "compute_factor": "times",
    "memory_mib": "MiB",
    "storage_mib": "MiB",
    "uplink": "bytes/s",
    "downlink": "bytes/s",
    "latency": "s",
    "jitter": "s",
    "loss": "",
    "battery_wh": "Wh",
    "watts_idle": "W",
    "watts_training": "W",
    "watts_transmitting": "W",
    "watts_use": "W",
    "watts_charger": "W",
    "boot_seconds": "s",
}
_HEADER = (
    *("profile", "runtime", "time of a step", "memory, MiB", "up, Mbit/s", "down, Mbit/s", "latency, ms"),
    *("battery, Wh", "W idle", "W training", "W sending"),
)
_MEGABIT = 125e3  # bytes
_LEFT = 2  # columns of words


def table(profiles: Iterable[DeviceProfile]) -> str:
    """A table for the terminal."""
    rows = [_HEADER, *(_cells(each) for each in profiles)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    return "\n".join(_line(row, widths) for row in rows)


def one(profile: DeviceProfile) -> str:
    """All about one profile: each number with its source."""
    lines = [f"{profile.name}: {profile.about}", f"{profile.kind}, trains with {profile.runtime}", ""]
    for name in NUMBERS:
        lines.append(f"{name:18} {_value(getattr(profile, name))} {UNITS[name]}".rstrip())
        if name in profile.sources:
            lines.append(f"    {profile.sources[name]}")
    return "\n".join(lines)


def as_markdown(profiles: Iterable[DeviceProfile]) -> str:
    """The manual's table of numbers."""
    rows = [_HEADER, tuple("---" if column < _LEFT else "--:" for column in range(len(_HEADER)))]
    for each in profiles:
        name, *rest = _cells(each)
        rows.append((f"`{name}`", *rest))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def sources_as_markdown(profiles: Iterable[DeviceProfile]) -> str:
    """The manual's list of sources; those of several numbers that are word for word the same are told once."""
    parts = []
    for profile in profiles:
        if profile.sources:
            parts.append(f"### `{profile.name}`\n\n{profile.about[0].upper()}{profile.about[1:]}.\n")
            parts += [*_sources(profile), ""]
    return "\n".join(parts).rstrip()


def _sources(profile: DeviceProfile) -> Iterable[str]:
    named = ((str(profile.sources[name]), name) for name in NUMBERS if name in profile.sources)
    for source, group in groupby(named, key=lambda pair: pair[0]):
        numbers = ", ".join(f"{name} {_value(getattr(profile, name))} {UNITS[name]}".rstrip() for _, name in group)
        yield f"- **{numbers}**: {_linked(source)}"


def _linked(source: str) -> str:
    place, _, what = source.partition(": ")
    return f"{what} (<{place}>)" if place.startswith("http") else f"estimate: {what}"


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = zip(row, widths, strict=True)
    padded = [f"{cell:<{width}}" if at < _LEFT else f"{cell:>{width}}" for at, (cell, width) in enumerate(cells)]
    return "  ".join(padded).rstrip()


def _cells(profile: DeviceProfile) -> tuple[str, ...]:
    return (
        profile.name,
        profile.runtime,
        f"{profile.compute_factor:g}x",
        _amount(profile.memory_mib),
        _amount(profile.uplink, _MEGABIT),
        _amount(profile.downlink, _MEGABIT),
        f"{1000 * profile.latency:.3g}",
        "-" if profile.battery_wh is None else f"{profile.battery_wh:g}",
        f"{profile.watts_idle:g}",
        f"{profile.watts_training:g}",
        f"{profile.watts_transmitting:g}",
    )


def _amount(value: float | None, unit: float = 1.0) -> str:
    return "-" if value is None else f"{value / unit:.4g}"


def _value(value: float | None) -> str:
    return "-" if value is None else f"{value:,.9g}"
