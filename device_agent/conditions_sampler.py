"""Reads the sensors in a thread of its own, so that a slow one never holds up the network."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from edgepfl.eligibility import Readings


class Sampler:
    """The latest readings, at once.

    While nobody asks, nothing is read: the thread sleeps until the first question, and again when two intervals went by
    without one.  The first question after such a rest reads the sensors itself, because old readings would mislead.

    Args:
        sensors: reads them.
        every: seconds between two readings.
    """

    def __init__(self, sensors: Callable[[], Readings], every: float) -> None:
        self._sensors = sensors
        self._every = every
        self._latest: Readings | None = None
        self._asked = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sensors", daemon=True)

    def __call__(self) -> Readings:
        """The readings, a few intervals old at most."""
        latest = self._latest
        if latest is None:
            latest = self._latest = self._sensors()
        self._asked.set()
        return latest

    def _run(self) -> None:
        while True:
            if not self._asked.wait(2 * self._every):
                self._latest = None
                self._asked.wait()
            self._asked.clear()
            if self._stop.wait(self._every):
                return
            self._latest = self._sensors()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._asked.set()
        self._thread.join()
