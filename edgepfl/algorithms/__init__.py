"""The algorithms, one file each, found by file: a new one needs no list to be edited.

>>> "ditto" in names()
True
>>> build("ditto", {"lam": 0.5}).lam
0.5
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import pkgutil
from collections.abc import Iterable, Mapping
from enum import StrEnum

from edgepfl.algorithms._base import (
    Across,
    Algorithm,
    Cohort,
    Minibatch,
    Participation,
    Predicting,
    Scalar,
    has,
    hyperparameters,
    whole,
)
from edgepfl.errors import ConfigError

__all__ = [
    "Across",
    "Algorithm",
    "Cohort",
    "Minibatch",
    "Participation",
    "Predicting",
    "Scalar",
    "Setting",
    "build",
    "has",
    "hyperparameters",
    "load",
    "names",
    "parse_settings",
    "whole",
]

Setting = float | int | bool | str


def names() -> tuple[str, ...]:
    """The algorithms there are."""
    return tuple(sorted(info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_")))


def load(name: str) -> type[Algorithm]:
    """The class of an algorithm.

    Raises:
        ConfigError: there is none of this name.
    """
    if name not in names():
        raise ConfigError(f"there is no algorithm {name!r}", remedy=f"Choose one of {', '.join(names())}")
    module = importlib.import_module(f"{__name__}.{name}")
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Algorithm) and value.__module__ == module.__name__
    ]
    (kind,) = found
    return kind


def build(name: str, settings: Mapping[str, Setting]) -> Algorithm:
    """An algorithm with some of its hyperparameters set.

    Raises:
        ConfigError: no such algorithm or hyperparameter, or a value that cannot be one, or values that contradict each
            other or the theory.
    """
    kind = load(name)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    values: dict[str, object] = {}
    for key, value in settings.items():
        if key not in fields:
            raise ConfigError(
                f"{name} has no hyperparameter {key!r}",
                remedy=f"It has {', '.join(sorted(fields)) or 'none'}",
            )
        values[key] = _convert(f"{name}.{key}", value, fields[key].default)
    algorithm = kind(**values)  # type: ignore[arg-type]  # the fields were matched by name just above
    algorithm.check()
    return algorithm


def parse_settings(texts: Iterable[str]) -> dict[str, str]:
    """``NAME=VALUE`` texts of a command line as hyperparameters, for :func:`build` to convert.

    Raises:
        ConfigError: a text is something else.
    """
    settings: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise ConfigError(f"{text!r} is no setting", where="--set", remedy="Write --set lam=0.1")
        settings[name] = value
    return settings


def _convert(where: str, value: Setting, default: object) -> object:
    try:
        if isinstance(default, StrEnum):
            return type(default)(str(value))
        if isinstance(default, bool):
            return _boolean(value)
        if isinstance(default, int):
            return _whole(value)
        if isinstance(default, float):
            return _finite(value)
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"{value!r} will not do ({error})", where=where) from error
    return value


def _whole(value: Setting) -> int:
    number = int(value)
    if isinstance(value, float) and number != value:
        raise ValueError("it must be a whole number")
    return number


def _finite(value: Setting) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("it must be finite")
    return number


def _boolean(value: Setting) -> bool:
    spelled = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    try:
        return spelled[str(value).lower()]
    except KeyError:
        raise ValueError("say true or false") from None
