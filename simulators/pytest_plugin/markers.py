"""The markers as records: what a test says becomes a scenario, or an error that names the marker and what it takes."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, get_args, get_type_hints

import msgspec
import pytest

from coordinator.config import RunConfig
from edgepfl.errors import ConfigError
from edgepfl.validation import Place, convert
from simulators.emulation.scenario import FAULT_VALUES, Fault, FleetTable, Scenario, WorkTable
from simulators.emulation.scenario_file import scenario_of
from simulators.profiles import load_profiles, profile

OWN = frozenset({"model", "data"})
"""Arguments that may be an object of the test's own in place of a name."""


def _fields(table: type[msgspec.Struct], *without: str) -> tuple[str, ...]:
    return tuple(each.name for each in msgspec.structs.fields(table) if each.name not in without)


_TABLES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "": ("seed", "time"),
        "fleet": _fields(FleetTable),
        "work": _fields(WorkTable),
        "run": _fields(RunConfig, "name", "seed"),
    }
)
ARGUMENTS: Mapping[str, str] = MappingProxyType({name: table for table, names in _TABLES.items() for name in names})
"""Each argument of the marker ``fleet``, and the table of a scenario that it belongs to."""
LEASE, LEASE_PER_AGENT = 5.0, 0.1
"""Seconds without a sign of life, where faults are on purpose: then a device is asked again, and then given up."""
KINDS: tuple[str, ...] = get_args(get_type_hints(Fault)["kind"])
_ANY = _fields(Fault, "kind", "values")
"""What the faults of every kind take."""


@dataclass(frozen=True)
class Setup:
    """What a fleet is to be.

    Attributes:
        scenario: without what is the test's own.
        own: the test's own model and data, by "model" and "data".
        table: what was said, as a scenario file would have it.
        folder: that paths in it are relative to.
    """

    scenario: Scenario
    own: Mapping[str, object] = field(default_factory=dict)
    table: Mapping[str, Any] = field(default_factory=dict)
    folder: Path = Path()


def setup_of(
    marks: Sequence[pytest.Mark], scenario: Scenario | None = None, *, name: str = "test", folder: Path = Path()
) -> Setup:
    """What a test's markers say.

    Args:
        marks: the markers ``fleet`` and ``faults``, those of the class and module first: later ones win, faults add up.
        scenario: what they change; None: the plain one, in which every device takes part in every round.
        name: the scenario's, where there is none.
        folder: that paths are relative to.

    Raises:
        ConfigError: an argument does not exist or has an impossible value.
    """
    table = {"name": name} if scenario is None else msgspec.to_builtins(scenario)
    setup = changed(Setup(scenario or Scenario(), {}, table, folder), {}, "")
    for mark in marks:
        if mark.name == "faults":
            setup = with_faults(setup, faults_of(mark.args, mark.kwargs), _shown(mark))
        else:
            setup = changed(setup, mark.kwargs, _shown(mark), positional=mark.args)
    return setup


def with_faults(setup: Setup, faults: tuple[Fault, ...], where: str) -> Setup:
    """A set-up in which more goes wrong.

    Raises:
        ConfigError: there are fewer devices than are to fail.
    """
    all_ = [msgspec.to_builtins(each) for each in (*setup.scenario.faults, *faults)]
    return _converted(setup, {"faults": all_}, where)


def with_seed(setup: Setup, seed: int) -> Setup:
    """A set-up with another seed, of its run too."""
    run = msgspec.structs.replace(setup.scenario.run, seed=seed)
    return replace(setup, scenario=msgspec.structs.replace(setup.scenario, seed=seed, run=run))


def changed(setup: Setup, arguments: Mapping[str, object], where: str, *, positional: tuple[object, ...] = ()) -> Setup:
    """A set-up with other arguments of the marker ``fleet``.

    Raises:
        ConfigError: one does not exist or has an impossible value.
    """
    if positional:
        _refuse(where, f"it takes no positional argument ({positional[0]!r})", "Write NAME=VALUE", ARGUMENTS)
    tables: dict[str, Any] = {}
    own = dict(setup.own)
    for name, value in arguments.items():
        if name not in ARGUMENTS:
            _refuse(where, f"there is no argument {name!r}", _nearest(name, ARGUMENTS), ARGUMENTS)
        if name in OWN:
            own.pop(name, None)
        if name in OWN and not isinstance(value, str):
            own[name] = value
        else:
            table = ARGUMENTS[name]
            place = tables.setdefault(table, {}) if table else tables
            place[name] = _plain(name, value, where)
    return _converted(replace(setup, own=own), tables, where)


