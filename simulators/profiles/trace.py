"""When a device is there, plugged in, on Wi-Fi and not in use: its trace over a span of time.

Time is in seconds from the start of the emulation.  A trace is in one canonical form, so that equal behaviour is an
equal trace: its intervals fill ``[0, horizon)`` without gap or overlap, and two neighbours always differ.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from edgepfl.errors import ConfigError

DAY = 86400.0
HOUR = 3600.0
MONDAY = 1767571200.0  # 2026-01-05 00:00 UTC
"""Unix time at which an emulation starts, unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Presence:
    """How a device is, at one time.

    Attributes:
        online: it has a network.
        charging: it is plugged in.
        wifi: its network is Wi-Fi or cable; else it is mobile, and metered.
        idle: nobody uses it.
    """

    online: bool = False
    charging: bool = False
    wifi: bool = False
    idle: bool = False

    @property
    def ready(self) -> bool:
        """All four: the classic condition for training on phones (Bonawitz et al. 2019, section 3)."""
        return self.online and self.charging and self.wifi and self.idle


AWAY = Presence()
ALWAYS = Presence(online=True, charging=True, wifi=True, idle=True)


@dataclass(frozen=True, slots=True)
class Interval:
    """A device's presence from ``start`` up to ``end``, in seconds."""

    start: float
    end: float
    presence: Presence


@dataclass(frozen=True)
class Trace:
    """A device's presence from 0 to ``horizon``.  After the horizon the last interval goes on for ever.

    Build one with :meth:`of`, which fills gaps with :data:`AWAY` and joins equal neighbours.

    Attributes:
        intervals: in order, without gap or overlap, from 0 to the horizon.
        zone: seconds east of UTC of the device's local time.

    Raises:
        ConfigError: the intervals are none, or not in canonical form.
    """

    intervals: tuple[Interval, ...]
    zone: float = 0.0

    def __post_init__(self) -> None:
        ends = [0.0, *(each.end for each in self.intervals)]
        joined = all(each.start == end for each, end in zip(self.intervals, ends, strict=False))
        rising = all(each.start < each.end < math.inf for each in self.intervals)
        pairs = zip(self.intervals, self.intervals[1:], strict=False)
        if not self.intervals or not joined or not rising or any(a.presence == b.presence for a, b in pairs):
            raise ConfigError(
                "its intervals do not fill the time from 0 on, each once", where="trace", remedy="Use Trace.of"
            )

    @classmethod
    def of(cls, intervals: Iterable[Interval], horizon: float, zone: float = 0.0) -> Self:
        """A trace of intervals in order; what lies outside ``[0, horizon)`` is cut off, gaps are :data:`AWAY`.

        Raises:
            ConfigError: two intervals overlap, one ends before it starts, or the horizon is not positive and finite.
        """
        if not 0 < horizon < math.inf:
            raise ConfigError(f"{horizon:g} is no horizon", where="trace", remedy="Give a positive number of seconds")
        return cls(tuple(_joined(_filled(intervals, horizon))), zone)

    @property
    def horizon(self) -> float:
        """Seconds that the trace covers."""
        return self.intervals[-1].end

    @cached_property
    def _starts(self) -> list[float]:
        return [each.start for each in self.intervals]

    def at(self, now: float) -> Presence:
        """The device's presence at a time; before 0 it is as at 0."""
        return self.intervals[max(bisect_right(self._starts, now) - 1, 0)].presence

    def between(self, start: float, end: float) -> Iterator[Interval]:
        """The intervals of ``[start, end)``, cut to it; the last one goes on for ever."""
        first = max(bisect_right(self._starts, start) - 1, 0)
        for each in self.intervals[first:]:
            until = math.inf if each is self.intervals[-1] else each.end
            low, high = max(start, each.start), min(end, until)
            if low < high:
                yield Interval(low, high, each.presence)


def _filled(intervals: Iterable[Interval], horizon: float) -> Iterator[Interval]:
    at = 0.0
    before = -math.inf
    for each in intervals:
        if not before <= each.start < each.end:
            raise ConfigError(
                f"the interval {each.start:g} to {each.end:g} overlaps the one before it, or is empty",
                where="trace",
                remedy="Give intervals in order of time",
            )
        before = each.end
        start, end = max(each.start, 0.0), min(each.end, horizon)
        if start >= end:
            continue
        if at < start:
            yield Interval(at, start, AWAY)
        yield Interval(start, end, each.presence)
        at = end
    if at < horizon:
        yield Interval(at, horizon, AWAY)


def _joined(intervals: Iterable[Interval]) -> Iterator[Interval]:
    """Equal neighbours as one."""
    last: Interval | None = None
    for each in intervals:
        if last is not None and last.presence == each.presence:
            last = Interval(last.start, each.end, last.presence)
            continue
        if last is not None:
            yield last
        last = each
    if last is not None:
        yield last
