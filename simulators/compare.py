"""``edgepfl compare``: several algorithms on the same fleet, at equal local work, and one table."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from coordinator.config import RunConfig
from edgepfl import algorithms
from edgepfl.bundle import Bundle
from simulators import alone
from simulators.arguments import add_fleet, convert_config, settings_for
from simulators.datasets import FleetData, load
from simulators.experiment import accuracy_of, bundle_for, run_on, save, with_seed
from simulators.fleet import AgentFleet
from simulators.progress import RunProgress
from simulators.report import Summary, comparison_markdown, comparison_text, summary
from simulators.settings import TUNED
from simulators.stage import Stage, Trained

LOCAL_ONLY = "local only"
DEFAULT = "fedavg,fedprox,ditto,apfl,fedper"
EVERY = "all"

Found = dict[str, list[Summary]]
"""Method to its summaries, one for each seed."""


def main(arguments: list[str]) -> int:
    """Run the comparison."""
    words = _parser().parse_args(arguments)
    data = load(words.data, devices=words.devices)
    names = algorithms.names() if words.algorithms == EVERY else [name.strip() for name in words.algorithms.split(",")]
    for name in names:
        algorithms.load(name)  # all are there before the first is exported
    given = algorithms.parse_settings(words.set)
    tuned = TUNED.get(words.data, {})
    bundles = {
        name: _bundle(name, {**tuned.get(name, {}), **given}, data) for name in dict.fromkeys(["fedavg", *names])
    }
    with tempfile.TemporaryDirectory(prefix="edgepfl-compare-") as folder:
        stage = Stage(data.devices, Path(folder), broker=words.broker, threads=os.cpu_count() or 1)
        with stage:
            found = _distinct(asyncio.run(_compare(words, stage, data, bundles, names)))
    print(comparison_text(found))
    if words.markdown is not None:
        words.markdown.write_text(comparison_markdown(found) + "\n", encoding="utf-8")
    if words.json is not None:
        rows = {method: [asdict(each) for each in summaries] for method, summaries in found.items()}
        words.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 0


async def _compare(
    words: argparse.Namespace, stage: Stage, data: FleetData, bundles: Mapping[str, Bundle], names: Sequence[str]
) -> Found:
    found: Found = {}
    async with stage.fleet() as fleet:
        for seed in range(words.seed, words.seed + words.seeds):
            config = convert_config(
                name="compare",
                rounds=words.rounds,
                steps=words.steps,
                goal=words.devices,
                minimum=words.devices,
                seed=seed,
                evaluate_every=words.rounds,  # before the first round, and after the last
            )
            start = with_seed(bundles["fedavg"], data, seed)
            local = await asyncio.to_thread(alone.accuracies, start, data.devices, config, start.plan.hyper)
            _add(found, LOCAL_ONLY, local)
            print(f"seed {seed}, {LOCAL_ONLY}: mean {found[LOCAL_ONLY][-1].mean:.3f}", file=sys.stderr, flush=True)
            for name in names:
                await _add_run(found, name, seed, stage, fleet, with_seed(bundles[name], data, seed), config)
    return found


async def _add_run(
    found: Found, name: str, seed: int, stage: Stage, fleet: AgentFleet, bundle: Bundle, config: RunConfig
) -> None:
    file = await asyncio.to_thread(save, bundle, stage.folder)
    with RunProgress(f"{name}, seed {seed}", config.rounds) as progress:
        trained = await run_on(stage, fleet, file, config, progress.see)
    before = _methods(name, bundle, trained, 1)
    for method, accuracy in _methods(name, bundle, trained, config.rounds + 1).items():
        _add(found, method, accuracy, before[method])


def _methods(name: str, bundle: Bundle, trained: Trained, round_: int) -> dict[str, dict[str, float]]:
    """The rows of one run: one for each of a device's models; FedAvg's own is the global one, fine-tuned."""
    own = "fedavg, fine-tuned" if name == "fedavg" else name
    rows = {
        own if model == bundle.plan.models[0] else f"{name}, {model}": accuracy_of(model, trained.results, round_)
        for model in bundle.plan.models
    }
    return {method: rows[method] for method in sorted(rows, key=lambda method: method != own)}


def _distinct(found: Found) -> Found:
    """Without the rows of models that are the method's own: a global method's global model."""
    return {method: rows for method, rows in found.items() if method == _own(method) or rows != found.get(_own(method))}


def _own(method: str) -> str:
    """The row of the method's own model."""
    return method.partition(", ")[0]


def _add(found: Found, method: str, accuracy: Mapping[str, float], before: Mapping[str, float] | None = None) -> None:
    first = None if before is None else summary(before.values()).mean
    found.setdefault(method, []).append(replace(summary(accuracy.values()), before=first))


def _bundle(name: str, given: Mapping[str, algorithms.Setting], data: FleetData) -> Bundle:
    """The algorithm's bundle; a ``--set`` that only other algorithms have is theirs."""
    print(f"export {name} ...", file=sys.stderr, flush=True)
    has = algorithms.hyperparameters(algorithms.load(name))
    return bundle_for(name, settings_for(name, {key: value for key, value in given.items() if key in has}), data, 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="edgepfl compare",
        description="Train the same fleet of real agents with several algorithms, at equal local work, and print one "
        "table: mean, worst decile and best accuracy over the devices, with its spread over the seeds. On the watch "
        "data each algorithm has hyperparameters that suit it (simulators/settings.py), elsewhere its step size is "
        "0.1; --set changes them for all that have the name.",
    )
    parser.add_argument(
        "--algorithms", default=DEFAULT, metavar="NAMES", help=f"comma-separated, or {EVERY} (default: {DEFAULT})"
    )
    add_fleet(parser)
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds (default: 3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table for a program")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table for a document")
    return parser
