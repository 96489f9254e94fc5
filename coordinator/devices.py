"""Which devices are here, as a pure record: ``welcome``, ``farewell`` and ``doubt`` give the next one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from edgepfl.wire import Gone, Hello

MOST = 10_000
"""Devices to remember: whoever may connect may invent names, and each costs memory."""


@dataclass(frozen=True)
class Known:
    """A device and its latest Hello.

    Attributes:
        hello: what it said of itself.
        present: whether it is here, as far as we know.
    """

    hello: Hello
    present: bool


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


def welcome(fleet: Fleet, hello: Hello) -> Fleet:
    """The fleet after a Hello.

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
    return Fleet({**others, hello.device: Known(hello, present=True)})


def farewell(fleet: Fleet, gone: Gone) -> Fleet:
    """The fleet after a Gone.  The will of an old session says nothing about the new one."""
    known = fleet.devices.get(gone.device)
    if known is None or known.hello.session != gone.session:
        return fleet
    return doubt(fleet, (gone.device,))


def doubt(fleet: Fleet, devices: Collection[str]) -> Fleet:
    """The fleet with these devices taken for absent until their next Hello."""
    absent = {name: replace(fleet.devices[name], present=False) for name in devices if name in fleet.devices}
    return Fleet({**fleet.devices, **absent})
