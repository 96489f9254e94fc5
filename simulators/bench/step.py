"""The benchmark itself: export, make each contestant's step, time them in turns, measure their memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgepfl import algorithms, bundle
from edgepfl.errors import EdgepflError
from exporters.build import build
from simulators.bench.floor import operations, peak
from simulators.bench.job import CONTESTANTS, Job, Step
from simulators.bench.models import MODELS
from simulators.bench.resident import pss_mib
from simulators.bench.result import BASE, Row
from simulators.bench.timing import Time, measure

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
        for threads in plan.threads:
            jobs = {runner: Job(name, plan.batch, threads, files[_runtime(runner)]) for runner in plan.runners}
            rows += _rows(plan, jobs, peaks[threads], tell)
    return rows


def _runtime(runner: str) -> str:
    return CONTESTANTS[runner].runtime


def _exported(plan: Plan, name: str, folder: Path, tell: Tell) -> dict[str, Path]:
    """A bundle for each runtime: what cannot be exported is missing only there."""
    files = {}
    for runtime in dict.fromkeys(map(_runtime, plan.runners)):
        files[runtime] = folder / f"{name}.{runtime}.bundle"
        if not runtime:
            continue
        tell(f"{name}: export for {runtime}")
        try:
            made = build(algorithms.build(plan.algorithm, {}), MODELS[name](plan.batch), runtimes=(runtime,))
            files[runtime].write_bytes(bundle.pack(made))
        except EdgepflError as error:
            tell(f"{name}: no export for {runtime}: {error}")
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
    tell(f"{first.model}: measure, {plan.rounds} rounds")
    times = measure(steps, plan.rounds)
    for runner, time in times.items():
        tell(f"{first.model}: {CONTESTANTS[runner].title}, {first.threads} thread(s): {time.least:,.0f} us")
    floor = operations(first) / peak_ * 1e6
    return [_row(plan, jobs[runner], runner, times, floor) for runner in times]


def _row(plan: Plan, job: Job, runner: str, times: dict[str, Time], floor: float) -> Row:
    found, base = times[runner], times.get(BASE)
    return Row(
        algorithm=plan.algorithm if CONTESTANTS[runner].runtime else "fedavg",
        model=job.model,
        runner=runner,
        threads=job.threads,
        us=round(found.least, 1),
        median_us=round(found.median, 1),
        pss_mib=round(pss_mib(runner, job), 1) if plan.memory else None,
        floor_us=round(floor, 1),
        ratio=round(found.least / base.least, 3) if base else None,
    )
