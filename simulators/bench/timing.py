"""Times of several steps, taken in turns, so that what else the machine does hits them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

WARM = 3  # steps before any is timed
SLICE = 0.02  # seconds of one turn, at least one step
BUDGET = 1.0  # seconds of all turns of one step: a slow one takes fewer, but not below
FEWEST = 5


@dataclass(frozen=True)
class Time:
    """How long one step takes, in microseconds.

    Attributes:
        least: the mean over the fastest turn.
        median: of the turns.
        cpu: of the process's processor time, the mean over the cheapest turn.  Other processes that take the processor
            away do not count in it, so on one thread it is what the step takes on a quiet machine; on several it is
            the sum over the threads, waiting ones that spin among them.
    """

    least: float
    median: float
    cpu: float

    def best(self, threads: int) -> float:
        """What to compare by: processor time on one thread, which a busy machine does not change; else the clock."""
        return self.cpu if threads == 1 else self.least


def measure(steps: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, Time]:
    """The time of each step.

    Args:
        steps: by name.
        rounds: turns of each; fewer of one that has taken :data:`BUDGET` seconds.
    """
    repeats = {name: _repeats(step) for name, step in steps.items()}
    turns: dict[str, list[_Turn]] = {name: [] for name in steps}
    for number in range(rounds):
        for name, step in steps.items():
            if number < FEWEST or sum(turn.wall for turn in turns[name]) * repeats[name] < BUDGET * 1e6:
                turns[name].append(_turn(step, repeats[name]))
    return {name: _summary(found) for name, found in turns.items()}


@dataclass(frozen=True)
class _Turn:
    """Microseconds of one step: by the clock, and of the processor."""

    wall: float
    cpu: float


def _summary(turns: Sequence[_Turn]) -> Time:
    walls = [turn.wall for turn in turns]
    return Time(min(walls), statistics.median(walls), min(turn.cpu for turn in turns))


def _repeats(step: Callable[[], object]) -> int:
    _turn(step, WARM)
    return max(1, round(SLICE / max(_turn(step, 2).wall * 1e-6, 1e-9)))


def _turn(step: Callable[[], object], repeats: int) -> _Turn:
    start, cpu = time.perf_counter(), time.process_time()
    for _ in range(repeats):
        step()
    wall, used = time.perf_counter() - start, time.process_time() - cpu
    return _Turn(wall * 1e6 / repeats, used * 1e6 / repeats)
