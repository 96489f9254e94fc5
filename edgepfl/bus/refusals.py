"""Messages that were refused: counted by reason; whoever sends too many is not read for a while.

A refused message costs little, but not nothing: it is decoded, validated and logged.  A device that goes on sending
what nobody can use, because it is broken or because it is hostile, must not keep the coordinator from the others.
Pure: time comes in as ``now``, in seconds of any clock that never goes back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

MOST_NAMES = 1000
"""Senders to remember: whoever may connect may invent names, and each costs memory."""
UNREAD = "unread"
"""The reason of messages that were dropped because their sender is silenced."""


@dataclass(frozen=True)
class Bounds:
    """How many refused messages a device may send.

    Attributes:
        most: at once, before it is silenced.
        recovery: seconds after which one refused message is forgotten.
        silence: seconds for which a silenced device is not read.
    """

    most: int = 32
    recovery: float = 2.0
    silence: float = 60.0


@dataclass(frozen=True)
class Sender:
    """What a device has on its account.

    Attributes:
        level: refused messages that are not forgotten, as of ``at``.
        at: seconds.
        silenced: until when it is not read; None: it is.
    """

    level: float = 0.0
    at: float = 0.0
    silenced: float | None = None


def charged(sender: Sender, now: float, bounds: Bounds) -> Sender:
    """The account after one more refused message."""
    level = max(0.0, sender.level - (now - sender.at) / bounds.recovery) + 1.0
    return replace(sender, level=level, at=now, silenced=now + bounds.silence if level > bounds.most else None)


class Refusals:
    """The refused messages since the start.

    Args:
        bounds: how many a device may send.
    """

    def __init__(self, bounds: Bounds = Bounds()) -> None:
        self._bounds = bounds
        self._counts: Counter[str] = Counter()
        self._senders: dict[str, Sender] = {}  # the one that was refused last at the end

    @property
    def counts(self) -> Mapping[str, int]:
        """How many, by reason."""
        return MappingProxyType(self._counts)

    def count(self, device: str, reason: str, now: float) -> bool:
        """Count a refused message of a device, or of nobody (""); whether this silences the device."""
        self._counts[reason] += 1
        if not device:
            return False
        sender = charged(self._senders.pop(device, Sender()), now, self._bounds)
        if len(self._senders) >= MOST_NAMES:
            del self._senders[next(iter(self._senders))]
        self._senders[device] = sender
        return sender.silenced is not None

    def unread(self, device: str, now: float) -> bool:
        """Whether a message of this device is to be dropped unread; then it counts as that."""
        sender = self._senders.get(device)
        if sender is None or sender.silenced is None or now >= sender.silenced:
            return False
        self._counts[UNREAD] += 1
        return True

    def back(self, now: float) -> tuple[str, ...]:
        """The devices whose silence is over, once each: what they said meanwhile they must say again."""
        over = [name for name, each in self._senders.items() if each.silenced is not None and now >= each.silenced]
        for name in over:
            del self._senders[name]
        return tuple(over)

    def worth_telling(self, reason: str) -> bool:
        """Whether the log should hear of the latest of this reason: each of the first, then ever fewer."""
        count = self._counts[reason]
        return count <= self._bounds.most or count & (count - 1) == 0
