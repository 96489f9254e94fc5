"""Events that wait for the service."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from edgepfl.bus._base import Arrived, Event

MOST_EVENTS = 1024
MOST_BYTES = 8 << 20  # of payloads


class Inbox:
    """A queue that says when it is full; what fills it then stops reading its socket, and the broker waits.

    Args:
        on_room: called when a full inbox has room again.
    """

    __slots__ = ("_bytes", "_events", "_on_room", "_something")

    def __init__(self, on_room: Callable[[], None] = lambda: None) -> None:
        self._events: deque[Event] = deque()
        self._bytes = 0
        self._something = asyncio.Event()
        self._on_room = on_room

    @property
    def full(self) -> bool:
        """Whether nothing more should be put in; what is put in nevertheless is kept."""
        return len(self._events) >= MOST_EVENTS or self._bytes >= MOST_BYTES

    def put(self, event: Event) -> None:
        """Add an event."""
        self._events.append(event)
        self._bytes += _size(event)
        self._something.set()

    async def take(self) -> Event:
        """Remove the oldest event, or wait for one."""
        while not self._events:
            self._something.clear()
            await self._something.wait()
        was_full = self.full
        event = self._events.popleft()
        self._bytes -= _size(event)
        if was_full and not self.full:
            self._on_room()
        return event


def _size(event: Event) -> int:
    return len(event.payload) if isinstance(event, Arrived) else 0
