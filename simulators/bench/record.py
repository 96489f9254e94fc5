"""What ``edgepfl bench zoo`` measured, as a file that a run which was cut off goes on from."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from simulators import kept
from simulators.bench.agreement import TOLERANCE

Runtime = Literal["onnx", "executorch"]


@dataclass(frozen=True)
class Case:
    """One row to measure.

    Attributes:
        model: its name in the zoo.
        algorithm: the algorithm.
        runtime: the runtime.
        batch: rows of a minibatch.
    """

    model: str
    algorithm: str
    runtime: Runtime
    batch: int

    def __str__(self) -> str:
        return f"{self.model}, {self.algorithm}, {self.runtime}"


@dataclass(frozen=True)
class Speed:
    """A training step on one thread.

    Attributes:
        us: microseconds of processor time that the runtime needs.
        eager_us: that plain torch needs, measured in turns with the runtime.
    """

    us: float
    eager_us: float


@dataclass(frozen=True)
class ZooRow:
    """One model under one algorithm on one runtime.

    Attributes:
        case: which.
        title: the model in words.
        parameters: numbers in the model, running statistics among them.
        export_seconds: of processor time, to trace, export and check all graphs.
        step_bytes: of the step's graph.
        graph_bytes: of all graphs.
        nodes: operators of the step's graph.
        delegated: of them, those that XNNPACK runs; None on another runtime.
        error: the greatest difference from eager torch over the rounds, relative to the greatest element of the tensor
            or metric that it is in.
        speed: of the step; None where it was not measured.
        draws: of data that the comparison took: see :mod:`simulators.bench.agreement`.
    """

    case: Case
    title: str
    parameters: int
    export_seconds: float
    step_bytes: int
    graph_bytes: int
    nodes: int
    delegated: int | None
    error: float
    speed: Speed | None = None
    draws: int = 1

    @property
    def right(self) -> bool:
        """Whether the graphs computed what torch does."""
        return self.error <= TOLERANCE

    @property
    def summary(self) -> str:
        """For people."""
        return f"exported in {self.export_seconds:.1f} s, {self.nodes} operators, error {self.error:.1e}"


@dataclass(frozen=True)
class Failure:
    """A case that gave no row.

    Attributes:
        case: which.
        reason: the error.
    """

    case: Case
    reason: str

    @property
    def summary(self) -> str:
        """For people."""
        return f"FAILED: {self.reason}"


@dataclass(frozen=True)
class Record:
    """All that was measured.

    Attributes:
        rows: what worked.
        failures: what did not.
    """

    rows: tuple[ZooRow, ...] = ()
    failures: tuple[Failure, ...] = ()

    def __contains__(self, case: Case) -> bool:
        """Whether the case was measured; a failure is no measurement."""
        return any(row.case == case for row in self.rows)

    @property
    def right(self) -> bool:
        """Whether nothing failed and every row is right."""
        return not self.failures and all(row.right for row in self.rows)

    def having(self, made: ZooRow | Failure) -> Record:
        """The record with one more result, in place of what it had of the case."""
        rows = tuple(row for row in self.rows if row.case != made.case)
        failures = tuple(failure for failure in self.failures if failure.case != made.case)
        if isinstance(made, Failure):
            return Record(rows, (*failures, made))
        return Record((*rows, made), failures)

    def of(self, cases: list[Case]) -> Record:
        """What it has of these cases, in their order."""
        rows = {row.case: row for row in self.rows}
        failures = {failure.case: failure for failure in self.failures}
        return dataclasses.replace(
            self,
            rows=tuple(rows[case] for case in cases if case in rows),
            failures=tuple(failures[case] for case in cases if case in failures),
        )


def read(file: Path) -> Record:
    """The record in a file; an empty one where there is no file.

    Raises:
        ConfigError: the file holds something else.
    """
    return kept.read(file, Record, "is no record of this benchmark") or Record()


def write(record: Record, file: Path) -> None:
    """Write the file anew, as a whole or not at all."""
    kept.write(record, file)
