"""The faults of a soak: when each happens follows from a seed."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from simulators.broker import BrokerHandle
from simulators.faults import FaultProxy
from simulators.fleet import AgentFleet

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rates:
    """How often something goes wrong, on average; 0 for never.

    Attributes:
        cuts: of some device's connection, a minute.
        coordinator: minutes between cuts of the coordinator's connection.
        kills: minutes between kills of the broker.
    """

    cuts: float = 10.0
    coordinator: float = 4.0
    kills: float = 6.0


@dataclass(frozen=True, order=True)
class Mishap:
    """Something that goes wrong.

    Attributes:
        at: seconds since the start.
        what: "device", "coordinator" or "broker".
        device: whose connection is cut.
    """

    at: float
    what: str
    device: str = ""


def mishaps(rates: Rates, devices: Sequence[str], seed: int) -> Iterator[Mishap]:
    """What goes wrong, for ever, in the order of time; each kind as a Poisson process of its own."""
    minutes = {"device": 1 / rates.cuts if rates.cuts else 0.0, "coordinator": rates.coordinator, "broker": rates.kills}
    streams = (_stream(what, 60 * mean, devices, Random(f"{seed}/{what}")) for what, mean in minutes.items() if mean)
    return heapq.merge(*streams)


def _stream(what: str, mean: float, devices: Sequence[str], source: Random) -> Iterator[Mishap]:
    at = 0.0
    while True:
        at += source.expovariate(1 / mean)
        yield Mishap(at, what, source.choice(devices) if what == "device" else "")


class Trouble:
    """Lets things go wrong.

    Attributes:
        counts: what went wrong so far, by kind.
    """

    def __init__(self, fleet: AgentFleet, proxy: FaultProxy, broker: BrokerHandle) -> None:
        self._fleet, self._proxy, self._broker = fleet, proxy, broker
        self.counts = {"device": 0, "coordinator": 0, "broker": 0}

    async def make(self, coming: Iterator[Mishap]) -> None:
        """Carry out each mishap at its time, until cancelled."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        for mishap in coming:
            await asyncio.sleep(began + mishap.at - loop.time())
            log.info("%s", mishap)
            await self._carry_out(mishap)
            self.counts[mishap.what] += 1

    async def _carry_out(self, mishap: Mishap) -> None:
        match mishap.what:
            case "device":
                self._fleet.drop(mishap.device)
            case "coordinator":
                self._proxy.cut()
            case _:
                self._broker.kill()
                await asyncio.to_thread(self._broker.start)
