"""One alarm of an agent, set anew after all that it does, and mostly to the time it is set to already."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Alarm:
    """Rings once at the time it was last set to.

    Args:
        clock: seconds that never go back.
        ring: called then, in the event loop.
    """

    __slots__ = ("_clock", "_due", "_handle", "_ring")

    def __init__(self, clock: Callable[[], float], ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._due: float | None = None
        self._handle: asyncio.TimerHandle | None = None

    def set(self, due: float | None) -> None:
        """Ring at this time, and not before; None: never."""
        if due == self._due:  # the loop keeps each timer that is cancelled until its time would have come
            return
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._due = due
        if due is not None:
            self._handle = asyncio.get_running_loop().call_later(max(0.0, due - self._clock()), self._rings)

    def _rings(self) -> None:
        self._due = self._handle = None
        self._ring()
