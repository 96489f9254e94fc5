"""Blobs over a real bus."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest
from _world import AnyBus, make_bus, play, running

from edgepfl import wire
from edgepfl.bus import Arrived, Connected
from edgepfl.bus.blobs import BlobStore
from edgepfl.bus.chunks import CHUNK, Receiver, Sender
from edgepfl.bus.loopback import LoopbackBroker
from edgepfl.topics import Chunk, FromDevice, Topics
from edgepfl.wire import BlobRef, Need
from simulators.broker import BrokerHandle

Transport = BrokerHandle | LoopbackBroker
TOPICS = Topics("fleet")
pytestmark = pytest.mark.broker


async def serve(bus: AnyBus, blobs: BlobStore, counts: dict[int, int]) -> None:
    """Answer Needs for ever, as the coordinator does."""
    sender = Sender(blobs)
    clock = asyncio.get_running_loop().time
    while True:
        event = await bus.receive()
        if isinstance(event, Arrived) and isinstance(need := wire.decode(event.payload), Need):
            for index, data in sender.requested(need, clock()):
                if bus.publish(TOPICS.build(Chunk(need.sha256[:16], index)), data, qos=0):
                    counts[index] = counts.get(index, 0) + 1


async def fetch(bus: AnyBus, name: str, blobs: BlobStore, ref: BlobRef) -> None:
    """Fetch one blob, as a device does."""
    receiver = Receiver(blobs)
    clock = asyncio.get_running_loop().time
    bus.subscribe(TOPICS.chunks_of(ref.sha256[:16]))
    receiver.want(ref, clock())
    while receiver.wanted:
        for need in receiver.due(clock()):
            bus.publish(TOPICS.build(FromDevice(name, need.KIND)), wire.encode(need))
        try:
            async with asyncio.timeout_at(receiver.next_due):
                event = await bus.receive()
        except TimeoutError:
            continue
        match event:
            case Connected():
                receiver.ask_again(clock())
            case Arrived(topic, payload) if isinstance(address := TOPICS.parse(topic), Chunk):
                receiver.chunk(address.sha16, address.index, payload, clock())
            case _:
                pass


def test_a_blob_for_thirty_devices_is_published_about_once(transport: Transport, tmp_path: Path) -> None:
    data = Random(1).randbytes(2_000_000)
    source = BlobStore(tmp_path / "source")
    counts: dict[int, int] = {}
    names = [f"d-{number:02}" for number in range(30)]

    async def scenario() -> None:
        ref = source.put(data)
        coordinator = make_bus(transport, "coordinator")
        for topic_filter in TOPICS.for_coordinator():
            coordinator.subscribe(topic_filter)
        buses = {name: make_bus(transport, name) for name in names}
        async with running(coordinator, *buses.values()):
            serving = asyncio.create_task(serve(coordinator, source, counts))
            await asyncio.gather(*(fetch(bus, name, BlobStore(tmp_path / name), ref) for name, bus in buses.items()))
            serving.cancel()
            assert all(BlobStore(tmp_path / name).read(ref.sha256) == data for name in names)

    play(scenario())
    assert set(counts) == set(range(-(-len(data) // CHUNK)))
    assert sum(counts.values()) < 1.5 * len(counts)


def test_a_transfer_survives_cut_connections(transport: Transport, tmp_path: Path) -> None:
    data = Random(2).randbytes(100 * CHUNK)
    source, target = BlobStore(tmp_path / "source"), BlobStore(tmp_path / "target")
    counts: dict[int, int] = {}

    async def cut(bus: AnyBus, ref: BlobRef) -> int:
        """Cut the line each time another fifth of the blob has come."""
        cuts = 0
        while not target.has(ref.sha256):
            if bus.traffic.messages_in >= 20 * (cuts + 1):
                bus.drop()
                cuts += 1
            await asyncio.sleep(0.001)
        return cuts

    async def scenario() -> None:
        ref = source.put(data)
        coordinator, device = make_bus(transport, "coordinator"), make_bus(transport, "device")
        coordinator.subscribe(TOPICS.for_coordinator()[0])
        async with running(coordinator, device):
            serving = asyncio.create_task(serve(coordinator, source, counts))
            cutting = asyncio.create_task(cut(device, ref))
            await fetch(device, "device", target, ref)
            assert await cutting >= 2
            serving.cancel()
        assert target.read(ref.sha256) == data

    play(scenario())
    assert len(counts) == 100
