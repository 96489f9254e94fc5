"""Transfers over slow links are completed in both directions at once, on one connection."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import pytest
from _hauling import Collector, Device, at_work

from edgepfl import wire
from edgepfl.bus import Arrived
from edgepfl.bus.blobs import BlobStore
from edgepfl.bus.chunks import Sender
from edgepfl.bus.mqtt import MqttBus, MqttSettings
from edgepfl.bus.outflow import Outflow
from edgepfl.topics import Chunk, FromDevice, Topics
from edgepfl.wire import Need
from simulators.broker import BrokerHandle
from simulators.faults.proxy import FaultProxy
from simulators.faults.settings import Faults, Way

TOPICS = Topics("home")
KEEPALIVE = 4  # seconds: a ping that waits for six goes unanswered too long
pytestmark = pytest.mark.broker


async def serve(bus: MqttBus, blobs: BlobStore) -> None:
    """Answer Needs for ever, as the coordinator does."""
    clock = asyncio.get_running_loop().time
    out = Outflow(Sender(blobs), bus, lambda sha16, index: TOPICS.build(Chunk(sha16, index)), qos=0, ahead=64)
    bus.subscribe("edgepfl/1/home/up/+/need")
    await bus.start()
    while True:
        event = await bus.receive()
        if isinstance(event, Arrived) and isinstance(TOPICS.parse(event.topic), FromDevice):
            need = wire.decode(event.payload)
            assert isinstance(need, Need)
            out.needed(need, clock())


@pytest.mark.parametrize(("rate", "chunk", "size"), [(100_000, 64 << 10, 400_000), (20_000, 16 << 10, 80_000)])
def test_a_slow_link_carries_both_directions_without_being_lost(
    broker: BrokerHandle, tmp_path: Path, rate: int, chunk: int, size: int
) -> None:
    random = Random(rate)
    down, up = random.randbytes(size), random.randbytes(size)

    async def scenario() -> None:
        source = BlobStore(tmp_path / "source")
        ref = source.put(down, chunk)
        way = Way(rate=rate)
        async with AsyncExitStack() as stack:
            proxy = await stack.enter_async_context(FaultProxy(broker.url, Faults(up=way, down=way)))
            device = Device(proxy.url, "pi", tmp_path / "pi", chunk_kib=0, keepalive=KEEPALIVE)
            device.transfers._remembered = chunk  # as after an earlier start
            upload = device.offer(up)
            assert upload.chunk == chunk
            collector = Collector(broker.url, tmp_path / "collector", 16 << 20)
            sending = MqttBus(MqttSettings(broker.url, "sender"))
            await stack.enter_async_context(at_work(serve(sending, source), collector.serve(), device.serve()))
            device.fetch(ref)
            await device.has.wait()
            while not collector.here:
                collector.changed.clear()
                await collector.changed.wait()
            assert device.lost == 0
            assert device.fetched.read(ref.sha256) == down
            assert collector.blobs.read(upload.sha256) == up
            assert device.transfers.chunk == chunk  # the link's pace, measured
            assert device.bus.chunks.total() <= 1.25 * len(upload.chunks) / 16
            await sending.stop()

    asyncio.run(asyncio.wait_for(scenario(), 120))