def _converted(setup: Setup, changes: Mapping[str, Any], where: str) -> Setup:
    """A set-up with changes in its tables, all of it checked.

    With faults, unless something else was said, half of the devices make a round, and a silent one is given up soon:
    otherwise no round could do without the ones that fail, or it would wait for them for two minutes.
    """
    table = dict(setup.table)
    for name, value in changes.items():
        table[name] = {**table.get(name, {}), **value} if isinstance(value, dict) else value
    scenario = scenario_of(table, _in_marker(where), folder=setup.folder)
    _check_profiles(scenario, where)
    run, said = scenario.run, table.get("run", {})
    if scenario.faults and "minimum" not in said and not run.buffer:
        run = msgspec.structs.replace(run, minimum=max(1, run.goal // 2))
    if scenario.faults and "lease" not in said:
        # All tasks of a fleet share this machine: the more there are, the longer one may be silent and well.
        run = msgspec.structs.replace(run, lease=LEASE + scenario.fleet.agents * LEASE_PER_AGENT)
    return replace(setup, scenario=msgspec.structs.replace(scenario, run=run), table=table)


def _check_profiles(scenario: Scenario, where: str) -> None:
    file = scenario.fleet.profile_file
    try:
        own = load_profiles(Path(file)) if file else {}
        for name in scenario.fleet.profiles:
            profile(name, own)
    except ConfigError as error:
        raise ConfigError(error.what, where=f"{where}, {error.where}", remedy=error.remedy) from None


def faults_of(positional: tuple[object, ...], arguments: Mapping[str, object]) -> tuple[Fault, ...]:
    """The faults that one marker names.

    Args:
        positional: one kind of fault, or records of faults.
        arguments: of the kind.

    Raises:
        ConfigError: there is no such kind or argument, or a value is impossible.
    """
    where = f"@pytest.mark.faults({_listed(positional, arguments)})"
    records = [each for each in positional if isinstance(each, Fault)]
    if records and len(records) == len(positional) and not arguments:
        return tuple(records)
    if len(positional) != 1 or positional[0] not in KINDS:
        given = positional[0] if positional else ""
        remedy = f"{_nearest(str(given), KINDS)}Name one kind of fault, or give records of faults"
        _refuse(where, f"there is no fault {given!r}", remedy, KINDS)
    kind = str(positional[0])
    takes = (*_ANY, *FAULT_VALUES.get(kind, ()), "values")
    for name in arguments:
        if name not in takes:
            _refuse(where, f"a fault {kind!r} has no argument {name!r}", _nearest(name, takes), takes)
    return (_fault(kind, arguments, where),)


def _fault(kind: str, arguments: Mapping[str, object], where: str) -> Fault:
    known = {each.name for each in msgspec.structs.fields(Fault)}
    plain = {name: _plain(name, value, where) for name, value in arguments.items() if value is not None}
    values = {name: plain.pop(name) for name in list(plain) if name not in known}
    given = plain.pop("values", {})
    if isinstance(given, dict):
        given = {**given, **values}
    return convert({"kind": kind, **plain, "values": given}, Fault, _in_marker(where))


def board_of(mark: pytest.Mark | None) -> dict[str, Any]:
    """The arguments of the marker ``board``.

    Raises:
        ConfigError: one does not exist or is of another type.
    """
    if mark is None:
        return {}
    takes: Mapping[str, Any] = {"profile": str, "data": object, "name": str, "options": dict, "seed": int}
    if mark.args:
        _refuse(_shown(mark), "it takes no positional argument", "Write NAME=VALUE", takes)
    for name, value in mark.kwargs.items():
        if name not in takes:
            _refuse(_shown(mark), f"there is no argument {name!r}", _nearest(name, takes), takes)
        if not isinstance(value, takes[name]):
            _refuse(_shown(mark), f"{name}={value!r} is no {takes[name].__name__}", "", takes)
    return dict(mark.kwargs)


def scenario_name(mark: pytest.Mark) -> str:
    """The name or path that the marker ``scenario`` gives.

    Raises:
        ConfigError: it gives none.
    """
    if len(mark.args) == 1 and not mark.kwargs and isinstance(mark.args[0], str | Path):
        return str(mark.args[0])
    raise ConfigError(
        "it takes the name of a scenario that comes along, or the path of a file",
        where=_shown(mark),
        remedy="Write @pytest.mark.scenario('broker-restart'); edgepfl emulate --list lists them",
    )


def _plain(name: str, value: object, where: str) -> object:
    """A value as a settings file would have it."""
    try:
        plain: object = msgspec.to_builtins(value, enc_hook=_path)
    except (TypeError, NotImplementedError):
        raise ConfigError(
            f"{name} is a {type(value).__name__}", where=where, remedy="Give a number, a text, a list or a mapping"
        ) from None
    return plain


def _path(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError


def _in_marker(where: str) -> Place:
    """The places of a scenario, as the arguments that they come from."""

    def place(key: str) -> str:
        table, _, rest = key.partition(".")
        argument = rest if table in _TABLES else key
        return f"{where}, {argument}" if argument else where

    return place


def _nearest(name: str, known: Mapping[str, object] | Sequence[str]) -> str:
    found = difflib.get_close_matches(name, list(known), 1)
    return f"Did you mean {found[0]!r}? " if found else ""


def _refuse(where: str, what: str, remedy: str, known: Mapping[str, object] | Sequence[str]) -> NoReturn:
    ending = "" if not remedy or remedy.endswith(" ") else ". "
    raise ConfigError(what, where=where, remedy=f"{remedy}{ending}It takes: {', '.join(known)}")


def _shown(mark: pytest.Mark) -> str:
    return f"@pytest.mark.{mark.name}({_listed(mark.args, mark.kwargs)})"


def _listed(positional: tuple[object, ...], arguments: Mapping[str, object]) -> str:
    return ", ".join([*map(repr, positional), *(f"{name}={value!r}" for name, value in arguments.items())])
