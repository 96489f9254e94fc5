"""What a benchmark of steps gives: one row for each model, runner and number of threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulators.report.table import as_text

BASE = "eager"
"""The runner whose time the others' are compared with."""

AGAINST = "onnx"
"""The runner whose time ExecuTorch's is compared with."""

HEAD = ("model", "runner", "threads", "us", "median us", "of eager", "of onnx", "of floor", "PSS MiB")


@dataclass(frozen=True)
class Row:
    """One runner's step.

    Attributes:
        algorithm: whose step.
        model: the model.
        runner: what took the step.
        threads: that one operator could use.
        us: microseconds of a step: on one thread the processor's time in the cheapest turn, which other processes
            hardly change; on several threads by the clock, in the fastest turn.
        median_us: by the clock, in the median turn.
        pss_mib: proportional set size of a process that does nothing else, with the most threads that were measured;
            None where it was not measured.
        floor_us: what the step's matrix products and convolutions would take at the machine's measured peak.
        ratio: of torch eager's time on as many threads; None without it.
        of_onnx: of onnxruntime's time on as many threads, for ExecuTorch; else None.
    """

    algorithm: str
    model: str
    runner: str
    threads: int
    us: float
    median_us: float
    pss_mib: float | None
    floor_us: float
    ratio: float | None
    of_onnx: float | None = None


def text(rows: Sequence[Row]) -> str:
    """The rows as a table for a terminal."""
    return as_text(HEAD, [_cells(row) for row in rows])


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.model,
        row.runner,
        str(row.threads),
        f"{row.us:,.0f}",
        f"{row.median_us:,.0f}",
        _times(row.ratio),
        _times(row.of_onnx),
        f"{row.us / row.floor_us:.1f}x",
        "-" if row.pss_mib is None else f"{row.pss_mib:.0f}",
    )


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x"
