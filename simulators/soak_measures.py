"""What a soak measures, and whether it passed: pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import msgspec
import numpy as np

MB = 1e6
LEAK = 1.0
"""MB a minute from which a process leaks."""
LONGEST_WARMUP = 180.0  # seconds


@dataclass(frozen=True)
class Sample:
    """A process's memory at one moment.

    Attributes:
        at: seconds since the soak began.
        process: its number: a process that was killed and started again has another.
        rss: resident set size in MB.
        pss: proportional set size in MB: shared pages count by share.
    """

    at: float
    process: int
    rss: float
    pss: float


Memory = Mapping[str, Sequence[Sample]]
"""Samples by who it is: "coordinator", "fleet", "broker"."""


class Latency(msgspec.Struct, frozen=True):
    """How long messages were under way, in milliseconds."""

    count: int = 0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    worst_ms: float = 0.0


class Growth(msgspec.Struct, frozen=True):
    """A process's memory: least-squares slopes in MB a minute after the warm-up, and the greatest RSS in MB."""

    rss_slope: float
    pss_slope: float
    rss_peak: float


class SoakResult(msgspec.Struct, frozen=True):
    """A soak.

    Attributes:
        seed: of the faults and of the run.
        broker: its kind.
        devices: emulated; all of them take part in every round.
        minutes: that it took.
        rounds: committed.
        reports: that count, over all committed rounds.
        expected: devices times rounds.
        abandoned: attempts at a round that came to nothing.
        behind: devices that do not know in the end what became of their last report.
        cuts: of devices' connections.
        coordinator_cuts: of the coordinator's.
        kills: of the broker, with SIGKILL; it comes back empty.
        unanswered: probes without an answer: lost with a connection, and never sent again.
        echo: a message's way over the broker and back.
        control: a device's report to the coordinator's answer.
        memory: growth by process.
        bytes_in: at the coordinator's socket, over all committed rounds.
        bytes_out: likewise.
        refused: messages that the coordinator could not use, by reason.
    """

    seed: int
    broker: str
    devices: int
    minutes: float
    rounds: int
    reports: int
    expected: int
    abandoned: int
    behind: int
    cuts: int
    coordinator_cuts: int
    kills: int
    unanswered: int
    echo: Latency
    control: Latency
    memory: dict[str, Growth]
    bytes_in: int = 0
    bytes_out: int = 0
    refused: dict[str, int] = {}

    @property
    def failures(self) -> tuple[str, ...]:
        """What it failed by, for people; nothing where it passed."""
        found = []
        if not self.rounds:
            found.append("no round was committed")
        if self.reports != self.expected:
            found.append(f"{self.expected - self.reports} of {self.expected} reports are lost")
        if self.behind:
            found.append(f"{self.behind} devices do not know what became of their report")
        found += [
            f"{name} grows by {growth.rss_slope:.2f} MB a minute"
            for name, growth in self.memory.items()
            if growth.rss_slope >= LEAK
        ]
        return tuple(found)


def latency(seconds: Sequence[float]) -> Latency:
    """What many ways come to."""
    if not seconds:
        return Latency()
    p50, p99 = np.percentile(seconds, (50, 99))
    return Latency(len(seconds), *(round(1000 * float(each), 2) for each in (p50, p99, max(seconds))))


def growth(samples: Sequence[Sample]) -> Growth:
    """What a process's samples come to, over all its lives; at least one sample."""
    warmup = min(LONGEST_WARMUP, (samples[-1].at - samples[0].at) / 5)
    return Growth(
        rss_slope=round(slope(samples, warmup, lambda each: each.rss), 4),
        pss_slope=round(slope(samples, warmup, lambda each: each.pss), 4),
        rss_peak=round(max(each.rss for each in samples), 1),
    )


def slope(samples: Sequence[Sample], warmup: float, value: Callable[[Sample], float]) -> float:
    """The least-squares slope a minute of a value.

    A process that was killed begins anew: each of its lives has a level of its own, and all have one slope (least
    squares with fixed effects).

    Args:
        samples: in the order of time.
        warmup: seconds at the start of each life that do not count.
        value: of a sample.
    """
    along, up = 0.0, 0.0
    for life in _lives(samples):
        rest = [each for each in life if each.at - life[0].at >= warmup]
        if not rest:
            continue
        minutes = np.array([each.at for each in rest]) / 60
        values = np.array([value(each) for each in rest])
        minutes -= minutes.mean()
        along += float(minutes @ (values - values.mean()))
        up += float(minutes @ minutes)
    return along / up if up else 0.0


def _lives(samples: Iterable[Sample]) -> list[list[Sample]]:
    return [list(life) for _, life in groupby(samples, key=lambda each: each.process)]
