"""Promise 5: transfers are completed under cuts every 0.3 to 1.2 seconds, and go on where they were."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import pytest
from _hauling import Collector, Cutter, Device, Memory, at_work, coordinating, kills
from _scale import FULL, record, scaled, seed_of

from edgepfl.bus.chunks import CHUNK
from simulators.broker import BrokerHandle

DEVICES = scaled(20, 50)
SIZE = scaled(4_000_000, 30_000_000)  # bytes of the blob that all fetch
CUTS = scaled(20, 700)
KILLS = scaled(1, 3)
WASTE = scaled(3.0, 12.0)  # chunks published for one copy: the mark
WIDE = scaled(1.5, 1.0)  # times that where a busy machine keeps lines down for longer
BROKER = 32.0  # MB that mosquitto may need
UPLOADS = scaled(10, 50)
UPLOAD = 1_000_000  # bytes of each
UNDER_WAY = 1 << 20  # two windows

pytestmark = [pytest.mark.broker, pytest.mark.promise(5), pytest.mark.timeout(scaled(120, 900))]


async def _down(broker: BrokerHandle, folder: Path, data: bytes, seed: int) -> dict[str, float]:
    """All devices fetch one blob of the coordinator's; what that cost."""
    cutter, memory = Cutter(seed), Memory(broker)
    devices = [Device(broker.url, f"pi-{k:02d}", folder / f"pi-{k:02d}") for k in range(DEVICES)]
    async with AsyncExitStack() as stack:
        service, bus = await stack.enter_async_context(coordinating(broker.url, folder / "coordinator"))
        ref = service.vault.offered.put(data)
        began = time.monotonic()
        await stack.enter_async_context(at_work(memory.watch(), *(device.serve() for device in devices)))
        for device in devices:
            device.fetch(ref)
        killing = kills(broker, [_when(devices, (k + 1) / (KILLS + 1), len(data)) for k in range(KILLS)])
        lines = [cutter.cut(device.bus, _wants(device, cutter)) for device in devices]
        await asyncio.gather(killing, *lines, *(device.has.wait() for device in devices))
        seconds = time.monotonic() - began
    assert all(device.fetched.read(ref.sha256) == data for device in devices)
    published, needed = bus.chunks.total(), -(-len(data) // CHUNK)
    assert len(bus.chunks) == needed
    return {
        "cuts": cutter.cuts,
        "seconds": round(seconds, 1),
        "published": published,
        "waste": round(published / needed, 2),
        "broker_mb": round(memory.most, 1),
    }


def _wants(device: Device, cutter: Cutter) -> Callable[[], bool]:
    """A line is cut while its blob is coming, and in the full form for as many cuts as were promised."""
    return lambda: not device.has.is_set() and not (FULL and cutter.cuts >= CUTS)


def _when(devices: list[Device], part: float, size: int) -> Callable[[], bool]:
    """The moment at which one device has this part of the blob."""
    return lambda: max(device.received for device in devices) >= part * size


def test_all_devices_get_a_blob_whatever_happens_to_their_lines_and_to_the_broker(
    broker: BrokerHandle, tmp_path: Path
) -> None:
    seed = seed_of("transfer down")
    measured = asyncio.run(_down(broker, tmp_path, Random(seed).randbytes(SIZE), seed))
    record(5, "transfer down", broker=broker.name, devices=DEVICES, bytes=SIZE, kills=KILLS, **measured)
    assert measured["cuts"] >= (CUTS if FULL else DEVICES // 4)  # a quiet machine is soon done
    assert measured["waste"] <= WASTE * WIDE
    if broker.name == "mosquitto":
        assert measured["broker_mb"] < BROKER


async def _up(broker: BrokerHandle, folder: Path, seed: int) -> dict[str, float]:
    """All devices' uploads are fetched, a few at a time."""
    cutter, random = Cutter(seed), Random(seed)
    devices = [Device(broker.url, f"pi-{k:02d}", folder / f"pi-{k:02d}") for k in range(UPLOADS)]
    data = {device.name: random.randbytes(UPLOAD) for device in devices}
    collector = Collector(broker.url, folder / "coordinator", UNDER_WAY)
    refs = {device.name: device.offer(data[device.name]) for device in devices}
    async with at_work(collector.serve(), *(device.serve() for device in devices)):
        lines = [cutter.cut(device.bus, _lacks(collector, device.name)) for device in devices]
        cutting = asyncio.gather(*lines, kills(broker, [lambda: len(collector.here) >= UPLOADS // 2]))
        while len(collector.here) < UPLOADS:
            collector.changed.clear()
            await collector.changed.wait()
        await cutting
    assert all(collector.blobs.read(ref.sha256) == data[name] for name, ref in refs.items())
    published = sum(device.bus.chunks.total() for device in devices)
    return {
        "cuts": cutter.cuts,
        "most_waiting": collector.most_waiting,
        "waste": round(published / (UPLOADS * -(-UPLOAD // CHUNK)), 2),
    }


def _lacks(collector: Collector, name: str) -> Callable[[], bool]:
    return lambda: name not in collector.here


def test_all_uploads_come_a_few_at_a_time_whatever_happens_to_their_lines(broker: BrokerHandle, tmp_path: Path) -> None:
    seed = seed_of("transfer up", 1)
    measured = asyncio.run(_up(broker, tmp_path, seed))
    record(5, "transfer up", broker=broker.name, devices=UPLOADS, bytes=UPLOAD, **measured)
    assert measured["most_waiting"] >= UPLOADS - 4
    assert measured["waste"] <= WASTE
