"""``edgepfl compare``: several algorithms on the same fleet, at equal local work, and one table."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from coordinator.config import RunConfig
from edgepfl import algorithms
from edgepfl.bundle import Bundle
from edgepfl.errors import GraphFailed, RunError
from simulators import alone, runs_file
from simulators.arguments import add_fleet, convert_config, settings_for
from simulators.datasets import FleetData
from simulators.datasets.arguments import data_of, described
from simulators.experiment import accuracy_of, bundle_for, run_on, save, with_seed
from simulators.fleet import AgentFleet
from simulators.progress import RunProgress
from simulators.report import Summary, comparison_markdown, comparison_text, summary
from simulators.runs_file import Ran, Runs, Setup
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
    data = data_of(words, devices=words.devices, seed=0)
    names = algorithms.names() if words.algorithms == EVERY else [name.strip() for name in words.algorithms.split(",")]
    for name in names:
        algorithms.load(name)  # all are there before the first is exported
    given = algorithms.parse_settings(words.set)
    setup = Setup(described(words), words.devices, words.rounds, words.steps, tuple(words.set))
    runs = runs_file.read(words.json, setup)
    tuned = TUNED.get(data.name, {})
    every = dict.fromkeys(["fedavg", *names])
    bundles = {name: _bundle(name, {**tuned.get(name, {}), **given}, data) for name in every}
    with tempfile.TemporaryDirectory(prefix="edgepfl-compare-") as folder:
        stage = Stage(data.devices, Path(folder), broker=words.broker, threads=os.cpu_count() or 1)
        with stage:
            runs = asyncio.run(_compare(words, stage, data, bundles, names, runs))
    found = _table(runs, [LOCAL_ONLY, *names], range(words.seed, words.seed + words.seeds))
    print(comparison_text(found))
    if words.markdown is not None:
        words.markdown.write_text(comparison_markdown(found) + "\n", encoding="utf-8")
    failed = [each for each in runs.runs if each.failure]
    for each in failed:
        print(f"FAILED {each.algorithm}, seed {each.seed}: {each.failure}", file=sys.stderr)
    return 1 if failed else 0


async def _compare(
    words: argparse.Namespace,
    stage: Stage,
    data: FleetData,
    bundles: Mapping[str, Bundle],
    names: Sequence[str],
    runs: Runs,
) -> Runs:
    """The runs with all that are wanted; those that are there are not made again."""
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
            for name in (LOCAL_ONLY, *names):
                if runs.of(name, seed) is None:
                    bundle = with_seed(bundles["fedavg" if name == LOCAL_ONLY else name], data, seed)
                    runs = runs.having(await _ran(name, stage, fleet, data, bundle, config))
                    runs_file.write(runs, words.json)
    return runs


async def _ran(name: str, stage: Stage, fleet: AgentFleet, data: FleetData, bundle: Bundle, config: RunConfig) -> Ran:
    """One run; one that fails, because it diverges, say, ends no comparison."""
    try:
        if name == LOCAL_ONLY:
            return await _alone(name, data, bundle, config)
        return await _run(name, stage, fleet, bundle, config)
    except (RunError, GraphFailed) as error:
        print(f"{name}, seed {config.seed}: {error}", file=sys.stderr, flush=True)
        return Ran(name, config.seed, {}, str(error))


async def _alone(name: str, data: FleetData, bundle: Bundle, config: RunConfig) -> Ran:
    """The baseline, which needs no fleet."""
    local = await asyncio.to_thread(alone.accuracies, bundle, data.devices, config, bundle.plan.hyper)
    found = summary(local.values())
    print(f"seed {config.seed}, {name}: mean {found.mean:.3f}", file=sys.stderr, flush=True)
    return Ran(name, config.seed, {name: found})


async def _run(name: str, stage: Stage, fleet: AgentFleet, bundle: Bundle, config: RunConfig) -> Ran:
    """One run over MQTT."""
    file = await asyncio.to_thread(save, bundle, stage.folder)
    with RunProgress(f"{name}, seed {config.seed}", config.rounds) as progress:
        trained = await run_on(stage, fleet, file, config, progress.see)
    before, after = (_methods(name, bundle, trained, round_) for round_ in (1, config.rounds + 1))
    return Ran(
        name,
        config.seed,
        {
            method: replace(summary(accuracy.values()), before=summary(before[method].values()).mean)
            for method, accuracy in after.items()
        },
    )


def _methods(name: str, bundle: Bundle, trained: Trained, round_: int) -> dict[str, dict[str, float]]:
    """The rows of one run: one for each of a device's models; FedAvg's own is the global one, fine-tuned."""
    own = "fedavg, fine-tuned" if name == "fedavg" else name
    rows = {
        own if model == bundle.plan.models[0] else f"{name}, {model}": accuracy_of(model, trained.results, round_)
        for model in bundle.plan.models
    }
    return {method: rows[method] for method in sorted(rows, key=lambda method: method != own)}


def _table(runs: Runs, names: Sequence[str], seeds: Sequence[int]) -> Found:
    """Each method's summaries, without those of models that are the method's own: a global method's global model."""
    found: Found = {}
    for name in names:
        for run in filter(None, (runs.of(name, seed) for seed in seeds)):
            for method, each in run.methods.items():
                found.setdefault(method, []).append(each)
    return {method: rows for method, rows in found.items() if method == _own(method) or rows != found.get(_own(method))}


def _own(method: str) -> str:
    """The row of the method's own model."""
    return method.partition(", ")[0]


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
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="keep every run there; those that it has are not made again"
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table for a document")
    return parser
