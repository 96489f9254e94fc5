"""``edgepfl emulate``: real agents, many in one process, over real MQTT or in virtual time."""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from coordinator.journal import Status
from edgepfl import algorithms
from edgepfl.errors import ConfigError
from simulators.datasets import DATASETS
from simulators.emulation.emulation import Given, emulate
from simulators.emulation.expectations import failures
from simulators.emulation.junit import write_junit
from simulators.emulation.overlay import scenario_from
from simulators.emulation.page import write_html
from simulators.emulation.report import EmulationReport
from simulators.emulation.scenario import Scenario, without_faults
from simulators.emulation.scenario_file import listing
from simulators.emulation.shards import Shard, follow, lead
from simulators.emulation.stopping import stopped_in_order
from simulators.emulation.words import table
from simulators.emulation.work import MODELS
from simulators.progress import RunProgress

FAILED = 1
MOST_SPEEDUP = 1_000_000
_EPILOG = """examples:

  edgepfl emulate                                       20 agents, FedAvg, random data, three rounds
  edgepfl emulate --agents 1000 --algorithm ditto --model cnn1d --rounds 10 --json out.json
  edgepfl emulate --agents 5000 --sample 0.05 --rounds 5
  edgepfl emulate --profiles pi-4=0.5,phone-mid=0.5     boards on ONNX Runtime, phones on ExecuTorch, one model
  edgepfl emulate dead-device --check                   a scenario that comes along, and whether it came as expected
  edgepfl emulate my-scenario.toml --check --junit junit.xml --html report.html

several processes or machines, against one broker; start all of them:

  edgepfl emulate --agents 2000 --broker mqtt://10.0.0.5 --shard 1/2      has the coordinator, and gives the report
  edgepfl emulate --agents 2000 --broker mqtt://10.0.0.5 --shard 2/2

See docs/emulation.md."""


def main(arguments: list[str]) -> int:
    """Emulate; 0 where the run was done and, with --check, all came as expected."""
    words = _parser().parse_args(arguments)
    if words.list:
        print(listing())
        return 0
    scenario = scenario_from(words)
    shard = Shard.parse(words.shard) if words.shard else Shard()
    _check(words, shard, scenario)
    began = time.monotonic()
    with stopped_in_order(), _folder(words.keep) as folder:
        logging.basicConfig(
            level=logging.INFO if words.verbose else logging.WARNING,
            format="%(asctime)s %(levelname)s %(message)s",
            filename=folder / "fleet.log",
        )
        if shard.number > 1:
            follow(scenario, folder, shard, Given(speedup=words.speedup))
            return 0
        report = _emulated(scenario, folder, shard, Given(speedup=words.speedup))
        wrong: tuple[str, ...] = ()
        if words.check:
            faultless = emulate(without_faults(scenario), folder / "faultless") if scenario.expect.same_model else None
            wrong = failures(report, scenario.expect, faultless=faultless)
    return _told(words, report, wrong, time.monotonic() - began)


def _emulated(scenario: Scenario, folder: Path, shard: Shard, given: Given) -> EmulationReport:
    agents = scenario.fleet.agents
    print(f"{scenario.name}: {agents} agents, seed {scenario.seed}", file=sys.stderr, flush=True)
    with RunProgress(scenario.name, scenario.run.rounds) as progress:
        if shard.shards > 1:
            return lead(scenario, folder, shard, given, progress.see)
        return emulate(scenario, folder, given=given, see=progress.see)


def _told(words: argparse.Namespace, report: EmulationReport, wrong: tuple[str, ...], seconds: float) -> int:
    """Show and write what came of it; the command's status."""
    print(table(report))
    if words.json is not None:
        words.json.write_bytes(msgspec.json.format(_as_json(report, seconds), indent=2) + b"\n")
    if words.html is not None:
        write_html(report, words.html)
        print(f"pictures: {words.html}")
    if words.junit is not None:
        write_junit(report, wrong, seconds, words.junit)
    if words.check:
        for each in wrong:
            print(f"not as expected: {each}")
        print(f"{report.scenario}: {'not as expected' if wrong else 'as expected'} (seed {report.seed})")
        return FAILED if wrong else 0
    return 0 if report.status == Status.DONE else FAILED


def _as_json(report: EmulationReport, seconds: float) -> bytes:
    """The report, and the figures that a script looks for first."""
    first = {
        "seconds_per_round": report.seconds_per_round,
        "agents": report.agents,
        "lost": report.lost,
        "pss_mib": report.pss_mib,
        "bytes": report.fleet_bytes_in + report.fleet_bytes_out,
        "bytes_per_round": report.bytes_per_round,
        "wall_seconds": seconds,
    }
    return msgspec.json.encode({**first, **msgspec.to_builtins(report, str_keys=True)})


