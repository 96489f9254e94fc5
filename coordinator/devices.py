"""Which devices are here, as a pure record: ``note(fleet, message) -> fleet``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from edgepfl.wire import Gone, Hello


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
    """Every device that ever said Hello since the coordinator started."""

    devices: Mapping[str, Known] = field(default_factory=dict)

    def present(self, runtimes: frozenset[str]) -> tuple[str, ...]:
        """The devices that are here, have data, and run one of these runtimes; in the order of their names."""
        return tuple(
            sorted(
                name
                for name, known in self.devices.items()
                if known.present and known.hello.examples > 0 and runtimes & set(known.hello.runtimes)
            )
        )


def welcome(fleet: Fleet, hello: Hello) -> Fleet:
    """The fleet after a Hello.  One of an older session than the last is a late message and changes nothing."""
    known = fleet.devices.get(hello.device)
    if known is not None and known.hello.session > hello.session:
        return fleet
    return Fleet({**fleet.devices, hello.device: Known(hello, present=True)})


def farewell(fleet: Fleet, gone: Gone) -> Fleet:
    """The fleet after a Gone.  The will of an old session says nothing about the new one."""
    known = fleet.devices.get(gone.device)
    if known is None or known.hello.session != gone.session:
        return fleet
    return Fleet({**fleet.devices, gone.device: replace(known, present=False)})
