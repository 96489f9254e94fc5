"""Messages on their way out: one that the bus has no room for waits, instead of being lost.

A fleet that comes back all at once is told more than a bus can hold.  What waits is the newest message of each
address, in the order in which they came to wait: ours are idempotent, and an older one of the same address says nothing
any more.  Only tasks are for some of those who hear them, the cohort: what waits is the newest one of each member, so
that nobody is named twice, and no more waits than there are devices.  Messages are encoded when they go, so that a
thousand tasks with one download hold its bytes once.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from edgepfl.topics import Address
from edgepfl.wire import Message, Task


class Outbox:
    """What waits for the bus.

    Args:
        publish: sends a message, or says False where the bus has no room for it.
    """

    def __init__(self, publish: Callable[[Address, Message], bool]) -> None:
        self._publish = publish
        self._waiting: dict[int, tuple[Address, Message]] = {}  # by number, in the order of the numbers
        self._newest: dict[tuple[Address, str], int] = {}  # which of these an address, or a member there, waits for
        self._next = 0

    @property
    def waiting(self) -> int:
        """How many messages wait; while any do, :meth:`pump` must be called now and then."""
        return len(self._waiting)

    def send(self, address: Address, message: Message) -> None:
        """Send it now, or after those that wait."""
        if self._waiting or not self._publish(address, message):
            self._supersede(address, message)
            self._waiting[self._next] = (address, message)
            self._newest.update({(address, name): self._next for name in _meant(message)})
            self._next += 1  # the newest has its place at the end

    def pump(self) -> None:
        """Send what waits, as far as the bus has room."""
        for number, (address, message) in tuple(self._waiting.items()):
            if not self._publish(address, message):
                return
            del self._waiting[number]
            for name in _meant(message):
                del self._newest[address, name]

    def forget(self) -> None:
        """The connection was lost: everyone is asked for a Hello and told anew."""
        self._waiting.clear()
        self._newest.clear()

    def _supersede(self, address: Address, message: Message) -> None:
        """Take from what waits whatever is for those that a newer message is for."""
        meant = frozenset(_meant(message))
        older = {self._newest[address, name] for name in meant if (address, name) in self._newest}
        for number in older:
            _, old = self._waiting[number]
            rest = tuple(each for each in old.cohort if each.device not in meant) if isinstance(old, Task) else ()
            if rest:
                self._waiting[number] = (address, msgspec.structs.replace(old, cohort=rest))
            else:
                del self._waiting[number]


def _meant(message: Message) -> tuple[str, ...]:
    """Whom of those at its address a message is for; "" for all of them."""
    return tuple(member.device for member in message.cohort) if isinstance(message, Task) else ("",)
