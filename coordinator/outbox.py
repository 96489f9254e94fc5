"""Messages on their way out: one that the bus has no room for waits, instead of being lost.

A fleet that comes back all at once is told more than a bus can hold.  What waits is the newest message of each
address, in the order in which they came to wait: ours are idempotent, and an older one of the same address says nothing
any more.  They are encoded when they go, so that a thousand tasks with one download hold its bytes once.
"""

from __future__ import annotations

from collections.abc import Callable

from edgepfl.topics import Address
from edgepfl.wire import Message


class Outbox:
    """What waits for the bus.

    Args:
        publish: sends a message, or says False where the bus has no room for it.
    """

    def __init__(self, publish: Callable[[Address, Message], bool]) -> None:
        self._publish = publish
        self._waiting: dict[Address, Message] = {}

    @property
    def waiting(self) -> int:
        """How many messages wait; while any do, :meth:`pump` must be called now and then."""
        return len(self._waiting)

    def send(self, address: Address, message: Message) -> None:
        """Send it now, or after those that wait."""
        if self._waiting or not self._publish(address, message):
            self._waiting.pop(address, None)  # the newest has its place at the end
            self._waiting[address] = message

    def pump(self) -> None:
        """Send what waits, as far as the bus has room."""
        for address, message in tuple(self._waiting.items()):
            if not self._publish(address, message):
                return
            del self._waiting[address]

    def forget(self) -> None:
        """The connection was lost: everyone is asked for a Hello and told anew."""
        self._waiting.clear()
