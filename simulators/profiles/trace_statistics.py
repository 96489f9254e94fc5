"""What a fleet's traces amount to: who is there at which hour, and for how long."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from simulators.profiles.trace import HOUR, MONDAY, Presence, Trace

HOURS = 24
MEASURES: dict[str, Callable[[Presence], bool]] = {
    "online": lambda presence: presence.online,
    "charging": lambda presence: presence.charging,
    "wifi": lambda presence: presence.wifi,
    "idle": lambda presence: presence.idle,
    "ready": lambda presence: presence.ready,
}
"""What is told of traces; ready is all the others at once."""


@dataclass(frozen=True)
class TraceStatistics:
    """A fleet's traces in numbers.

    Attributes:
        devices: how many.
        horizon: seconds that the longest covers.
        intervals: of a device, in the mean.
        by_hour: share of devices, in the mean over each hour of the day, by measure.
        contrast: the best hour's share of ready devices over the worst's; infinite where that is 0.
        stretch: length of a stretch of being ready, in seconds, in the mean; 0 where there is none.
        never: devices that are never ready.
    """

    devices: int
    horizon: float
    intervals: float
    by_hour: dict[str, tuple[float, ...]]
    contrast: float
    stretch: float
    never: int


def statistics(traces: Collection[Trace], *, epoch: float = MONDAY, local: bool = False) -> TraceStatistics:
    """A fleet's traces in numbers.

    Args:
        traces: at least one.
        epoch: Unix time of the emulation's start.
        local: hours are each device's own; else they are UTC, as the coordinator has them.
    """
    shares = {name: by_hour(traces, wanted, epoch=epoch, local=local) for name, wanted in MEASURES.items()}
    best, worst = max(shares["ready"]), min(shares["ready"])
    stretches = [list(_stretches(trace)) for trace in traces]
    lengths = [length for each in stretches for length in each]
    return TraceStatistics(
        devices=len(traces),
        horizon=max(trace.horizon for trace in traces),
        intervals=sum(len(trace.intervals) for trace in traces) / len(traces),
        by_hour=shares,
        contrast=best / worst if worst else math.inf,
        stretch=math.fsum(lengths) / len(lengths) if lengths else 0.0,
        never=sum(not each for each in stretches),
    )


def by_hour(
    traces: Collection[Trace], wanted: Callable[[Presence], bool], *, epoch: float = MONDAY, local: bool = False
) -> tuple[float, ...]:
    """The share of time that devices are as wanted, for each of the 24 hours of the day; 0 where no trace covers it."""
    found, covered = [0.0] * HOURS, [0.0] * HOURS
    for trace in traces:
        offset = epoch + (trace.zone if local else 0.0)
        for each in trace.intervals:
            holds = wanted(each.presence)
            for hour, seconds in _hours(each.start + offset, each.end + offset):
                covered[hour] += seconds
                found[hour] += seconds * holds
    return tuple(part / whole if whole else 0.0 for part, whole in zip(found, covered, strict=True))


def _hours(start: float, end: float) -> Iterator[tuple[int, float]]:
    """The hours of the day that a span touches, and for how many seconds."""
    index = math.floor(start / HOUR)
    while index * HOUR < end:
        yield index % HOURS, min(end, (index + 1) * HOUR) - max(start, index * HOUR)
        index += 1


def _stretches(trace: Trace) -> Iterator[float]:
    """The lengths of the times that a device is ready, in seconds."""
    began: float | None = None
    for each in trace.intervals:
        if each.presence.ready and began is None:
            began = each.start
        elif not each.presence.ready and began is not None:
            yield each.start - began
            began = None
    if began is not None:
        yield trace.horizon - began
