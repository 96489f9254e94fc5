"""Many real agents in one process: each with its own connection, store and data, all on one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from device_agent.conditions_watch import EVERY
from device_agent.data import Examples
from device_agent.runners.onnx import OnnxRunner
from device_agent.service import AgentService, Place, will
from device_agent.work import Workshop
from edgepfl.bus import Traffic
from edgepfl.bus.mqtt import MqttBus, MqttSettings
from edgepfl.eligibility import Readings


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
    ) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="work")
        workshop = workshop or Workshop(OnnxRunner)
        self._places = {name: Place.open(state / name) for name in devices}
        self._buses: dict[str, MqttBus] = {}
        self._services: dict[str, AgentService] = {}
        self._serving: set[asyncio.Task[None]] = set()
        for name, examples in devices.items():
            number = self._places[name].store.next_session()
            bus = MqttBus(MqttSettings(url, name), will=will(fleet, name, number))
            self._buses[name] = bus
            self._services[name] = AgentService(
                name,
                fleet,
                number,
                bus=bus,
                place=self._places[name],
                examples=examples,
                workshop=workshop,
                pool=self._pool,
                sensors=sensors.get(name),
                sense_every=sense_every,
                checkpoint_seconds=checkpoint_seconds,
            )

    @property
    def traffic(self) -> Traffic:
        """What crossed all agents' sockets since the start."""
        found = [bus.traffic for bus in self._buses.values()]
        return Traffic(
            sum(each.bytes_in for each in found),
            sum(each.bytes_out for each in found),
            sum(each.messages_in for each in found),
            sum(each.messages_out for each in found),
        )

    def drop(self, device: str) -> None:
        """Cut a device's connection without a goodbye, as a lost network does."""
        self._buses[device].drop()

    def settled(self, run: str) -> dict[str, int]:
        """The last round of a run of which each device knows that its report counts; -1 where none does."""
        return {name: service.state.standing(run).settled for name, service in self._services.items()}

    def pending(self, run: str) -> tuple[str, ...]:
        """The devices whose report still waits for the coordinator's word."""
        return tuple(n for n, service in self._services.items() if service.state.standing(run).pending is not None)

    def check(self) -> None:
        """Raise what ended an agent's service, if one has ended."""
        for task in self._serving:
            if task.done():
                task.result()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._serving = {loop.create_task(service.run(), name=name) for name, service in self._services.items()}
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        self._pool.shutdown()
        for place in self._places.values():
            place.store.close()
