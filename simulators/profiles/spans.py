"""Spans of time in which something is so, drawn from a seed."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from simulators.profiles.trace import DAY

Range = tuple[float, float]
"""The least and the greatest of seconds; each draw is uniform in between."""


@dataclass(frozen=True)
class Spans:
    """Times from each start up to its end; in order, and never touching.

    Attributes:
        starts: in seconds.
        ends: likewise, as many.
    """

    starts: tuple[float, ...] = ()
    ends: tuple[float, ...] = ()

    def __contains__(self, now: float) -> bool:
        return self.around(now) is not None

    def __iter__(self) -> Iterator[tuple[float, float]]:
        return zip(self.starts, self.ends, strict=True)

    def edges(self) -> tuple[float, ...]:
        """Every start and end."""
        return self.starts + self.ends

    def around(self, now: float) -> tuple[float, float] | None:
        """The span that a time lies in."""
        index = bisect_right(self.starts, now) - 1
        return (self.starts[index], self.ends[index]) if index >= 0 and now < self.ends[index] else None


def poisson(rng: np.random.Generator, rate: float, lasting: Range, horizon: float, start: float = 0.0) -> Spans:
    """Spans that begin at random: after each end, the next comes after an exponential time.

    Args:
        rng: what to draw from.
        rate: of beginnings a day, while none is on; 0 for never.
        lasting: seconds.
        horizon: none begins after it; the last may end later.
        start: none begins before it.
    """
    starts, ends = [], []
    now = start + _wait(rng, rate)
    while now < horizon:
        length = float(rng.uniform(*lasting))
        if length > 0:
            starts.append(now)
            ends.append(now + length)
        now += length + _wait(rng, rate)
    return Spans(tuple(starts), tuple(ends))


def _wait(rng: np.random.Generator, rate: float) -> float:
    return float(rng.exponential(DAY / rate)) if rate > 0 else math.inf


def united(spans: Iterable[tuple[float, float]]) -> Spans:
    """Any spans as disjoint ones: those that overlap or touch become one, empty ones vanish."""
    starts: list[float] = []
    ends: list[float] = []
    for start, end in sorted(spans):
        if start >= end:
            continue
        if ends and start <= ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            starts.append(start)
            ends.append(end)
    return Spans(tuple(starts), tuple(ends))
