"""What is seen of a run from outside, status by status: waits, refusals, two agents with one name, restarts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from coordinator.journal import Status
from coordinator.status import RunStatus

MOST_WAITS = 10_000
"""Texts to keep: a large fleet gives a new one with almost every report."""


@dataclass
class Sightings:
    """What was seen so far.

    Attributes:
        last: the newest status.
        doubled: every device that was ever named as having two agents.
    """

    last: RunStatus | None = None
    doubled: dict[str, str] = field(default_factory=dict)
    _waits: dict[str, None] = field(default_factory=dict)  # a set that keeps its order
    _refused: Counter[str] = field(default_factory=Counter)  # before the coordinator's last start
    _attempts: int = 0  # that the open round has had

    def see(self, status: RunStatus) -> None:
        """Take note of a status."""
        if self.last is not None and any(status.refused.get(why, 0) < n for why, n in self.last.refused.items()):
            self._refused.update(self.last.refused)  # it was started again, and counts anew
        if status.waiting and len(self._waits) < MOST_WAITS:
            self._waits[status.waiting] = None
        self.doubled |= status.doubled
        if status.status == Status.RUNNING:
            self._attempts = status.attempt
        self.last = status

    @property
    def waits(self) -> tuple[str, ...]:
        """What the run waited for, each text once."""
        return tuple(self._waits)

    @property
    def refused(self) -> dict[str, int]:
        """Messages that the coordinator could not use, over its restarts."""
        return dict(self._refused + Counter(self.last.refused if self.last is not None else {}))

    @property
    def abandoned(self) -> int:
        """Attempts at the round that was open last which came to nothing: at least those that were followed by one."""
        if self.last is None:
            return 0
        return self._attempts + (self.last.status == Status.FAILED)
