"""``edgepfl demo``: from nothing to a personalised fleet on one machine, and a report."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from coordinator.config import RunConfig
from edgepfl import algorithms
from edgepfl.algorithms import Setting
from edgepfl.errors import ConfigError
from simulators import alone, report
from simulators.arguments import LEARNING_RATE, add_fleet, convert_config, settings_for
from simulators.datasets import FleetData
from simulators.datasets.arguments import data_of
from simulators.experiment import Kill, accuracy_of, bundle_for, run_on, save
from simulators.progress import RunProgress
from simulators.report import DemoResult, Point
from simulators.stage import Stage, Trained

LEAST = 2  # one agent has a process of its own, and the fleet is at least one more
SPREAD = 5  # rounds over which the agents' bytes are taken together
LEGEND = """accuracy: the fraction right of a device's own examples that nobody trained on; worst decile: the mean
of the worst tenth of the devices. local only: each device alone; global model: the one that all of them made;
personal model: what each device ended with."""
DISTRIBUTIONS = ("edgepfl", "torch", "onnx", "onnxruntime", "paho-mqtt", "numpy")


class Phases:
    """Wall time by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time what happens inside."""
        print(f"{name} ...", file=sys.stderr, flush=True)
        started = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started


def main(arguments: list[str]) -> int:
    """Run the demo."""
    words = _parser().parse_args(arguments)
    settings = settings_for(words.algorithm, algorithms.parse_settings(words.set))
    kills = tuple(Kill.parse(text) for text in words.kill)
    _check(words, kills)
    config = convert_config(
        name="demo",
        rounds=words.rounds,
        steps=words.steps,
        goal=words.devices,
        minimum=words.devices,
        seed=words.seed,
        evaluate_every=max(1, words.rounds // 12),
        lease=30.0,
    )
    with tempfile.TemporaryDirectory(prefix="edgepfl-demo-") as scratch:
        folder = Path(words.keep or scratch)
        folder.mkdir(parents=True, exist_ok=True)
        result = _demo(words, config, settings, kills, folder)
    print(f"\n{report.table(result)}\n")
    report.write_html(result, words.report)
    print(f"{LEGEND}\nglobal model, SHA-256: {result.model_sha256}\npictures: {words.report}")
    if words.json is not None:
        words.json.write_text(json.dumps(report.as_json(result), indent=2) + "\n", encoding="utf-8")
    return 0


def _check(words: argparse.Namespace, kills: tuple[Kill, ...]) -> None:
    """Refuse what would only fail later, or do nothing.

    Raises:
        ConfigError: too few devices, a kill after the end, or a folder that holds something.
    """
    if words.devices < LEAST:
        raise ConfigError(f"{words.devices} devices", where="--devices", remedy=f"At least {LEAST} are a fleet")
    for kill in kills:
        if kill.round >= words.rounds:
            raise ConfigError(f"the run ends after round {words.rounds}", where=f"--kill {kill.who}@{kill.round}")
    if words.keep is not None and words.keep.exists() and any(words.keep.iterdir()):
        raise ConfigError("it holds something already", where=f"--keep {words.keep}", remedy="Name a new directory")


def _demo(
    words: argparse.Namespace, config: RunConfig, settings: dict[str, Setting], kills: tuple[Kill, ...], folder: Path
) -> DemoResult:
    phases = Phases()
    with phases.phase("data"):
        data = data_of(words, devices=words.devices, seed=words.seed)
    with Stage(data.devices, folder, broker=words.broker, threads=os.cpu_count() or 1) as stage:
        with phases.phase("export"):
            bundle = bundle_for(words.algorithm, settings, data, words.seed)
            alone_lr = {"lr": float(bundle.plan.hyper.get("lr", LEARNING_RATE))}
            baseline = bundle if words.algorithm == "fedavg" else bundle_for("fedavg", alone_lr, data, words.seed)
            file = save(bundle, folder)
        with phases.phase("federated training"):
            trained = asyncio.run(_train(stage, file, config, kills, words.algorithm))
        with phases.phase("local-only training"):
            local = alone.accuracies(baseline, data.devices, config, alone_lr, threads=os.cpu_count() or 1)
        pss = {"coordinator": stage.coordinator.pss_mib, "agent": stage.agent.pss_mib}
    return _result(words, data, config, trained, local, phases, pss)


async def _train(stage: Stage, file: Path, config: RunConfig, kills: tuple[Kill, ...], title: str) -> Trained:
    async with stage.fleet() as fleet:
        with RunProgress(title, config.rounds) as progress:
            return await run_on(stage, fleet, file, config, progress.see, kills)


def _result(
    words: argparse.Namespace,
    data: FleetData,
    config: RunConfig,
    trained: Trained,
    local: dict[str, float],
    phases: Phases,
    pss: dict[str, float],
) -> DemoResult:
    last = config.rounds + 1
    found = {"local": local}
    found |= {model: accuracy_of(model, trained.results, last) for model in ("global", "personal")}
    kept = hashlib.sha256()
    for result in trained.results:
        if result.round == last:
            kept.update(f"{result.device} {result.kept}\n".encode())
    return DemoResult(
        seed=words.seed,
        algorithm=words.algorithm,
        data=data.name,
        rounds=config.rounds,
        accuracy=found,
        curve=curve(trained, config.rounds),
        traffic=traffic(trained, config.rounds, len(data.devices) - 1),
        seconds=phases.seconds,
        seconds_per_round=fmean(cost.seconds for n, cost in trained.costs.items() if n <= config.rounds),
        model_sha256=trained.status.state_sha256,
        personal_sha256=kept.hexdigest(),
        pss_mib=pss,
        versions={name: version(name) for name in DISTRIBUTIONS} | {"python": platform.python_version()},
    )


def curve(trained: Trained, rounds: int) -> tuple[Point, ...]:
    """The fleet's means after each round: losses of every round, accuracies where they were evaluated."""
    points = []
    for done in range(rounds + 1):
        evaluated = {model: accuracy_of(model, trained.results, done + 1).values() for model in ("global", "personal")}
        losses = [r.metrics["loss"] for r in trained.results if r.round == done and "loss" in r.metrics]
        points.append(
            Point(
                done,
                global_accuracy=fmean(evaluated["global"]) if evaluated["global"] else None,
                personal_accuracy=fmean(evaluated["personal"]) if evaluated["personal"] else None,
                train_loss=fmean(losses) if losses else None,
            )
        )
    return tuple(points)


