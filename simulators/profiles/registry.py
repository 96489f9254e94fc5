"""Profiles by name: those that come along, and those of a file of the user's own.

A profile is a table; each number of it is a table of ``value``, ``source`` and ``what``::

    [my-gateway]
    about = "Our gateway, Cortex-A35"
    kind = "board"
    runtime = "onnx"
    compute_factor = {value = 14.0, source = "estimate", what = "twice a Pi Zero 2's time, by its clock"}
    uplink = {value = 1.0e5, source = "https://example.org/plan", what = "the upload rate of our mobile plan"}

What is left out is as of ``host``: no limit, no battery, no delay.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType

import msgspec

from edgepfl.errors import ConfigError
from simulators.profiles.profile import NUMBERS, DeviceProfile, Source

HOST = "host"
"""The default: this machine as it is."""

_FILE = "profiles.toml"


class _Number(Source, frozen=True):
    value: float | int = msgspec.field(default=0.0)


Profiles = Mapping[str, DeviceProfile]


@cache
def built_in() -> Profiles:
    """The profiles that come along, by name."""
    text = resources.files("simulators.profiles").joinpath(_FILE).read_text("utf-8")
    return MappingProxyType(parsed(text, _FILE))


def profile(name: str, own: Profiles = MappingProxyType({})) -> DeviceProfile:
    """A profile by name.

    Args:
        name: ``"pi-4"``.
        own: profiles of the user's, which go first.

    Raises:
        ConfigError: there is none of that name.
    """
    known = {**built_in(), **own}
    if name not in known:
        raise ConfigError(
            f"there is no device profile {name!r}",
            where="profiles",
            remedy=f"Name one of {', '.join(known)}, or describe it in a file (see docs/profiles.md)",
        )
    return known[name]


def load_profiles(path: Path) -> Profiles:
    """The profiles of a TOML file.

    Raises:
        ConfigError: it cannot be read, or a value is impossible or has no source.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the profiles cannot be read ({error})", where=str(path), remedy="Give a TOML file in UTF-8"
        ) from error
    return MappingProxyType(parsed(text, str(path)))


def parsed(text: str, where: str) -> dict[str, DeviceProfile]:
    """The profiles of a TOML text; ``where`` is its name in errors.

    Raises:
        ConfigError: as :func:`load_profiles`.
    """
    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"it is no TOML ({error})", where=where, remedy="Mend the file") from error
    return {name: _profile(name, table, where) for name, table in tables.items()}


def _profile(name: str, table: object, where: str) -> DeviceProfile:
    place = f"{where}, [{name}]"
    if not isinstance(table, dict):
        raise ConfigError("it is no table", where=place, remedy=f"Write [{name}] and its fields below it")
    numbers = {field: _number(value, f"{place}, {field}") for field, value in table.items() if field in NUMBERS}
    plain = {field: value for field, value in table.items() if field not in NUMBERS}
    sources = {field: Source(number.source, number.what) for field, number in numbers.items()}
    values = {field: number.value for field, number in numbers.items()}
    try:
        return msgspec.convert({**plain, **values, "name": name, "sources": sources}, DeviceProfile)
    except msgspec.ValidationError as error:
        raise ConfigError(str(error), where=place, remedy="See docs/profiles.md for the fields") from error


def _number(value: object, place: str) -> _Number:
    try:
        return msgspec.convert(value, _Number)
    except msgspec.ValidationError as error:
        raise ConfigError(
            str(error),
            where=place,
            remedy='Give {value = 1.0, source = "https://... or estimate", what = "what was measured, or why"}',
        ) from error
