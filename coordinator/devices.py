"""Which devices are here, as a pure record: ``welcome``, ``farewell`` and ``doubt`` give the next one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from edgepfl.wire import Gone, Hello

MOST = 10_000
"""Devices to remember: whoever may connect may invent names, and each costs memory."""


GREETING = 1.0
"""Seconds in which a device that says the same Hello again says nothing new."""


@dataclass(frozen=True)
class Known:
    """A device and its latest Hello.

    Attributes:
        hello: what it said of itself.
        present: whether it is here, as far as we know.
        heard: when it said so, in seconds of the coordinator's clock; no part of what it is.
        left: of one that is not here, since when; likewise.
    """

    hello: Hello
    present: bool
    heard: float = field(default=0.0, compare=False)
    left: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class Fleet:
    """The devices that said Hello since the coordinator started."""

    devices: Mapping[str, Known] = field(default_factory=dict)

    def can(self, device: str, runtimes: frozenset[str]) -> bool:
        """Whether a device is here, has data, and runs one of these runtimes."""
        known = self.devices.get(device)
        return (
            known is not None
            and known.present
            and known.hello.examples > 0
            and not runtimes.isdisjoint(known.hello.runtimes)
        )

    def present(self, runtimes: frozenset[str]) -> tuple[str, ...]:
        """The devices that are here, have data, and run one of these runtimes; in the order of their names."""
        return tuple(sorted(device for device in self.devices if self.can(device, runtimes)))


def repeats(fleet: Fleet, hello: Hello, at: float) -> bool:
    """Whether a Hello says nothing new: the same again, from a device that is here, a moment after the last."""
    known = fleet.devices.get(hello.device)
    return known is not None and known == Known(hello, present=True) and at < known.heard + GREETING


def welcome(fleet: Fleet, hello: Hello, at: float = 0.0) -> Fleet:
    """The fleet after a Hello, heard at ``at``.

    One of an older session than that which is here is a late message and changes nothing.  Once that session is gone, a
    smaller number is a device that lost its storage and counts anew.  A full fleet forgets a device that is not here
    for a new one, and if all are here the new one is not taken.
    """
    known = fleet.devices.get(hello.device)
    if known is not None and known.present and known.hello.session > hello.session:
        return fleet
    others = {name: each for name, each in fleet.devices.items() if name != hello.device}
    if known is None and len(others) >= MOST:
        absent = next((name for name, each in others.items() if not each.present), None)
        if absent is None:
            return fleet
        del others[absent]
    return Fleet({**others, hello.device: Known(hello, present=True, heard=at)})


def farewell(fleet: Fleet, gone: Gone, at: float = 0.0) -> Fleet:
    """The fleet after a Gone, heard at ``at``.  The will of an old session says nothing about the new one."""
    known = fleet.devices.get(gone.device)
    if known is None or known.hello.session != gone.session:
        return fleet
    return doubt(fleet, (gone.device,), at)


def doubt(fleet: Fleet, devices: Collection[str], at: float = 0.0) -> Fleet:
    """The fleet with these devices taken for absent, from ``at`` until their next Hello."""
    here = [name for name in devices if name in fleet.devices and fleet.devices[name].present]
    absent = {name: replace(fleet.devices[name], present=False, left=at) for name in here}
    return Fleet({**fleet.devices, **absent})