def _check(words: argparse.Namespace, shard: Shard, scenario: Scenario) -> None:
    """Refuse what would only fail later.

    Raises:
        ConfigError: options that contradict each other, or a folder that holds something.
    """
    if words.keep is not None and words.keep.is_dir() and any(words.keep.iterdir()):
        raise ConfigError("it holds something already", where=f"--keep {words.keep}", remedy="Name a new directory")
    if shard.shards > 1 and "://" not in scenario.broker:
        raise ConfigError("shards meet at a broker", where="--shard", remedy="Give all of them the same --broker URL")
    if shard.shards > 1 and words.check:
        raise ConfigError("it is for one process", where="--check", remedy="Leave out --shard, or look at --json")
    if not 1 <= words.speedup <= MOST_SPEEDUP:
        remedy = f"Give 1 to {MOST_SPEEDUP}"
        raise ConfigError(f"{words.speedup} is no speedup", where="--speedup", remedy=remedy)
    for path in (words.json, words.html, words.junit):
        if path is not None and not path.absolute().parent.is_dir():
            raise ConfigError("its directory does not exist", where=str(path), remedy="Make it, or name another file")
        if path is not None and path.is_dir():
            raise ConfigError("it is a directory", where=str(path), remedy="Name a file in it")


@contextlib.contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """Where settings, logs and state go: kept where somebody says so."""
    if keep is not None:
        try:
            keep.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            where = f"--keep {keep}"
            raise ConfigError(
                f"it cannot be made ({error.strerror})", where=where, remedy="Name another directory"
            ) from error
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="edgepfl-emulate-", ignore_cleanup_errors=True) as scratch:
        yield Path(scratch)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="edgepfl emulate",
        description="Emulate a fleet: the agents of real boards, many in one process, with a broker and a coordinator "
        "of their own, and whatever goes wrong in the field.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scenario", nargs="?", help="a scenario file, or the name of one that comes along")
    _add_fleet(parser)
    _add_run(parser)
    _add_output(parser)
    return parser


def _add_fleet(parser: argparse.ArgumentParser) -> None:
    fleet = parser.add_argument_group("fleet")
    fleet.add_argument("--agents", type=int, help="how many devices (default: 20)")
    fleet.add_argument("--profiles", metavar="NAME=SHARE,...", help="device profiles, see: edgepfl profiles")
    fleet.add_argument("--trace", help="when devices are there: always, diurnal, or a CSV file (default: always)")
    fleet.add_argument(
        "--churn", action="append", default=[], metavar="NAME=VALUE", help="how they come and go (reboots=2)"
    )
    fleet.add_argument(
        "--data",
        metavar="NAME[,OPTION=VALUE...]",
        help=f"one of {', '.join(DATASETS)}, MODULE:FUNCTION or FILE.npz (default: random)",
    )
    fleet.add_argument("--partition", help="who has what, such as dirichlet:0.3 (default: as the data set has it)")
    fleet.add_argument("--drift", help="how data change with the round, such as labels:abrupt,start=20 (default: not)")
    fleet.add_argument("--speedup", type=float, default=1.0, help="lives, links and speeds so many times faster (1)")
    fleet.add_argument("--shard", metavar="K/N", help="host the K-th of N parts of the agents, against one --broker")
    fleet.add_argument("--broker", help="URL of a broker, or mosquitto or iotcore to start one (default: auto)")


def _add_run(parser: argparse.ArgumentParser) -> None:
    run = parser.add_argument_group("run")
    names = ", ".join(algorithms.names())
    run.add_argument("--algorithm", help=f"one of {names} (default: fedavg)")
    run.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a hyperparameter (lam=0.1)")
    run.add_argument(
        "--model", help=f"{', '.join(MODELS)}, another of the zoo, or MODULE:FACTORY (default: what suits the data)"
    )
    run.add_argument("--batch", type=int, help="examples of a minibatch (default: 32)")
    run.add_argument("--rounds", type=int, help="training rounds (default: 3)")
    run.add_argument("--steps", type=int, help="minibatch steps a round and device (default: 5)")
    run.add_argument("--goal", type=int, help="reports that a round takes (default: all agents, 2000 at most)")
    run.add_argument("--minimum", type=int, help="reports below which a round is abandoned (default: the goal)")
    run.add_argument("--sample", type=float, metavar="FRACTION", help="the part of the agents that a round selects")
    run.add_argument("--codec", help="how devices encode their uploads, such as int8+zstd")
    run.add_argument("--run", action="append", default=[], metavar="NAME=VALUE", help="any other setting of the run")
    run.add_argument("--seed", type=int, help="of everything random (default: 0)")
    run.add_argument("--virtual", action="store_true", help="in virtual time: a day of traces in seconds")


def _add_output(parser: argparse.ArgumentParser) -> None:
    output = parser.add_argument_group("output")
    output.add_argument("--list", action="store_true", help="tell the scenarios that come along, and do nothing else")
    output.add_argument("--check", action="store_true", help="fail unless all came as the scenario expects")
    output.add_argument("--json", type=Path, metavar="FILE", help="write the report for a program")
    output.add_argument("--html", type=Path, metavar="FILE", help="write a page with pictures")
    output.add_argument("--junit", type=Path, metavar="FILE", help="write a JUnit file for a CI system")
    output.add_argument("--keep", type=Path, metavar="DIRECTORY", help="keep settings, logs and state there")
    output.add_argument("--verbose", action="store_true", help="log more, into fleet.log of --keep")
