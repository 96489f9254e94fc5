"""The comparison with other systems as text, as a page's table, and for programs."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from simulators.bench.peer_programs.common import Job
from simulators.bench.peers import CONTESTANTS, Row
from simulators.report.table import as_markdown, as_text

HEAD = ("system", "what it is", "s a round", "device-rounds/s", "start, s", "model apart", "versions")


def text(job: Job, rows: Sequence[Row]) -> str:
    """For a terminal."""
    return f"{as_text(HEAD, [_cells(job, row) for row in rows])}\n{_about(job)}"


def markdown(job: Job, rows: Sequence[Row]) -> str:
    """For a document."""
    return f"{as_markdown(HEAD, [_cells(job, row) for row in rows])}\n\n{_about(job)}"


def as_json(job: Job, row: Row) -> Mapping[str, object]:
    """A row for a program, with what is derived from it."""
    derived = {} if row.failure else {"round_seconds": row.round_seconds, "device_rounds_per_second": _speed(job, row)}
    return {**asdict(row), "versions": dict(row.versions), **derived, "right": row.right}


def machine() -> str:
    """What this ran on."""
    return f"{_processor()}, {os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()}"


def _cells(job: Job, row: Row) -> tuple[str, ...]:
    contestant = CONTESTANTS[row.name]
    if row.failure:
        return (contestant.title, contestant.kind, "-", "-", "-", "-", f"FAILED: {row.failure}")
    return (
        contestant.title,
        contestant.kind,
        f"{row.round_seconds:.3f}",
        f"{_speed(job, row):,.0f}",
        f"{row.start:.1f}",
        f"{row.apart:.0e}",
        ", ".join(f"{name} {version}" for name, version in row.versions.items() if name != "edgepfl"),
    )


def _speed(job: Job, row: Row) -> float:
    return job.devices / row.round_seconds


def _about(job: Job) -> str:
    return (
        f"{job.devices} devices, perceptron {job.inputs}-{job.hidden}-{job.classes}, {job.steps} steps on "
        f"{job.batch} examples, FedAvg; s a round: median of {job.rounds - 1} rounds after the first; start: from "
        f"nothing to the end of the first round; model apart: from the first row's, relative. {machine()}"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
