"""Scenario files: TOML with the tables of :class:`~simulators.emulation.scenario.Scenario`, and those that come along.

::

    name = "dead device"
    about = "A device loses its power while it trains."

    [fleet]
    agents = 6

    [work]
    algorithm = "fedavg"

    [run]                        # as `edgepfl run start` has it
    rounds = 3
    minimum = 5

    [[faults]]
    kind = "kill"
    devices = ["device-002"]
    during = 2

    [expect]
    rounds = 3
    told = ["no sign of life"]
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from textwrap import indent
from typing import Any

import msgspec

from coordinator.config import MOST_SELECTED
from edgepfl import algorithms
from edgepfl.bus.settings import anchored, table_of
from edgepfl.errors import ConfigError
from edgepfl.validation import Place, convert, in_file
from simulators.emulation.scenario import Scenario

ENDING = ".toml"
TRACES = ("always", "diurnal")
"""Traces that are no files."""
ROUNDS, STEPS = 3, 5
"""Of a run that does not say how many."""
_LONGEST = 32  # characters of a run's name, which a suffix follows


def find(what: str | Path, folder: Path = Path()) -> Scenario:
    """A scenario by the path of its file, or by its name among those that come along.

    Args:
        what: path or name.
        folder: that a path is relative to.

    Raises:
        ConfigError: there is none, or its file says what cannot be.
    """
    path = file_of(what, folder)
    return scenario_of(table_of(path), in_file(path), folder=path.absolute().parent, name=path.stem)


def file_of(what: str | Path, folder: Path = Path()) -> Path:
    """The file of a scenario, by its path or by its name among those that come along.

    Raises:
        ConfigError: a name is that of none.
    """
    path = folder / Path(what).expanduser()
    return path if path.suffix == ENDING or path.exists() else _along(str(what))


def names() -> tuple[str, ...]:
    """The scenarios that come along."""
    return tuple(sorted(path.stem for path in _all_along()))


def catalogue() -> dict[str, str]:
    """What each scenario that comes along is about, by its name."""
    return {name: find(name).about for name in names()}


def listing() -> str:
    """The catalogue, for a terminal."""
    return "\n\n".join(f"{name}\n{indent(about, '    ')}" for name, about in catalogue().items())


def scenario_of(table: Mapping[str, Any], place: Place, *, folder: Path, name: str = "emulation") -> Scenario:
    """The tables of a scenario as a record.

    What a run does not say suits an emulation: every device takes part in every round, three rounds of five steps, and
    an evaluation at the end; its name and its seed are the scenario's.

    Args:
        table: as TOML has it.
        place: what to call a setting.
        folder: that paths are relative to.
        name: of a scenario that has none.

    Raises:
        ConfigError: something is unknown, of the wrong type or impossible.
    """
    scenario = convert(_completed(table, name), Scenario, place)
    _check_names(scenario, place)
    return _anchored(scenario, folder)


def _completed(table: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The tables with what they do not say; a value that cannot be stays, to be refused by its own name."""
    whole: dict[str, Any] = {"name": name, **table}
    run, fleet = table.get("run", {}), table.get("fleet", {})
    if not isinstance(run, Mapping) or not isinstance(fleet, Mapping):
        return whole
    agents = fleet.get("agents", Scenario().fleet.agents)
    usual: dict[str, Any] = {
        "name": _run_name(whole["name"]),
        "seed": table.get("seed", 0),
        "rounds": ROUNDS,
        "steps": STEPS,
        "evaluate_every": 0,
        "goal": _goal(agents, run.get("over", 1)),
    }
    whole["run"] = {**usual, **run}
    if "minimum" not in run:
        buffer = whole["run"].get("buffer", 0)
        whole["run"]["minimum"] = buffer if isinstance(buffer, int) and buffer > 0 else whole["run"]["goal"]
    return whole


def _goal(agents: object, over: object) -> int:
    """All agents, or as many as are waited for of them; 1 where the numbers are none, which is told elsewhere."""
    if not isinstance(agents, int) or not isinstance(over, int | float) or not over >= 1:
        return 1
    return max(1, int(min(agents, MOST_SELECTED) / over))


def _run_name(name: object) -> str:
    """A scenario's name as a run can have it."""
    kept = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in str(name).lower())
    return kept.strip("-")[:_LONGEST].rstrip("-") or "emulation"


def _check_names(scenario: Scenario, place: Place) -> None:
    known = algorithms.names()
    if scenario.work.algorithm not in known:
        raise ConfigError(
            f"there is no algorithm {scenario.work.algorithm!r}",
            where=place("work.algorithm"),
            remedy=nearest(scenario.work.algorithm, known),
        )


def nearest(name: str, known: tuple[str, ...]) -> str:
    """What to tell somebody who wrote a name that does not exist."""
    close = difflib.get_close_matches(name, known, 1)
    return f"Did you mean {close[0]!r}? There are {', '.join(known)}" if close else f"There are {', '.join(known)}"


def _anchored(scenario: Scenario, folder: Path) -> Scenario:
    fleet = scenario.fleet
    trace = fleet.trace if fleet.trace in TRACES else anchored(fleet.trace, folder)
    fleet = msgspec.structs.replace(fleet, trace=trace, profile_file=anchored(fleet.profile_file, folder))
    return msgspec.structs.replace(scenario, fleet=fleet)


def _all_along() -> Iterator[Path]:
    folder = Path(str(files("simulators"))) / "scenarios"
    return folder.glob(f"*{ENDING}")


def _along(name: str) -> Path:
    for path in _all_along():
        if path.stem == name:
            return path
    raise ConfigError(
        f"there is no scenario {name!r}", where="scenario", remedy=f"{nearest(name, names())}; or give FILE{ENDING}"
    )
