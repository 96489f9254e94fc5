"""One emulated device: a real agent that can be started, stopped, cut off and robbed of its power."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from device_agent.conditions_watch import EVERY
from device_agent.data import Examples
from device_agent.hearing import Decode
from device_agent.listening import Listener, nobody
from device_agent.service import AgentService, Place, will
from device_agent.session import Session
from device_agent.work import Workshop
from edgepfl import wire
from edgepfl.bus import Traffic
from edgepfl.bus.mqtt import MqttBus, MqttSettings
from edgepfl.eligibility import Readings
from edgepfl.errors import RunError

NOTHING = Traffic(0, 0, 0, 0)
KEEPALIVE = 30
"""Seconds, as every agent has it."""
LOG_PAGES = 32
"""Pages in a database's log: an emulator's disk is often memory, and a thousand logs of 4 MiB are too much of it."""


@dataclass(frozen=True, eq=False)
class Outfit:
    """What a device has.

    Attributes:
        url: of the broker, as the device reaches it.
        examples: its data.
        workshop: does its tasks; shared with others.
        pool: threads for its tasks; likewise.
        sensors: what it measures of itself; None: nothing.
        sense_every: seconds between two looks at them, while a run has conditions.
        checkpoint_seconds: of training between two checkpoints; 0 for none.
        keepalive: seconds after which a silent connection is looked after.
    """

    url: str
    examples: Examples
    workshop: Workshop
    pool: Executor
    sensors: Callable[[], Readings] | None = None
    sense_every: float = EVERY
    checkpoint_seconds: float = 0.0
    keepalive: int = KEEPALIVE


class EmulatedAgent:
    """A device that is switched off at first.

    Args:
        name: the device's.
        fleet: the fleet's.
        state: directory of its storage, which outlives its power.
        outfit: what it has; may be changed while it is off.
        listener: hears what its agent does.
        decode: reads messages.
    """

    __slots__ = (
        "_bus",
        "_decode",
        "_fleet",
        "_listener",
        "_place",
        "_quota",
        "_service",
        "_serving",
        "_session",
        "_state",
        "_traffic",
        "name",
        "outfit",
    )

    def __init__(
        self,
        name: str,
        fleet: str,
        state: Path,
        outfit: Outfit,
        listener: Listener = nobody,
        decode: Decode = wire.decode,
    ) -> None:
        self.name = name
        self.outfit = outfit
        self._fleet = fleet
        self._state = state
        self._listener = listener
        self._decode = decode
        self._traffic = NOTHING  # of earlier connections
        self._session = Session(name)  # the last one's
        self._quota = 0
        self._place: Place | None = None
        self._bus: MqttBus | None = None
        self._service: AgentService | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def service(self) -> AgentService:
        """Its agent, while it is on.

        Raises:
            RunError: it is off.
        """
        if self._service is None:
            raise RunError("it is off", where=f"device {self.name}", remedy="Start it first")
        return self._service

    @property
    def running(self) -> bool:
        """Whether it has power, and its agent has not ended by itself."""
        return self._serving is not None and not self._serving.done()

    @property
    def connected(self) -> bool:
        """Whether it has a connection just now."""
        return self._bus is not None and self._bus.connected

    @property
    def traffic(self) -> Traffic:
        """What crossed its sockets, over all its starts."""
        return self._traffic if self._bus is None else self._traffic + self._bus.traffic

    @property
    def session(self) -> Session:
        """The state of its agent's machine, or the last one while it is off."""
        return self._session if self._service is None else self._service.state

    def start(self) -> None:
        """Give it power; with power already it does nothing.

        Raises:
            StoreError: its storage cannot be used.
        """
        if self.running:
            return
        self._let_go()
        place = Place.open(self._state, log_pages=LOG_PAGES)
        try:
            place.limit(self._quota)
            number = place.next_session()
            self._bus = self._new_bus(number)
            self._service = self._new_service(place, number)
        except BaseException:
            place.store.close()
            raise
        self._place = place
        self._serving = asyncio.get_running_loop().create_task(self._service.run(), name=self.name)

    async def stop(self) -> None:
        """Switch it off in order: it saves what it is at, says goodbye, and its storage is closed."""
        await self._end()

    async def kill(self) -> None:
        """Cut its power: its connection breaks, nothing more is said or stored, its work comes to nothing.

        A thread cannot be ended in the middle of a step, so its arithmetic may go on up to the end of that.
        """
        if self._bus is not None:
            self._bus.drop()
        if self._service is not None:
            self._service.abandon()
        await self._end()

    def drop(self) -> None:
        """Cut its connection without a goodbye, as a lost network does; it connects anew."""
        if self._bus is not None:
            self._bus.drop()

    def limit(self, size: int) -> None:
        """Let its blobs together, and its database, have no more than so many bytes each; 0 for no limit."""
        self._quota = size
        if self._place is not None:
            self._place.limit(size)

    def failure(self) -> BaseException | None:
        """What ended its agent, if it ended by itself."""
        if self._serving is None or not self._serving.done() or self._serving.cancelled():
            return None
        return self._serving.exception()

    async def _end(self) -> None:
        serving = self._serving
        if serving is not None:
            serving.cancel()
            await asyncio.wait({serving})
            if not serving.cancelled():
                serving.exception()  # or asyncio complains that nobody looked at it
        self._let_go()

    def _let_go(self) -> None:
        """Close what the last start opened, and remember what it came to."""
        self._traffic, self._session = self.traffic, self.session
        place, self._place = self._place, None
        self._bus = self._service = self._serving = None
        if place is not None:
            place.store.close()

    def _new_bus(self, number: int) -> MqttBus:
        settings = MqttSettings(self.outfit.url, self.name, keepalive=self.outfit.keepalive)
        return MqttBus(settings, will=will(self._fleet, self.name, number))

    def _new_service(self, place: Place, number: int) -> AgentService:
        if self._bus is None:
            raise AssertionError("the bus comes first")
        outfit = self.outfit
        return AgentService(
            self.name,
            self._fleet,
            number,
            bus=self._bus,
            place=place,
            examples=outfit.examples,
            workshop=outfit.workshop,
            pool=outfit.pool,
            sensors=outfit.sensors,
            sense_every=outfit.sense_every,
            checkpoint_seconds=outfit.checkpoint_seconds,
            listener=self._listener,
            decode=self._decode,
        )
