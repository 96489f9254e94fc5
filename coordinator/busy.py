"""Devices that may still work on what is not wanted any more, as a pure record.

A device that is told to stop ends its step first, which may take long on a small board.  Until it says Stopped, or is
gone, or a lease has passed, it is not chosen; meanwhile it is told again now and then.  The record is not journalled: a
restarted coordinator learns of such work by the device's Progress.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

AGAIN = 4
"""How often in a lease a Cancel is repeated."""


@dataclass(frozen=True)
class Work:
    """What a device was told to stop.

    Attributes:
        round: its number.
        attempt: at the round.
        why: it is not wanted any more.
        until: when the device is taken for free, in seconds of the coordinator's clock.
        again: when it is told again.
    """

    round: int
    attempt: int
    why: str
    until: float
    again: float


@dataclass(frozen=True)
class Busy:
    """Who may still be at work, by device."""

    works: Mapping[str, Work] = field(default_factory=dict)

    def __contains__(self, device: object) -> bool:
        return device in self.works

    def told(self, devices: Iterable[str], which: tuple[int, int], why: str, at: float, lease: float) -> Busy:
        """After a Cancel of a round's attempt to these devices.

        Args:
            devices: whom it was sent to.
            which: round and attempt.
            why: in words.
            at: now.
            lease: seconds after which a device is taken for free.
        """
        work = Work(*which, why, at + lease, at + lease / AGAIN)
        return Busy({**self.works, **dict.fromkeys(devices, work)})

    def free(self, device: str) -> Busy:
        """After a device left, or came anew."""
        return Busy({name: work for name, work in self.works.items() if name != device})

    def stopped(self, device: str, which: tuple[int, int]) -> Busy:
        """After a device said that its work on a round's attempt has ended."""
        work = self.works.get(device)
        return self.free(device) if work is not None and (work.round, work.attempt) <= which else self

    def renewed(self, at: float, lease: float) -> Busy:
        """After the broker was away: nobody could be heard, so everything is said again and every lease begins anew."""
        return Busy({name: replace(work, until=at + lease, again=at) for name, work in self.works.items()})

    def looked(self, at: float, lease: float) -> tuple[Busy, dict[str, Work]]:
        """The record at a time, without those whose lease has passed, and who is to be told again."""
        works = {name: work for name, work in self.works.items() if work.until > at}
        due = {name: work for name, work in works.items() if work.again <= at}
        later = {name: replace(work, again=at + lease / AGAIN) for name, work in due.items()}
        return Busy({**works, **later}), due
