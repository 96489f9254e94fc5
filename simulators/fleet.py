"""Many real agents in one process: each with its own connection, store and data, all on one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self, TypeAlias

from device_agent.conditions_watch import EVERY
from device_agent.data import Examples
from device_agent.hearing import SharedDecoder
from device_agent.listening import nobody
from device_agent.runners.onnx import OnnxRunner
from device_agent.session import Effect, Event
from device_agent.work import Workshop
from edgepfl.bus import Disconnected, Traffic
from edgepfl.bus.heap import keep_freed_blocks
from edgepfl.eligibility import Readings
from simulators.emulated import NOTHING, EmulatedAgent, Outfit

FleetListener: TypeAlias = Callable[[str, Event | Disconnected, tuple[Effect, ...]], None]
"""As :data:`~device_agent.listening.Listener`, with the device's name first."""

ARRIVING = 128
"""Agents that connect at the same time, so that a broker need not accept thousands at once."""
_LOOK = 0.02  # seconds between two looks at whether one of them has
_PATIENCE = 5.0  # seconds until one that does not connect is not waited for any more


class AgentFleet:
    """Agents that serve for as long as the context lasts.

    Args:
        url: the broker's.
        fleet: the fleet's name.
        devices: each device's data.
        state: a directory; each device's storage is a folder of it.
        threads: tasks to work on at once.
        workshop: does their tasks.
        sensors: what devices measure of themselves; the others measure nothing.
        sense_every: seconds between two looks at them, while a run has conditions.
        checkpoint_seconds: of training between two checkpoints; 0 for none, and then a pause costs the steps done.
        listener: hears what all the agents do.
    """

    def __init__(
        self,
        url: str,
        fleet: str,
        devices: Mapping[str, Examples],
        state: Path,
        *,
        threads: int = 2,
        workshop: Workshop | None = None,
        sensors: Mapping[str, Callable[[], Readings]] = MappingProxyType({}),
        sense_every: float = EVERY,
        checkpoint_seconds: float = 0.0,
        listener: FleetListener | None = None,
    ) -> None:
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="work")
        self._fleet = fleet
        self._state = state
        self._listener = listener
        self._decode = SharedDecoder()
        keep_freed_blocks()  # its threads train all the time
        self._agents: dict[str, EmulatedAgent] = {}
        self._late: set[str] = set()
        self._arriving: asyncio.Task[None] | None = None
        workshop = workshop or Workshop(OnnxRunner, shared=True)
        for name, examples in devices.items():
            self.add(
                name,
                Outfit(
                    url,
                    examples,
                    workshop,
                    self.pool,
                    sensors=sensors.get(name),
                    sense_every=sense_every,
                    checkpoint_seconds=checkpoint_seconds,
                ),
            )

    def add(self, name: str, outfit: Outfit, *, key: str = "", late: bool = False) -> EmulatedAgent:
        """One more device, which is switched off; those that are there at the start are switched on with the fleet.

        Args:
            name: the device's.
            outfit: what it has.
            key: by which this fleet knows it, where another device has the same name; its storage is a folder so named.
            late: whether it stays off when the others are switched on.
        """
        key = key or name
        if key in self._agents:
            raise ValueError(f"there is a device {key!r} already")
        listener = nobody if self._listener is None else partial(self._listener, key)
        self._agents[key] = EmulatedAgent(name, self._fleet, self._state / key, outfit, listener, self._decode)
        if late:
            self._late.add(key)
        return self._agents[key]

    def __getitem__(self, key: str) -> EmulatedAgent:
        return self._agents[key]

    @property
    def agents(self) -> Mapping[str, EmulatedAgent]:
        """All of them, by key."""
        return MappingProxyType(self._agents)

    @property
    def traffic(self) -> Traffic:
        """What crossed all agents' sockets since the start."""
        found = NOTHING
        for agent in self._agents.values():
            found += agent.traffic
        return found

    @property
    def connected(self) -> int:
        """How many agents have a connection just now."""
        return sum(agent.connected for agent in self._agents.values())

    def drop(self, device: str) -> None:
        """Cut a device's connection without a goodbye, as a lost network does."""
        self._agents[device].drop()

    def settled(self, run: str) -> dict[str, int]:
        """The last round of a run of which each device knows that its report counts; -1 where none does."""
        return {name: agent.session.standing(run).settled for name, agent in self._agents.items()}

    def pending(self, run: str) -> tuple[str, ...]:
        """The devices whose report still waits for the coordinator's word."""
        return tuple(n for n, agent in self._agents.items() if agent.session.standing(run).pending is not None)

    async def arrived(self) -> None:
        """Wait until all agents that were switched on have a connection, or no more of them get one.

        Raises:
            StoreError: an agent could not start.
        """
        if self._arriving is not None:
            await self._arriving
        loop, most = asyncio.get_running_loop(), 0
        deadline = loop.time() + _PATIENCE
        while self.connected < sum(agent.running for agent in self._agents.values()) and loop.time() < deadline:
            if (now := self.connected) > most:
                most, deadline = now, loop.time() + _PATIENCE
            await asyncio.sleep(_LOOK)

    def check(self) -> None:
        """Raise what ended an agent's service, or the start of all of them, if something did."""
        self.check_arrival()
        for agent in self._agents.values():
            if (error := agent.failure()) is not None:
                raise error

    def check_arrival(self) -> None:
        """Raise what ended the start of all agents, if something did."""
        if self._arriving is not None and self._arriving.done() and not self._arriving.cancelled():
            self._arriving.result()

    async def __aenter__(self) -> Self:
        waiting = [agent for key, agent in self._agents.items() if key not in self._late]
        for agent in waiting[:ARRIVING]:
            agent.start()
        if waiting[ARRIVING:]:
            rest = self._arrive(waiting)
            self._arriving = asyncio.get_running_loop().create_task(rest, name="agents arrive")
        return self

    async def _arrive(self, agents: list[EmulatedAgent]) -> None:
        """Switch on the rest, each as soon as the one so many places before it is connected, or has had its time."""
        loop = asyncio.get_running_loop()
        for before, agent in zip(agents, agents[ARRIVING:], strict=False):
            deadline = loop.time() + _PATIENCE
            while not before.connected and loop.time() < deadline:  # noqa: ASYNC110  a socket's state: no event
                await asyncio.sleep(_LOOK)
            agent.start()
            await asyncio.sleep(0)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._arriving is not None:
            self._arriving.cancel()
            await asyncio.wait({self._arriving})
        await asyncio.gather(*(agent.stop() for agent in self._agents.values()))
        self.pool.shutdown()
