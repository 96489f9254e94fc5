"""Chunks on their way out: granted at once, read and sent as the bus has room.

Few are with the bus at a time: a control message then never waits behind more than some chunks, and what is granted
takes no memory.  A chunk that still waits, or is with the bus, is not queued twice, however often it is asked for.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable
from typing import Literal

from edgepfl.bus._base import Bus
from edgepfl.bus.chunks import Sender
from edgepfl.errors import BusError, StoreError
from edgepfl.wire import Need

log = logging.getLogger("edgepfl.bus")
AHEAD = 4  # chunks with the bus, of which the broker has not said that it has them
AGAIN = 0.01  # seconds until the bus is looked at again: it does not say when it has room

_Chunk = tuple[str, int, int]  # the blob's digest, bytes of a chunk, index


class Outflow:
    """Answers Needs.

    Args:
        sender: of the blobs that may leave.
        bus: where chunks go.
        topic: of a chunk, from the blob's first 16 digits and the chunk's index.
        qos: of a chunk.
        ahead: chunks that may be with the bus.
    """

    def __init__(
        self,
        sender: Sender,
        bus: Bus,
        topic: Callable[[str, int], str],
        *,
        qos: Literal[0, 1] = 1,
        ahead: int = AHEAD,
    ) -> None:
        self._sender = sender
        self._bus = bus
        self._topic = topic
        self._qos: Literal[0, 1] = qos
        self._ahead = ahead
        self._waiting: dict[_Chunk, float] = {}  # and when each may go, in the order in which they were asked for
        self._flying: deque[tuple[_Chunk, int]] = deque()  # with the bus, and their bytes
        self._said = ""

    def needed(self, need: Need, now: float) -> None:
        """Queue what a Need asks for, and send what can go.

        Raises:
            StoreError: the store failed.
        """
        self._land()
        flying = {chunk for chunk, _ in self._flying}
        for index, when in self._sender.granted(need, now).items():
            chunk = (need.sha256, need.chunk, index)
            if chunk not in flying:
                self._waiting.setdefault(chunk, when)
        self.pump(now)

    def pump(self, now: float) -> None:
        """Send what waits, as far as the bus has room."""
        self._land()
        room = self._ahead - len(self._flying)
        if room <= 0:
            return
        ready = (chunk for chunk, when in self._waiting.items() if when <= now)
        for chunk in tuple(itertools.islice(ready, room)):
            if not self._sends(chunk, now):
                return
            del self._waiting[chunk]

    def _sends(self, chunk: _Chunk, now: float) -> bool:
        """Whether a chunk need not wait any longer: it is sent, or can never be."""
        sha256, size, index = chunk
        try:
            data = self._sender.read(sha256, size, index)
            if not self._bus.publish(self._topic(sha256[:16], index), data, qos=self._qos):
                return False
        except StoreError as error:  # deleted since it was asked for
            log.info("a chunk is not sent: %s", error)
        except BusError as error:
            self._say(str(error))
        else:
            self._sender.sent(sha256, size, index, now)
            self._flying.append((chunk, len(data)))
        return True

    @property
    def waiting(self) -> int:
        """How many chunks wait; while any do, :meth:`pump` must be called every ``AGAIN`` seconds."""
        return len(self._waiting)

    def forget(self) -> None:
        """The connection was lost, and whoever still lacks a chunk asks anew."""
        self._waiting.clear()
        self._flying.clear()
        self._sender.forget()

    def _land(self) -> None:
        """Forget what the bus has got rid of; other messages with it may make a chunk seem to fly on."""
        backlog = self._bus.backlog
        while self._flying and sum(size for _, size in self._flying) > backlog:
            self._flying.popleft()

    def _say(self, error: str) -> None:
        """An error that would come for every chunk of a blob is said once."""
        if error != self._said:
            self._said = error
            log.error("a chunk can never be sent: %s", error)
