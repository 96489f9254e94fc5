"""How an agent reads what it hears; agents of one process may share the reading of what is said to all of them."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from edgepfl import wire
from edgepfl.wire import Message

_KEPT = 16
"""Messages: what is said to all is heard by all within a moment."""


class Decode(Protocol):
    """Makes a message of bytes, as :func:`edgepfl.wire.decode` does."""

    def __call__(self, data: bytes, *, where: str) -> Message:
        """The message in ``data``.

        Raises:
            WireError: it is not a message of ours.
        """
        ...


class SharedDecoder:
    """Decodes equal bytes once: a task for a thousand agents names each of them, and each of them hears it.

    Messages are frozen, so one may serve all.  It is for one thread.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, Message] = OrderedDict()

    def __call__(self, data: bytes, *, where: str) -> Message:
        """The message in ``data``.

        Raises:
            WireError: it is not a message of ours.
        """
        known = self._known.get(data)
        if known is not None:
            self._known.move_to_end(data)
            return known
        message = wire.decode(data, where=where)
        self._known[data] = message
        if len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return message
