"""A scenario from a file, or none, with what a command line says over it."""

from __future__ import annotations

import argparse
import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgepfl.bus.settings import table_of
from edgepfl.errors import ConfigError
from edgepfl.validation import Place
from simulators.emulation.scenario import Scenario
from simulators.emulation.scenario_file import file_of, scenario_of

OPTIONS: Mapping[str, str] = {
    "fleet.agents": "--agents",
    "fleet.trace": "--trace",
    "work.algorithm": "--algorithm",
    "work.model": "--model",
    "work.data": "--data",
    "work.partition": "--partition",
    "work.drift": "--drift",
    "work.batch": "--batch",
    "run.rounds": "--rounds",
    "run.steps": "--steps",
    "run.goal": "--goal",
    "run.minimum": "--minimum",
    "run.codec": "--codec",
    "seed": "--seed",
    "broker": "--broker",
}
"""The options that stand for one setting of a scenario file."""


def scenario_from(words: argparse.Namespace) -> Scenario:
    """The scenario that a command line means.

    Raises:
        ConfigError: there is no such file, or a value is impossible.
    """
    file = file_of(words.scenario) if words.scenario else None
    table: dict[str, Any] = table_of(file) if file is not None else {}
    for key, option in OPTIONS.items():
        value = getattr(words, option[2:].replace("-", "_"))
        if value is not None:
            _put(table, key, value)
    _put_many(table, "fleet.profiles", _shares(words.profiles, "--profiles"))
    _put_many(table, "fleet.churn", _values(words.churn, "--churn"))
    _put_many(table, "run", _values(words.run, "--run"))
    _put_many(table, "work.settings", _values(words.set, "--set"))
    if words.virtual:
        table["time"] = "virtual"
    if words.sample is not None:
        _sample(table, words.sample)
    name = file.stem if file is not None else "emulation"
    folder = file.absolute().parent if file is not None else Path.cwd()
    return scenario_of(table, _place(str(file) if file is not None else ""), folder=folder, name=name)


def _place(file: str) -> Place:
    """What to call a setting: the option that stands for it, and the file, if there is one."""

    def place(key: str) -> str:
        option = OPTIONS.get(key, "")
        inside = f"{file}, {key}" if key else file
        return " or ".join(each for each in (inside if file else "", option) if each) or key or "edgepfl emulate"

    return place


def _put(table: dict[str, Any], key: str, value: object) -> None:
    *tables, name = key.split(".")
    for each in tables:
        table = table.setdefault(each, {})
        if not isinstance(table, dict):
            raise ConfigError("it is no table", where=each, remedy=f"Write [{each}] and its settings below it")
    table[name] = value


def _put_many(table: dict[str, Any], key: str, values: Mapping[str, object]) -> None:
    for name, value in values.items():
        _put(table, f"{key}.{name}", value)


def _shares(text: str | None, option: str) -> dict[str, float]:
    """``pi-4=0.5,phone-mid=0.5``; a name alone is a share of 1."""
    found: dict[str, float] = {}
    for part in filter(None, (text or "").split(",")):
        name, _, share = part.partition("=")
        try:
            found[name.strip()] = float(share or 1)
        except ValueError:
            raise ConfigError(f"{share!r} is no share", where=option, remedy="Write pi-4=0.5,phone-mid=0.5") from None
    return found


def _values(given: Sequence[str], option: str) -> dict[str, Any]:
    """``NAME=VALUE`` with a value as TOML has it; what is none is a text."""
    found: dict[str, Any] = {}
    for word in given:
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise ConfigError(f"{word!r} sets nothing", where=option, remedy="Write NAME=VALUE")
        try:
            found[name] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            found[name] = text
    return found


def _sample(table: dict[str, Any], fraction: float) -> None:
    """Let each round have a part of the fleet."""
    if not 0 < fraction <= 1:
        raise ConfigError(f"{fraction} is no part", where="--sample", remedy="Give more than 0 and at most 1")
    agents = table.get("fleet", {}).get("agents", Scenario().fleet.agents)
    if isinstance(agents, int):
        _put(table, "run.goal", max(1, math.ceil(agents * fraction - 1e-9)))
