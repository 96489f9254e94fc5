"""How many bytes of uploads the server folds in a second, beside one read of the same bytes.

Uploads are encoded tensors in memory, as they are after their digest was verified.  A few buffers are folded in turns;
together they are larger than any cache, so that each upload comes from memory as a received one does.  On one thread
processor time is what counts, so that what else the machine does matters less.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import psutil
import torch

from coordinator.exact import Grid
from coordinator.reduction import Reduction, Upload
from coordinator.transfer import room_for
from edgepfl import codec
from edgepfl.plan import Reduce, TensorSpec, Weighting, resolve, up
from edgepfl.seeds import generator
from edgepfl.tree import Tree

_TOGETHER = 128 << 20  # bytes of the buffers, above the last-level cache
_TENSOR = 300_000  # numbers in each tensor of the model
_TURNS = 3  # of each way, which take turns
_GRID = Grid.of(1e6, 1e6)  # the settings' defaults
_WAYS: dict[str, Grid | None] = {"ordered": None, "exact": _GRID}


@dataclass(frozen=True)
class ReductionRow:
    """What was measured of one way of folding.

    Attributes:
        way: "ordered" or "exact".
        d: numbers in an upload.
        k: uploads in a round.
        threads: of torch.
        device: where the sums are.
        seconds: of a whole round, in the fastest turn: decoding, folding and the mean.
        gb_per_second: bytes of uploads folded in a second.
        read_gb_per_second: of the same bytes, summed by torch once on one thread of the CPU.
        share: the former of the latter.
        peak_bytes: the greatest resident memory above that before the first round; on a GPU, of its own memory.
    """

    way: str
    d: int
    k: int
    threads: int
    device: str
    seconds: float
    gb_per_second: float
    read_gb_per_second: float
    share: float
    peak_bytes: int


def run(
    d: int, ks: Sequence[int], threads: Sequence[int], device: str, tell: Callable[[str], None]
) -> list[ReductionRow]:
    """Measure each way with each number of uploads and threads.

    Args:
        d: numbers in an upload.
        ks: uploads in a round.
        threads: of torch.
        device: where the sums are.
        tell: hears what is being measured.
    """
    specs = _specs(d)
    buffers = _buffers(specs, d, device)
    memory = _Memory(device)
    rows: list[ReductionRow] = []
    usual = torch.get_num_threads()
    try:
        for count in threads:
            for k in ks:
                tell(f"{k} uploads of {d} numbers, {count} threads")
                rows += _measured(specs, buffers, d, k, count, device, memory)
    finally:
        torch.set_num_threads(usual)
    return rows


def text(rows: Sequence[ReductionRow]) -> str:
    """The rows as a table."""
    lines = [
        "| way | d | K | threads | device | ms | GB/s | of one core's read | peak MiB |",
        "|:--|--:|--:|--:|:--|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {row.way} | {row.d:,} | {row.k:,} | {row.threads} | {row.device} | {row.seconds * 1e3:,.1f} "
        f"| {row.gb_per_second:.2f} | {row.share:.2f} of {row.read_gb_per_second:.1f} "
        f"| {row.peak_bytes / (1 << 20):.1f} |"
        for row in rows
    ]
    return "\n".join(lines)


def _measured(
    specs: dict[str, TensorSpec],
    buffers: Sequence[memoryview],
    d: int,
    k: int,
    threads: int,
    device: str,
    memory: _Memory,
) -> Iterator[ReductionRow]:
    """The ways of folding and the read, in turns."""
    reads: list[float] = []
    folds: dict[str, list[tuple[float, int]]] = {way: [] for way in _WAYS}
    for _ in range(_TURNS):
        torch.set_num_threads(1)
        reads.append(_read(specs, buffers, k))
        torch.set_num_threads(threads)
        for way, grid in _WAYS.items():
            folds[way].append((_folded(specs, buffers, k, device, grid, memory), memory.taken()))
    size = 4 * d * k / 1e9
    for way, found in folds.items():
        seconds = min(each for each, _ in found)
        yield ReductionRow(
            way=way,
            d=d,
            k=k,
            threads=threads,
            device=device,
            seconds=seconds,
            gb_per_second=size / seconds,
            read_gb_per_second=size / min(reads),
            share=min(reads) / seconds,
            peak_bytes=max(peak for _, peak in found),
        )


def _folded(
    specs: dict[str, TensorSpec], buffers: Sequence[memoryview], k: int, device: str, grid: Grid | None, memory: _Memory
) -> float:
    """Seconds of a round."""
    slots = resolve({"delta": up(Reduce.MEAN)}, specs, ())
    names = [f"d{number:07}" for number in range(k)]
    reduction = Reduction(slots, names, Weighting.EXAMPLES, device, exact=grid)
    clock = _clock(device)
    spent = 0.0
    for number, name in enumerate(names):
        data = buffers[number % len(buffers)]
        start = clock()
        reduction.offer(name, Upload(1 + number % 100, 1, lambda data=data: codec.decode(data, {"delta": specs})))  # type: ignore[misc]  # the default binds it now
        spent += clock() - start
        memory.look()
    start = clock()
    total = reduction.close(names).total["delta"]
    float(next(iter(total.values())).reshape(-1)[0])  # a GPU is done only now
    spent += clock() - start
    memory.look()
    return spent


def _read(specs: dict[str, TensorSpec], buffers: Sequence[memoryview], k: int) -> float:
    """Seconds in which torch adds up every number of the same bytes."""
    trees = [codec.decode(data, {"delta": specs})["delta"] for data in buffers]
    tensors = [[torch.from_numpy(array) for array in tree.values()] for tree in trees]
    start = time.process_time()
    for number in range(k):
        for tensor in tensors[number % len(tensors)]:
            tensor.sum()
    return time.process_time() - start


def _clock(device: str) -> Callable[[], float]:
    """Processor time on one thread, which a busy machine does not change; else the clock."""
    return time.process_time if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter


class _Memory:
    """How much more memory there is than when it was made."""

    def __init__(self, device: str) -> None:
        self._cuda = device == "cuda"
        self._process = psutil.Process()
        if self._cuda:
            torch.cuda.reset_peak_memory_stats()
        self._before = self._now()
        self._most = 0

    def look(self) -> None:
        """See what there is now."""
        self._most = max(self._most, self._now() - self._before)

    def taken(self) -> int:
        """The most since the last time this was asked."""
        most, self._most = self._most, 0
        return most

    def _now(self) -> int:
        return int(torch.cuda.max_memory_allocated()) if self._cuda else int(self._process.memory_info().rss)


def _specs(d: int) -> dict[str, TensorSpec]:
    """A model of some tensors with ``d`` numbers in all."""
    sizes = [min(_TENSOR, d - start) for start in range(0, d, _TENSOR)]
    return {f"layer{place:04}": TensorSpec((size,)) for place, size in enumerate(sizes)}


def _buffers(specs: dict[str, TensorSpec], d: int, device: str) -> list[memoryview]:
    """Encoded uploads where a received one would be."""
    count = max(2, _TOGETHER // (4 * d))
    return [_placed(codec.encode({"delta": _drawn(specs, place)}), device) for place in range(count)]


def _drawn(specs: dict[str, TensorSpec], place: int) -> Tree:
    source = generator(0, "bench", place)
    return Tree({name: source.standard_normal(spec.shape, dtype=np.float32) for name, spec in specs.items()})


def _placed(data: bytes, device: str) -> memoryview:
    room = memoryview(room_for(device)(len(data)))
    room[:] = data
    return room
