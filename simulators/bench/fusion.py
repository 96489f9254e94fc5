"""FPFC's engines side by side: time of a round, memory, and whether they agree."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import msgspec
import numpy as np
import torch

from edgepfl.errors import RunError
from simulators.bench.fusion_work import Job, Work
from simulators.report.table import as_text

HEAD = ("engine", "m", "d", "active", "ms", "mean ms", "slowest ms", "floor ms", "peak MiB", "vectors", "error")
_PIECE = 1 << 22  # numbers to compare at a time
_USABLE = 0.75  # of the memory that is free
_PAIRS = 0.85  # of all pairs that need a vector when most do


@dataclass(frozen=True)
class Plan:
    """What is measured: every engine at every size.

    Attributes:
        engines: their names; all are compared with the first one that fits into memory.
        m: numbers of devices.
        d: numbers of fused parameters.
        active: shares of the devices that take part in a round.
        rounds: of each.
        device: cpu or cuda.
        threads: of the processor; 0 is torch's usual number.
        dtype: of the rows.
    """

    engines: Sequence[str]
    m: Sequence[int]
    d: Sequence[int]
    active: Sequence[float]
    rounds: int
    device: str
    threads: int
    dtype: str

    def sizes(self) -> Iterator[list[Job]]:
        """The jobs of each size."""
        for m, d, share in product(self.m, self.d, self.active):
            s = min(max(round(share * m), 1), m)
            yield [Job(name, m, d, s, self.rounds, self.device, self.threads, self.dtype) for name in self.engines]


class Row(msgspec.Struct, frozen=True):
    """One engine at one size.

    Attributes:
        engine: its name.
        m: devices.
        d: fused parameters.
        active: devices of a round's cohort.
        rounds: how many there were.
        device: cpu or cuda.
        dtype: of the rows.
        seconds: see :class:`~simulators.bench.fusion_work.Work`, as all of the rest.
        mean_seconds: likewise.
        slowest_seconds: likewise.
        floor_seconds: likewise.
        peak_bytes: likewise.
        vectors: likewise.
        switched: likewise.
        threads: likewise.
        max_error: the greatest difference of any centre or upload from the other engine's.
        against: which other engine; empty where this is the one that others are compared with.
    """

    engine: str
    m: int
    d: int
    active: int
    rounds: int
    device: str
    dtype: str
    seconds: float
    mean_seconds: float
    slowest_seconds: float
    floor_seconds: float
    peak_bytes: int
    vectors: int
    switched: int
    threads: int
    max_error: float
    against: str


def run(plan: Plan, tell: Callable[[str], None]) -> list[Row]:
    """Measure everything.

    Args:
        plan: what.
        tell: told of each step.

    Raises:
        RunError: an engine failed.
    """
    rows: list[Row] = []
    for jobs in plan.sizes():
        with tempfile.TemporaryDirectory() as folder:
            rows += _compared(jobs, Path(folder), tell)
    return rows


def _compared(jobs: Sequence[Job], folder: Path, tell: Callable[[str], None]) -> Iterator[Row]:
    """The rows of one size."""
    first: Job | None = None
    for job in jobs:
        needs, free = needed(job), _free(job.device)
        what = f"{job.engine}, m = {job.m:,}, d = {job.d:,}, {job.active} active"
        if needs > _USABLE * free:
            tell(f"{what}: left out, as it may need {needs / 2**30:,.1f} GiB, and {free / 2**30:,.1f} are free")
            continue
        tell(what)
        done, first = _alone(job, folder / job.engine), first or job
        error = _apart(folder / first.engine, folder / job.engine, job.dtype) if first is not job else 0.0
        yield Row(
            *(job.engine, job.m, job.d, job.active, job.rounds, job.device, job.dtype),
            **{name: getattr(done, name) for name in Work.__struct_fields__},
            max_error=error,
            against="" if first is job else first.engine,
        )


def needed(job: Job) -> float:
    """Bytes that an engine may need, where most pairs of all clusters are still apart."""
    pairs, uploads = job.m * (job.m - 1) // 2, job.active * job.rounds
    vectors = {
        "naive": 2.0 * pairs,
        "lean": _PAIRS * pairs,
        "potential": _PAIRS * pairs + job.m,
        "history": float(uploads),
        "hybrid": min(uploads, 1.1 * (_PAIRS * pairs + job.m)),
    }[job.engine]
    return (vectors + 3 * job.m + 5 * job.active) * job.d * job.itemsize


def _free(device: str) -> int:
    if device == "cuda":
        free: int = torch.cuda.mem_get_info()[0]
        return free
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) << 10


def _alone(job: Job, trace: Path) -> Work:
    """Do a job in a process of its own."""
    words = [msgspec.json.encode(job).decode(), str(trace)]
    done = subprocess.run(  # noqa: S603  our own module
        [sys.executable, "-m", "simulators.bench.fusion_work", *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        tail = " | ".join(done.stderr.strip().splitlines()[-2:])
        raise RunError(f"its process failed (status {done.returncode}): {tail}", where=job.engine)
    return msgspec.json.decode(done.stdout, type=Work)


def _apart(one: Path, other: Path, dtype: str) -> float:
    """The greatest difference of two files of numbers."""
    left, right = (np.memmap(file, dtype, "r") for file in (one, other))
    starts = range(0, len(left), _PIECE)
    return max(float(np.abs(left[at : at + _PIECE] - right[at : at + _PIECE]).max()) for at in starts)


def text(rows: Sequence[Row]) -> str:
    """The rows as a table for a terminal."""
    return as_text(HEAD, [_cells(row) for row in rows])


def _cells(row: Row) -> tuple[str, ...]:
    times = (row.seconds, row.mean_seconds, row.slowest_seconds, row.floor_seconds)
    return (
        row.engine,
        f"{row.m:,}",
        f"{row.d:,}",
        str(row.active),
        *(f"{1e3 * seconds:,.1f}" for seconds in times),
        f"{row.peak_bytes / 2**20:,.0f}",
        f"{row.vectors:,}" + (f" (switched at {row.switched})" if row.switched else ""),
        f"{row.max_error:.1e}" if row.against else "-",
    )
