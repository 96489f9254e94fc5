"""Devices and a server that exchange keys and shares by hand: the pure machines, without a network."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from edgepfl.secagg import device, messages, server
from edgepfl.secagg.device import Device
from edgepfl.secagg.fixed import Words
from edgepfl.secagg.masks import Mask, context
from edgepfl.secagg.messages import Said, Told
from edgepfl.secagg.opening import masks
from edgepfl.secagg.server import Close, GiveUp, Heard, LeaveOut, Opened, Seats, Server, Stage, Tell
from edgepfl.secagg.shamir import Draw

ABOUT = context("run-1", 3, 0)


def seeded(seed: int) -> Draw:
    """Random bytes that are the same in each run of a test."""
    source = np.random.default_rng(seed)
    return source.bytes


def names(count: int) -> tuple[str, ...]:
    return tuple(f"pi-{number:03d}" for number in range(count))


@dataclass
class Exchange:
    """One attempt among devices that can vanish between any two steps.

    Attributes:
        everyone: the cohort.
        gone: whoever has vanished.
        twice: whether every message is delivered twice.
        least: devices that a sum must have.
        degree: neighbours of each; 0 for as many as the graph needs.
    """

    everyone: Sequence[str]
    seed: int = 0
    least: int = 3
    degree: int = 0
    twice: bool = False
    devices: dict[str, Device] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    uploads: dict[str, Words] = field(default_factory=dict)
    opened: bool = False
    why: str = ""

    def __post_init__(self) -> None:
        self.draw = seeded(self.seed)
        self.server = Server(3, 0, self.seed, self.least, self.degree)

    @property
    def here(self) -> frozenset[str]:
        return frozenset(self.everyone) - self.gone

    def lose(self, lost: Collection[str]) -> None:
        """These devices vanish; the server notices."""
        self.gone |= set(lost)
        self.seats()

    def begin(self, but: Collection[str] = ()) -> None:
        """Everyone but these tells its keys."""
        for name in self.everyone:
            if name not in but:
                self.devices[name], said = device.begin(name, ABOUT, self.draw)
                self.do(name, said)
        self.lose(but)

    def mask(self, name: str, vector: Words) -> None:
        """A device's upload."""
        self.devices[name], self.uploads[name] = device.mask(self.devices[name], vector)

    def close(self) -> None:
        """The round is over: these uploads count."""
        self.feed(Close(tuple(sorted(self.uploads))))

    def masks(self) -> tuple[Mask, ...]:
        s = self.server
        assert s.stage is Stage.OPENED
        return masks(s.graph, s.keys, s.threshold, s.dealt, s.survivors, s.revealed, ABOUT)

    def total(self) -> Words:
        """The sum of what counts, without masks."""
        total = np.zeros_like(next(iter(self.uploads.values())))
        for name in self.server.survivors:
            total += self.uploads[name]
        for each in self.masks():
            each.take_off(total)
        return total

    # Inside.

    def seats(self) -> None:
        if not self.why and self.server.stage in {Stage.KEYS, Stage.SHARES}:
            self.feed(Seats(self.here))

    def feed(self, event: server.Event) -> None:
        self.server, effects = server.advance(self.server, event)
        for effect in effects:
            match effect:
                case Tell(devices):
                    for name in devices:
                        self.tell(name, server.due(self.server, name))
                case LeaveOut(devices, why):
                    self.gone |= set(devices)
                    self.why = why if not self.here else self.why
                case GiveUp(why):
                    self.why = why
                case Opened():
                    self.opened = True

    def tell(self, name: str, body: Told | None) -> None:
        if body is None or name in self.gone or name not in self.devices:
            return
        crossed = messages.told(messages.encode(body), where="test")
        for _ in range(1 + self.twice):
            self.devices[name], what = device.advance(self.devices[name], crossed, self.draw)
            self.do(name, what)

    def do(self, name: str, what: device.Do) -> None:
        if isinstance(what, device.Say | device.Reveal):
            self.hear(name, what.body)

    def hear(self, name: str, body: Said) -> None:
        crossed = messages.said(messages.encode(body), where="test")
        for _ in range(1 + self.twice):
            self.feed(Heard(name, crossed))
            self.seats()


Vectors = Callable[[str], Words]


def random_vectors(seed: int, size: int, bits: int) -> Vectors:
    """Any numbers, by device."""

    def vector(name: str) -> Words:
        source = np.random.default_rng([seed, *name.encode()])
        return source.integers(0, 1 << bits, size, np.dtype(f"u{bits // 8}"), endpoint=False)

    return vector
