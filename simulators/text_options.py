"""Choices written as text: ``name:value,key=value`` becomes a record, with an error that says what there is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypeVar, get_type_hints

import msgspec

from edgepfl.errors import ConfigError

Record = TypeVar("Record")
Value = str | float
"""Of an option: text from a command line, or a number from Python (a truth value is one)."""

_KINDS: Mapping[type, str] = MappingProxyType({float: "a number", int: "a whole number", bool: "true or false"})


def keyed(text: str, *, where: str) -> tuple[str, dict[str, str]]:
    """What comes before the first comma, and the ``key=value`` pairs after it.

    >>> keyed("synthetic,alpha=1,beta=0.5", where="--data")
    ('synthetic', {'alpha': '1', 'beta': '0.5'})

    Raises:
        ConfigError: there is no name, a pair is none, or a key comes twice.
    """
    name, *rest = (piece.strip() for piece in text.split(","))
    pairs: dict[str, str] = {}
    for piece in rest:
        key, equals, value = piece.partition("=")
        if not (key and equals and value) or key in pairs:
            raise ConfigError(f"{piece!r} in {text!r} is no option", where=where, remedy="Write NAME,KEY=VALUE,...")
        pairs[key] = value
    if not name:
        raise ConfigError(f"{text!r} names nothing", where=where, remedy="Write NAME or NAME,KEY=VALUE,...")
    return name, pairs


def record(kind: type[Record], given: Mapping[str, Value], *, where: str) -> Record:
    """A dataclass from options, each converted to its field's type.

    Raises:
        ConfigError: an option is unknown, missing or of another type, or the record refuses it.
    """
    own = fields(kind)  # type: ignore[arg-type]  # dataclasses have no common type
    known = [field.name for field in own]
    unknown = sorted(given.keys() - set(known))
    if unknown:
        has = f"It has {', '.join(known)}" if known else "It has no options"
        raise ConfigError(f"it has no option {', '.join(unknown)}", where=where, remedy=has)
    missing = [each.name for each in own if each.default is MISSING and each.name not in given]
    if missing:
        raise ConfigError(f"it needs {', '.join(missing)}", where=where, remedy="Write NAME:VALUE or NAME,KEY=VALUE")
    hints = get_type_hints(kind)
    return kind(**{name: _converted(name, value, hints[name], where) for name, value in given.items()})


def _converted(name: str, value: Value, wanted: type[Any], where: str) -> object:
    try:
        return msgspec.convert(value, wanted, strict=False)
    except msgspec.ValidationError:
        choices = ", ".join(each.value for each in wanted) if issubclass(wanted, StrEnum) else ""
        kind = f"one of {choices}" if choices else _KINDS.get(wanted, wanted.__name__)
        raise ConfigError(f"{name} is {value!r}", where=where, remedy=f"Give {kind}") from None
