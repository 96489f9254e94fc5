"""Virtual time, and a bus with faults."""

from __future__ import annotations

import hashlib
import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from edgepfl.wire import BlobRef


def sha(*parts: object) -> str:
    """A digest of some words."""
    return hashlib.sha256("|".join(map(str, parts)).encode()).hexdigest()


def ref(sha256: str) -> BlobRef:
    return BlobRef(sha256, 1 << 20)


@dataclass(frozen=True)
class Faults:
    """Probabilities, and seconds.

    Attributes:
        loss: of a message, and with it of the device's connection.
        repetition: of a message.
        delay: of a message, at most; what is sent later may come earlier.
        agent: seconds between power cuts of some agent; 0 for none.
        coordinator: likewise.
        cut: between a device's commit and its report.
        failure: of a task.
        stuck: of a blob, which then never comes.
    """

    loss: float = 0.0
    repetition: float = 0.0
    delay: float = 0.0
    agent: float = 0.0
    coordinator: float = 0.0
    cut: float = 0.0
    failure: float = 0.0
    stuck: float = 0.0


CALM = Faults()


class World:
    """Virtual time, and the bus."""

    def __init__(self, faults: Faults, seed: int) -> None:
        self.faults = faults
        self.random = Random(seed)
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + seconds, next(self._order), what))

    def send(self, deliver: Callable[[], None], lost: Callable[[], None]) -> None:
        """A message goes its way, or two of it, or none."""
        if self.chance(self.faults.loss):
            lost()
            return
        for _ in range(1 + self.chance(self.faults.repetition)):
            self.after(self.random.uniform(0.0, self.faults.delay), deliver)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def run(self, until: Callable[[], bool], limit: float) -> None:
        """Let time pass until something is true; it must be true before the limit."""
        while not until():
            assert self._queue
            self.now, _, what = heapq.heappop(self._queue)
            assert self.now < limit, "it never ends"
            what()
