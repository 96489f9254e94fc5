"""A run's conditions from the command line: ``--conditions FILE.toml`` and ``--require NAME[=VALUE]``."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from edgepfl.bus.settings import read
from edgepfl.eligibility import Conditions
from edgepfl.errors import ConfigError
from edgepfl.validation import convert

_NAMES = tuple(field.name for field in msgspec.structs.fields(Conditions))
_SWITCHES = tuple(field.name for field in msgspec.structs.fields(Conditions) if field.type is bool)
_WHERE = "--require"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The two options that name conditions."""
    parser.add_argument(
        "--conditions",
        type=Path,
        metavar="FILE",
        help="what a device must be before and while it trains, in TOML: "
        + ", ".join(_NAMES)
        + " (docs/eligibility.md)",
    )
    parser.add_argument(
        "--require",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="one condition, such as charging, min_battery=0.6, max_temperature=75 or windows=22:00-06:00; may be "
        "repeated, and goes before what the file says",
    )


def conditions_of(words: argparse.Namespace) -> Conditions | None:
    """What the options of :func:`add_options` ask; None: nothing.

    Raises:
        ConfigError: the file cannot be read, or a condition is unknown or impossible.
    """
    asked = read(words.conditions, Conditions) if words.conditions is not None else Conditions()
    asked = required(words.require, asked)
    return None if asked == Conditions() else asked


def required(texts: Iterable[str], asked: Conditions) -> Conditions:
    """The conditions with some more, in words.

    >>> required(["charging", "min_battery=0.6", "windows=22:00-06:00,12:00-13:00"], Conditions()).windows
    ('22:00-06:00', '12:00-13:00')

    Raises:
        ConfigError: one of them is unknown or impossible.
    """
    fields = msgspec.to_builtins(asked)
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if name not in _NAMES:
            near = difflib.get_close_matches(name, _NAMES, 1)
            remedy = f"Did you mean {near[0]}?" if near else f"There are {', '.join(_NAMES)}"
            raise ConfigError(f"there is no condition {name!r}", where=_WHERE, remedy=remedy)
        if not equals and name not in _SWITCHES:
            raise ConfigError(f"{name} needs a value", where=_WHERE, remedy=f"Write --require {name}=VALUE")
        fields[name] = _value(name, value.strip() if equals else "true")
    return msgspec.convert(fields, Conditions)


def _value(name: str, text: str) -> Any:  # noqa: ANN401  of whatever type the field is
    given: object = text.split(",") if name == "windows" else text
    remedy = "See docs/eligibility.md for what each condition takes"
    found = convert({name: given}, Conditions, lambda _: f"{_WHERE} {name}={text}", strict=False, remedy=remedy)
    return getattr(found, name)
