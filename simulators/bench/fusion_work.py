"""One engine of FPFC's fusion at work, in a process of its own, so that its memory can be told from all other.

Run as ``python -m simulators.bench.fusion_work JOB``, it prints what it measured.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import BinaryIO, TypeVar

import msgspec
import torch
from torch import Tensor

from coordinator.fusion import ENGINES
from coordinator.fusion.history import History
from coordinator.fusion.hybrid import Hybrid
from coordinator.fusion.lean import Lean
from edgepfl.algorithms._fusion import Columns, Engine
from edgepfl.algorithms._scad import Scad

SCAD = Scad(lam=0.6, a=3.7, xi=1e-4, rho=1.0)
_STEPS, _LR = 10, 0.1  # of a device in a round
_CLUSTERS, _APART, _NOISE = 4, 8.0, 0.3  # of the devices' minima: pairs of two clusters part, those of one fuse
_TRACED = 1 << 29  # bytes of iterates to compare
_MATRIX = 1024  # of the product that tells the machine's speed
_STREAM = 1 << 25  # numbers of the copy that tells its bandwidth
_TRIES = 5

T = TypeVar("T")


class Job(msgspec.Struct, frozen=True):
    """What one process does.

    Attributes:
        engine: its name.
        m: devices.
        d: fused parameters.
        active: how many devices take part in each round.
        rounds: how many.
        device: cpu or cuda.
        threads: of the processor; 0 is torch's usual number.
        dtype: of the rows: float32 or float64.
    """

    engine: str
    m: int
    d: int
    active: int
    rounds: int
    device: str
    threads: int
    dtype: str

    @property
    def itemsize(self) -> int:
        """Bytes of a number in a row."""
        return 8 if self.dtype == "float64" else 4

    @property
    def traced(self) -> int:
        """How many of the last rounds leave iterates to compare, at least one."""
        return max(min(self.rounds, _TRACED // (2 * self.active * self.d * self.itemsize)), 1)


class Work(msgspec.Struct, frozen=True):
    """What it measured.

    Attributes:
        seconds: of a round of the server, the median after the first tenth of the rounds: the centres of its cohort,
            then the update.  Processor time where one thread of a CPU does it all, else the clock's.
        mean_seconds: the mean of the same rounds.
        slowest_seconds: the slowest of all rounds.
        floor_seconds: the least time of the median round's arithmetic and memory traffic on this machine.
        peak_bytes: memory of the engine, the uploads and all that a round needs on the way.  On a CPU the process's
            peak resident set less what it was before, on a GPU the most that torch allocated less that.
        vectors: rows of ``d`` numbers that the engine kept in the end, without the devices' models.
        switched: the round in which hybrid went over to vectors of pairs; 0 where it did not.
        threads: of the processor.
    """

    seconds: float
    mean_seconds: float
    slowest_seconds: float
    floor_seconds: float
    peak_bytes: int
    vectors: int
    switched: int
    threads: int


class Devices:
    """Quadratic losses ``q/2 (omega - b)^2`` whose minima ``b`` are in clusters; all memory is taken at once."""

    def __init__(self, job: Job) -> None:
        generator, dtype = torch.Generator().manual_seed(0), getattr(torch, job.dtype)

        def normal(rows: int, scale: float) -> Tensor:
            return torch.randn(rows, job.d, generator=generator, dtype=dtype).mul_(scale / job.d**0.5)

        centres = normal(_CLUSTERS, _APART)
        self._b = normal(job.m, _NOISE)
        for place, row in enumerate(self._b):
            row.add_(centres[place % _CLUSTERS])
        self._b = self._b.to(job.device)
        self._q = torch.rand(job.m, 1, generator=generator, dtype=dtype).add_(0.5).to(job.device)
        self._target, self._slope = (self._b.new_ones((job.active, job.d)) for _ in range(2))

    def train(self, places: list[int], omega: Tensor, zeta: Tensor) -> Tensor:
        """Some steps from ``omega``, in place."""
        at = torch.tensor(places, device=omega.device)
        b, q = torch.index_select(self._b, 0, at, out=self._target), self._q[at]
        for _ in range(_STEPS):
            slope = torch.sub(omega, b, out=self._slope).mul_(q).add_(omega, alpha=SCAD.rho).sub_(zeta, alpha=SCAD.rho)
            omega.sub_(slope, alpha=_LR)
        return omega


@dataclass
class Meter:
    """Time and memory of this process."""

    job: Job

    def __post_init__(self) -> None:
        self._alone = self.job.threads == 1 and self.job.device == "cpu"
        self._before = self._restart()

    def timed(self, call: Callable[[], T]) -> tuple[float, T]:
        """How long a call takes, in seconds, and what it gives."""
        self._wait()
        start = self._now()
        found = call()
        self._wait()
        return self._now() - start, found

    def peak(self) -> int:
        """Bytes at the peak since the start, less those at the start."""
        found = torch.cuda.max_memory_allocated() if self.job.device == "cuda" else _status("VmHWM")
        return max(found - self._before, 0)

    def _now(self) -> float:
        return time.thread_time() if self._alone else time.perf_counter()

    def _wait(self) -> None:
        if self.job.device == "cuda":
            torch.cuda.synchronize()

    def _restart(self) -> int:
        if self.job.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            return torch.cuda.memory_allocated()
        Path("/proc/self/clear_refs").write_text("5")  # the peak is that of now
        return _status("VmRSS")


def _status(name: str) -> int:
    """A number of the kernel's on this process, bytes."""
    found = re.search(rf"^{name}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found.group(1)) << 10 if found else 0


def cohorts(job: Job) -> Iterator[list[int]]:
    """The places of each round's cohort, ascending."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(job.rounds):
        yield sorted(torch.randperm(job.m, generator=generator)[: job.active].tolist())


def opened(job: Job) -> Engine:
    """An engine that all devices have joined."""
    first = torch.zeros(job.d, dtype=getattr(torch, job.dtype), device=job.device)
    engine = ENGINES[job.engine](Columns(first), {})
    engine.join(job.m)
    return engine


def work(job: Job, trace: BinaryIO) -> Work:
    """Let an engine and its own devices go through all rounds.

    Args:
        job: which engine and how many.
        trace: gets the centres and uploads of the last rounds.
    """
    if job.threads:
        torch.set_num_threads(job.threads)
    _warm(job)
    devices = Devices(job)
    meter = Meter(job)
    engine, took, loads, switched = opened(job), [], [], 0
    for number, places in enumerate(cohorts(job), 1):
        seconds, uploaded, zeta = _round(engine, devices, meter, places)
        took.append(seconds)
        loads.append(load(engine, job))
        if not switched and isinstance(engine, Hybrid) and isinstance(engine.inside, Lean):
            switched = number
        if number > job.rounds - job.traced:
            trace.writelines(rows.cpu().numpy().data for rows in (zeta, uploaded))
    peak, counted = meter.peak(), slice(min(max(job.rounds // 10, 1), job.rounds - 1), None)
    speed, bandwidth = speeds(meter)
    floors = [max(operations / speed, moved / bandwidth) for operations, moved in loads[counted]]
    times, kept, threads = took[counted], _kept(engine), torch.get_num_threads()
    return Work(median(times), fmean(times), max(took), median(floors), peak, kept, switched, threads)


def _warm(job: Job) -> None:
    """Let the libraries take the memory and time that they need once, whatever the size."""
    small = Job(job.engine, 6, 1 << 15, 6, 2, job.device, job.threads, job.dtype)
    engine, devices = opened(small), Devices(small)
    for places in cohorts(small):
        engine.move(places, devices.train(places, engine.omega(places), engine.centres(places, 1.0)), SCAD, both=False)


def _round(engine: Engine, devices: Devices, meter: Meter, places: list[int]) -> tuple[float, Tensor, Tensor]:
    before, zeta = meter.timed(lambda: engine.centres(places, SCAD.rho))
    uploaded = devices.train(places, engine.omega(places), zeta)
    after, _ = meter.timed(lambda: engine.move(places, uploaded, SCAD, both=False))
    return before + after, uploaded, zeta


def load(engine: Engine, job: Job) -> tuple[float, float]:
    """Floating-point operations of a round's products and bytes that it has to move, at the least."""
    m, s, row = job.m, job.active, job.d * job.itemsize
    pairs, hit = m * (m - 1) // 2, s * (m - s) + s * (s - 1) // 2
    inside = engine.inside if isinstance(engine, Hybrid) else engine
    match inside:
        case History():  # all uploads meet the new ones, and make up the centres
            return 4.0 * s * inside.kept * job.d, (2.0 * inside.kept + 3 * s) * row
        case Lean():  # a vector is read for the centres, and read and written for the update
            return 4.0 * s * m * job.d, (3.0 * inside.kept * hit / max(pairs, 1) + 2 * m + 3 * s) * row
        case _:  # theta and v are read for the centres; for the update v is read, and both are written
            return 0.0, (5.0 * hit + m + 3 * s) * row


def _kept(engine: Engine) -> int:
    kept = engine.kept if isinstance(engine, History | Lean | Hybrid) else engine.count * (engine.count - 1)
    return int(kept)


def speeds(meter: Meter) -> tuple[float, float]:
    """What this machine does at its best with as many threads: float64 operations and bytes in a second."""
    square = torch.randn(_MATRIX, _MATRIX, dtype=torch.float64, device=meter.job.device)
    stream = torch.zeros(_STREAM, dtype=torch.float32, device=meter.job.device)
    copy = torch.ones_like(stream)
    product = min(meter.timed(lambda: square @ square)[0] for _ in range(_TRIES))
    moved = min(meter.timed(lambda: copy.copy_(stream))[0] for _ in range(_TRIES))
    return 2 * _MATRIX**3 / product, 2 * stream.nbytes / moved


def main(words: list[str]) -> int:
    """Do a job, given as JSON, and print the result as JSON; the iterates go into the file that is named second."""
    job = msgspec.json.decode(words[0], type=Job)
    with Path(words[1]).open("wb") as trace:
        done = work(job, trace)
    sys.stdout.write(msgspec.json.encode(done).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