def traffic(trained: Trained, rounds: int, agents: int) -> tuple[report.Traffic, ...]:
    """Bytes of each round at the sockets.

    The agents' are read when this process hears of a commit, which may be a moment before or after the next task
    reaches them; so they are taken over some rounds at a time and spread evenly.
    """
    down: dict[int, float] = {}
    up: dict[int, float] = {}
    seen = [n for n in sorted(trained.traffic) if n <= 1 or n == rounds or n % SPREAD == 0]
    for before, after in pairwise(seen):
        spent = trained.traffic[after] - trained.traffic[before]
        share = max(1, agents) * (after - before)
        for number in range(before + 1, after + 1):
            down[number], up[number] = spent.bytes_in / share, spent.bytes_out / share
    return tuple(
        report.Traffic(down.get(n, 0.0), up.get(n, 0.0), trained.costs[n].bytes_out, trained.costs[n].bytes_in)
        for n in range(1, rounds + 1)
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="edgepfl demo",
        description="Train a personalised fleet on this machine: an MQTT broker, a coordinator and 20 real agents. "
        "Prints accuracies per model and writes a page with pictures.",
    )
    names = ", ".join(algorithms.names())
    parser.add_argument("--algorithm", default="ditto", help=f"one of {names} (default: ditto)")
    add_fleet(parser)
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same bits (default: 0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results for a program")
    parser.add_argument(
        "--report", type=Path, default=Path("report.html"), metavar="FILE", help="the page (report.html)"
    )
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="keep settings, logs and state there")
    parser.add_argument(
        "--kill",
        action="append",
        default=[],
        metavar="WHO@ROUND",
        help="kill -9 the coordinator or an agent after this round, and start it again (coordinator@20, agent@30)",
    )
    return parser
