"""Every model of the zoo under several algorithms on every runtime.

Each is exported, and then trained by three devices for three rounds twice, by the exported graphs and by torch eagerly;
the two must agree in everything that either computes.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from device_agent.config import RuntimeSettings
from device_agent.runners.choice import choose
from edgepfl import algorithms
from edgepfl import bundle as bundles
from edgepfl.algorithms import Algorithm
from edgepfl.bundle import Bundle
from edgepfl.errors import GraphMismatch
from edgepfl.plan import Entry
from exporters.build import build
from exporters.fitting import fitted
from exporters.inspection import reports
from exporters.model import Model
from exporters.zoo import ZOO
from simulators.bench.agreement import Eager
from simulators.bench.job import CONTESTANTS, Job
from simulators.bench.record import Case, Failure, Record, Runtime, Speed, ZooRow
from simulators.bench.timing import measure

ALGORITHMS = ("fedavg", "ditto", "apfl", "fedper")
RUNTIMES: tuple[Runtime, ...] = ("onnx", "executorch")

TIMED = "fedavg"
"""Whose step is timed: the one that plain torch takes too."""

_TURNS = 20

Tell = Callable[[str], None]
"""Told of each stage."""


@dataclass(frozen=True)
class Matrix:
    """What to export.

    Attributes:
        models: names in :data:`exporters.zoo.ZOO`.
        algorithms: names.
        runtimes: of :data:`RUNTIMES`.
        batch: rows of a minibatch.
    """

    models: Sequence[str]
    algorithms: Sequence[str]
    runtimes: Sequence[Runtime]
    batch: int

    @property
    def cases(self) -> list[Case]:
        """One for each row, model by model."""
        return [
            Case(model, algorithm, runtime, self.batch)
            for model in self.models
            for algorithm in self.algorithms
            for runtime in self.runtimes
        ]


def run(matrix: Matrix, record: Record, keep: Callable[[Record], None], tell: Tell) -> Record:
    """Measure what the record does not have yet; a row that fails is recorded as such and does not end the run.

    Args:
        matrix: what to export.
        record: what was measured before; failures are tried again.
        keep: given the record whenever there is something new in it.
        tell: told of each stage.

    Returns:
        The record with everything in it.
    """
    expected = _Torch()
    for case in matrix.cases:
        if case in record:
            tell(f"{case}: measured before")
            continue
        try:
            made: ZooRow | Failure = _row(case, expected, tell)
        except Exception as error:  # noqa: BLE001  whatever it is, it must not end a run of an hour
            made = Failure(case, f"{type(error).__name__}: {error}")
        tell(f"{case}: {made.summary}")
        record = record.having(made)
        keep(record)
    return record


def _row(case: Case, torch_: _Torch, tell: Tell) -> ZooRow:
    tell(f"{case}: export")
    started = time.process_time()  # of this process alone: machines are busy
    built, model = _parts(case.model, case.algorithm, case.batch)
    bundle = build(built, model, runtimes=(case.runtime,))
    seconds = time.process_time() - started
    tell(f"{case}: compare with torch")
    runner = choose(RuntimeSettings(kind=case.runtime)).runner(bundle)
    error = torch_.of(case, built, model).error(bundle, runner)
    if not math.isfinite(error.value):
        raise GraphMismatch("what it computes is not finite", where=str(case), remedy="Report it")
    speed = _speed(case, bundle) if case.algorithm == TIMED else None
    found = {report.graph: report for report in reports(bundle)}
    step = found[Entry.STEP.value]
    return ZooRow(
        case=case,
        title=model.title,
        parameters=sum(spec.size for spec in model.specs.values()),
        export_seconds=round(seconds, 1),
        step_bytes=step.bytes,
        graph_bytes=sum(report.bytes for report in found.values()),
        nodes=sum(map(step.count, step.operators)),
        delegated=None if step.delegates is None else step.count("xnnpack"),
        error=error.value,
        speed=speed,
        draws=error.draws,
    )


def _parts(name: str, algorithm: str, batch: int) -> tuple[Algorithm, Model]:
    built = algorithms.build(algorithm, {})
    return built, fitted(built, ZOO[name](batch=batch), own=("head.*",))


class _Torch:
    """What torch computes, kept for the runtimes of one model and algorithm one after the other."""

    def __init__(self) -> None:
        self._last: tuple[tuple[str, str, int], Eager] | None = None

    def of(self, case: Case, algorithm: Algorithm, model: Model) -> Eager:
        """Of the case's model and algorithm, whichever its runtime."""
        key = (case.model, case.algorithm, case.batch)
        if self._last is None or self._last[0] != key:
            self._last = (key, Eager(algorithm, model))
        return self._last[1]


def _speed(case: Case, bundle: Bundle) -> Speed:
    """Side by side with plain torch, on one thread."""
    before = torch.get_num_threads()
    try:
        with tempfile.TemporaryDirectory(prefix="edgepfl-zoo-") as folder:
            file = Path(folder) / "step.bundle"
            file.write_bytes(bundles.pack(bundle))
            job = Job(case.model, case.batch, 1, file)
            steps = {name: CONTESTANTS[name].step(job) for name in ("eager", case.runtime)}
            times = measure(steps, _TURNS)
    finally:
        torch.set_num_threads(before)
    return Speed(us=round(times[case.runtime].best(1), 1), eager_us=round(times["eager"].best(1), 1))
