"""Many inputs for many parsers: in batches that can be repeated, in processes of their own, with what was found.

A batch is named by its target, its number and the campaign's seed, and gives the same inputs wherever it is run.  Each
runs in a process whose address space is limited to what it has at the start and :data:`ROOM` more, so an input that
makes a parser ask for more is a fault whichever function asks; of every :data:`EVERY` th input memory and calls are
counted and compared with the target's own bound.
"""

from __future__ import annotations

import hashlib
import resource
import signal
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import FrameType
from typing import NamedTuple

import msgspec
from _fuzz_oracle import Target, measured

BATCH = 10_000  # inputs
EVERY = 500
ROOM = 256 << 20  # bytes
MOST_SECONDS = 20  # of the processor's time, for one input: far more than any takes
MOST_FAULTS = 20  # of one batch that are told


class Fault(msgspec.Struct, frozen=True):
    """An input that a parser did not stand.

    Attributes:
        target: the parser's.
        what: went wrong, and where in the code.
        data: the input.
    """

    target: str
    what: str
    data: bytes


class Batch(msgspec.Struct, frozen=True):
    """What came of a batch.

    Attributes:
        target: its parser's.
        number: of the batch.
        inputs: read.
        accepted: of them.
        seconds: that it took.
        memory: bytes that one of the measured inputs took at most.
        calls: of functions, likewise.
        faults: one for each place in the code.
    """

    target: str
    number: int
    inputs: int
    accepted: int
    seconds: float
    memory: int
    calls: int
    faults: tuple[Fault, ...] = ()


class Slow(BaseException):
    """An input took too long; no parser may take this for a fault of the input."""


class Result(NamedTuple):
    """Whether an input was accepted, and what it took where that was measured."""

    accepted: bool
    memory: int = 0
    calls: int = 0


def run_batch(target: Target, seed: int, number: int, inputs: int = BATCH, every: int = EVERY) -> Batch:
    """Read the inputs of one batch."""
    random = Random(f"{seed}/{target.name}/{number}")
    faults: dict[str, Fault] = {}
    accepted = memory = calls = 0
    began = time.perf_counter()
    for k in range(inputs):
        data = target.make(random)
        found = tried(target, data, whole=k % every == 0)
        if isinstance(found, Fault):
            faults.setdefault(found.what, found)
        else:
            accepted += found.accepted
            memory, calls = max(memory, found.memory), max(calls, found.calls)
    told = tuple(faults.values())[:MOST_FAULTS]
    return Batch(target.name, number, inputs, accepted, time.perf_counter() - began, memory, calls, told)


def tried(target: Target, data: bytes, *, whole: bool) -> Result | Fault:
    """What comes of one input.

    Args:
        target: what reads it.
        data: the input.
        whole: whether to measure memory and calls.
    """
    try:
        if not whole:
            return Result(target.check(data))
        cost = measured(target, data)
        return Result(cost.accepted, cost.memory, cost.calls)
    except (Exception, Slow) as error:  # noqa: BLE001  whatever it is, it is what we look for
        place = traceback.extract_tb(error.__traceback__)[-1]
        words = f"{type(error).__name__} in {Path(place.filename).name}, line {place.lineno}: {str(error)[:200]}"
        return Fault(target.name, words, data)


@contextmanager
def limited(room: int = ROOM) -> Iterator[None]:
    """Limit this process's memory to what it has and ``room`` bytes more, and the time in which nothing is heard."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    most = pages * resource.getpagesize() + room
    resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    before = signal.signal(signal.SIGVTALRM, _too_slow)
    try:
        with warnings.catch_warnings(action="error"):  # a parser that warns of an input has not expected it
            yield
    finally:
        signal.signal(signal.SIGVTALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def watched(target: Target) -> Target:
    """The target, with an end to each input's time in :func:`limited`."""

    def check(data: bytes) -> bool:
        signal.setitimer(signal.ITIMER_VIRTUAL, MOST_SECONDS)
        try:
            return target.check(data)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    return Target(target.name, target.make, check, target.bound, target.share)


def _too_slow(_: int, __: FrameType | None) -> None:
    raise Slow(f"more than {MOST_SECONDS} s of the processor's time")


def shared_out(inputs: int, targets: Iterable[Target], batch: int = BATCH) -> dict[str, int]:
    """How many batches each target has of so many inputs, at least one."""
    chosen = tuple(targets)
    parts = sum(target.share for target in chosen)
    return {target.name: max(1, round(inputs * target.share / parts / batch)) for target in chosen}


def file_name(fault: Fault) -> str:
    """Where the input of a fault is kept: equal inputs have one name."""
    return f"{fault.target}/{hashlib.sha256(fault.data).hexdigest()[:12]}"


def rows(batches: Iterable[Batch]) -> Mapping[str, Batch]:
    """All batches of each target as one."""
    found: dict[str, Batch] = {}
    for each in batches:
        so_far = found.get(each.target)
        found[each.target] = each if so_far is None else _added(so_far, each)
    return found


def _added(one: Batch, other: Batch) -> Batch:
    faults = {fault.what: fault for fault in (*one.faults, *other.faults)}
    return Batch(
        one.target,
        max(one.number, other.number),
        one.inputs + other.inputs,
        one.accepted + other.accepted,
        one.seconds + other.seconds,
        max(one.memory, other.memory),
        max(one.calls, other.calls),
        tuple(faults.values()),
    )
