"""``edgepfl bench fleet``: what a device's round costs beside its arithmetic, with real agents over real MQTT."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from edgepfl import algorithms
from edgepfl.errors import ConfigError
from simulators.bench import arguments

if TYPE_CHECKING:
    from simulators.bench.fleet import FleetRow

_MOST = {"--agents": 20_000, "--cohort": 2_000, "--rounds": 10_000, "--steps": 100_000, "--batch": 4096}
_DESCRIPTION = (
    "Starts a broker, a coordinator and a fleet of real agents in one process, lets them train, and tells what one "
    "device's round costs: processor time of all three processes and memory of each further agent, beside a bare loop "
    "that takes the same steps on the same runtime and does nothing else. State lies in memory (/dev/shm) where there "
    "is such a place, so that no disk is measured, and counts as memory then."
)


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand to its parser."""
    fleet = commands.add_parser(
        "fleet",
        help="real agents over real MQTT: a round's seconds, processor time and memory",
        description=_DESCRIPTION,
        epilog="example: edgepfl bench fleet --agents 100,1000 --algorithms fedavg,ditto --models cnn1d",
    )
    fleet.add_argument("--agents", default="20,100", metavar="N,...", help="in one process (default: %(default)s)")
    fleet.add_argument("--cohort", default="", metavar="N", help="devices of a round (default: all)")
    fleet.add_argument("--algorithms", default="fedavg", metavar="NAME,...", help="(default: %(default)s)")
    fleet.add_argument(
        "--models", default="mlp-60-128-10", metavar="NAME,...", help="as of bench step (default: %(default)s)"
    )
    fleet.add_argument("--rounds", default="10", metavar="N", help="that count; one more warms up (default: 10)")
    fleet.add_argument("--steps", default="5", metavar="N", help="minibatch steps of a round (default: 5)")
    fleet.add_argument("--batch", default="32", metavar="N", help="examples of a minibatch (default: 32)")
    fleet.add_argument("--threads", default="2", metavar="N", help="tasks that the fleet works on at once (default: 2)")
    fleet.add_argument("--broker", default="", metavar="URL", help="a broker to use; else a private one is started")
    fleet.add_argument("--state", type=Path, metavar="FOLDER", help="where state goes (default: memory, or else /tmp)")
    fleet.add_argument("--json", type=Path, metavar="FILE", help="write the rows for a program, too")
    fleet.set_defaults(run=_run)


def _run(words: argparse.Namespace) -> int:
    from simulators.bench.fleet import as_json, text  # noqa: PLC0415  the others need none of it
    from simulators.bench.fleet_work import MEMORY  # noqa: PLC0415  likewise

    if words.state is not None and not words.state.is_dir():
        raise ConfigError(f"{words.state} is no directory", where="--state", remedy="Make it, or leave --state out")
    memory = str(MEMORY) if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="edgepfl-bench-", dir=words.state or memory) as folder:
        rows = _rows(words, Path(folder))
    print(text(rows))
    if words.json is not None:
        words.json.write_text(json.dumps([as_json(row) for row in rows], indent=2) + "\n", encoding="utf-8")
    return 0


def _rows(words: argparse.Namespace, folder: Path) -> list[FleetRow]:
    """One row for each model, algorithm and number of agents."""
    from simulators.bench.fleet_rows import Matrix, rows  # noqa: PLC0415  it needs torch, which takes a second
    from simulators.bench.models import MODELS  # noqa: PLC0415  likewise

    number = {option: _number(option, getattr(words, option[2:])) for option in ("--rounds", "--steps", "--batch")}
    matrix = Matrix(
        agents=[_number("--agents", word) for word in words.agents.split(",")],
        algorithms=arguments.chosen("--algorithms", words.algorithms, algorithms.names()),
        models=arguments.chosen("--models", words.models, MODELS),
        cohort=_number("--cohort", words.cohort) if words.cohort else 0,
        rounds=number["--rounds"],
        steps=number["--steps"],
        batch=number["--batch"],
        threads=arguments.number("--threads", words.threads, 64),
        broker=words.broker,
    )
    return rows(matrix, folder, arguments.tell)


def _number(option: str, word: str) -> int:
    return arguments.number(option, word, _MOST[option])
