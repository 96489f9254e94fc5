"""The benchmark itself: export, make each contestant's step, time them in turns, measure their memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgepfl import algorithms, bundle
from edgepfl.errors import EdgepflError
from simulators.bench.floor import operations, peak
from simulators.bench.graphs import step_bundle
from simulators.bench.job import CONTESTANTS, Job, Step
from simulators.bench.models import MODELS
from simulators.bench.resident import pss_mib
from simulators.bench.result import AGAINST, BASE, Row
from simulators.bench.timing import measure

Tell = Callable[[str], None]
"""Told what is about to be done, and what cannot be."""


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes:
        models: names in :data:`simulators.bench.models.MODELS`.
        runners: names in :data:`simulators.bench.job.CONTESTANTS`.
        threads: numbers of threads.
        batch: rows of the minibatch.
        rounds: turns of each runner.
        memory: whether to measure memory too.
        algorithm: whose step; plain torch always takes FedAvg's, which is SGD's.
    """

    models: Sequence[str]
    runners: Sequence[str]
    threads: Sequence[int]
    batch: int
    rounds: int
    memory: bool
    algorithm: str = "fedavg"


def run(plan: Plan, folder: Path, tell: Tell) -> list[Row]:
    """The rows, model by model.

    Args:
        plan: what to measure.
        folder: for the exported graphs.
        tell: told of each stage.
    """
    peaks = {threads: peak(threads, plan.rounds) for threads in plan.threads}
    for threads, found in peaks.items():
        tell(f"peak of this machine, {threads} thread(s): {found / 1e9:.0f} GFLOP/s")
    rows = []
    for name in plan.models:
        files = _exported(plan, name, folder, tell)
        measured = []
        for threads in plan.threads:
            jobs = {runner: Job(name, plan.batch, threads, files[_graphs(runner)]) for runner in plan.runners}
            measured += _rows(plan, jobs, peaks[threads], tell)
        rows += _with_memory(plan, measured, files, tell) if plan.memory else measured
    return rows


def _graphs(runner: str) -> str:
    return CONTESTANTS[runner].graphs


def _exported(plan: Plan, name: str, folder: Path, tell: Tell) -> dict[str, Path]:
    """A bundle for each kind of graphs: what cannot be exported is missing only there."""
    files = {}
    for kind in dict.fromkeys(map(_graphs, plan.runners)):
        files[kind] = folder / f"{name}.{kind}.bundle"
        if not kind:
            continue
        tell(f"{name}: export, {kind}")
        try:
            made = step_bundle(algorithms.build(plan.algorithm, {}), MODELS[name](plan.batch), kind)
            files[kind].write_bytes(bundle.pack(made))
        except EdgepflError as error:
            tell(f"{name}: no export, {kind}: {error}")
    return files


def _rows(plan: Plan, jobs: Mapping[str, Job], peak_: float, tell: Tell) -> list[Row]:
    steps: dict[str, Step] = {}
    first = next(iter(jobs.values()))
    for runner, job in jobs.items():
        tell(f"{job.model}: prepare {CONTESTANTS[runner].title}, {job.threads} thread(s)")
        try:
            steps[runner] = CONTESTANTS[runner].step(job)
            steps[runner]()
        except (ImportError, OSError, EdgepflError) as error:
            steps.pop(runner, None)
            tell(f"{job.model}: left out {CONTESTANTS[runner].title}: {error}")
    tell(f"{first.model}: measure, at most {plan.rounds} rounds")
    times = measure(steps, plan.rounds)
    best = {runner: time.best(first.threads) for runner, time in times.items()}
    for runner, us in best.items():
        tell(f"{first.model}: {CONTESTANTS[runner].title}, {first.threads} thread(s): {us:,.0f} us")
    floor = operations(first) / peak_ * 1e6
    return [_row(plan, jobs[runner], runner, best, times[runner].median, floor) for runner in best]


def _row(plan: Plan, job: Job, runner: str, best: Mapping[str, float], median: float, floor: float) -> Row:
    graphs = _graphs(runner)
    return Row(
        algorithm=plan.algorithm if graphs else "fedavg",
        model=job.model,
        runner=runner,
        threads=job.threads,
        us=round(best[runner], 1),
        median_us=round(median, 1),
        pss_mib=None,
        floor_us=round(floor, 1),
        ratio=_ratio(runner, best, BASE),
        of_onnx=_ratio(runner, best, AGAINST) if graphs and runner != AGAINST else None,
    )


def _ratio(runner: str, best: Mapping[str, float], base: str) -> float | None:
    return round(best[runner] / best[base], 3) if base in best else None


def _with_memory(plan: Plan, rows: list[Row], files: Mapping[str, Path], tell: Tell) -> list[Row]:
    """One process for each runner, with the most threads: how many there are hardly changes its memory."""
    found: dict[str, float] = {}
    for row in rows:
        if row.runner not in found:
            tell(f"{row.model}: memory of {CONTESTANTS[row.runner].title}")
            job = Job(row.model, plan.batch, max(plan.threads), files[_graphs(row.runner)])
            found[row.runner] = round(pss_mib(row.runner, job), 1)
    return [dataclasses.replace(row, pss_mib=found[row.runner]) for row in rows]
