"""Buses on any transport, and waiting for their events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

from edgepfl.bus import Connected, Event, Will
from edgepfl.bus.loopback import LoopbackBroker, LoopbackBus
from edgepfl.bus.mqtt import MqttBus, MqttSettings
from simulators.broker import BrokerHandle

AnyBus = MqttBus | LoopbackBus
AnyEvent = TypeVar("AnyEvent", bound=Event)
PATIENCE = 30.0  # seconds; far more than anything here takes


def make_bus(transport: BrokerHandle | LoopbackBroker, name: str, *, will: Will | None = None) -> AnyBus:
    if isinstance(transport, LoopbackBroker):
        return LoopbackBus(transport, name, will=will)
    return MqttBus(MqttSettings(transport.url, name, backoff_cap=0.5), will=will)


@asynccontextmanager
async def running(*buses: AnyBus) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for bus in buses:
            await bus.start()
            stack.push_async_callback(bus.stop)
        for bus in buses:
            await until(bus, Connected)
        yield


async def until(bus: AnyBus, kind: type[AnyEvent]) -> AnyEvent:
    """The next event of this kind; others are dropped."""
    while not isinstance(event := await bus.receive(), kind):
        pass
    return event


async def send(bus: AnyBus, topic: str, payload: bytes) -> None:
    """Publish, waiting while the bus says that it cannot take it."""
    while not bus.publish(topic, payload):  # noqa: ASYNC110  a bus does not say when there is room
        await asyncio.sleep(0.001)


def play(scenario: Coroutine[Any, Any, None]) -> None:
    """Run a scenario to its end, or fail."""
    asyncio.run(asyncio.wait_for(scenario, PATIENCE))
