"""Devices that do nothing but transfer, with what agents and the coordinator transfer with, and cuts of their lines."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Literal

import psutil

from coordinator.service import Coordinator
from coordinator.uploads import Uploads
from device_agent.store import Store
from device_agent.transfers import Transfers
from edgepfl import wire
from edgepfl.bus import Arrived, Connected, Disconnected, Event
from edgepfl.bus.blobs import BlobStore
from edgepfl.bus.mqtt import MqttBus, MqttSettings
from edgepfl.bus.transfer import Transfer
from edgepfl.topics import Chunk, FromDevice, ToDevice, Topics
from edgepfl.wire import BlobRef, Need, Report
from simulators.broker import BrokerHandle

FLEET = "home"
TOPICS = Topics(FLEET)
BUSY = {"max_queued": 4096, "max_queued_bytes": 64 << 20}  # as edgepfl coordinator has it


class Counting(MqttBus):
    """A bus that counts the chunks that it publishes, by index."""

    def __init__(self, settings: MqttSettings) -> None:
        super().__init__(settings)
        self.chunks: Counter[str] = Counter()

    def publish(self, topic: str, payload: bytes, *, qos: Literal[0, 1] = 1) -> bool:
        sent = super().publish(topic, payload, qos=qos)
        if sent and isinstance(TOPICS.parse(topic), Chunk):
            self.chunks[topic] += 1
        return sent


class Device:
    """One device's transfers on a connection of its own."""

    def __init__(
        self, url: str, name: str, folder: Path, chunk_kib: Literal[0, 64] = 64, *, keepalive: int = 30
    ) -> None:
        self.name = name
        # A line that is cut is whole again at once: how long one is away decides how much it misses, and its rhythm
        # of cuts would drive up the waits between attempts.
        self.bus = Counting(MqttSettings(url, name, backoff_base=0.05, retry_cap=0.1, keepalive=keepalive))
        self.fetched, self._offered = BlobStore(folder / "fetched"), BlobStore(folder / "offered")
        self._store = Store(folder / "store.db")
        self.transfers = Transfers(
            name,
            TOPICS,
            self.bus,
            self._store,
            self.fetched,
            self._offered,
            settings=Transfer(chunk_kib=chunk_kib),
            clock=time.monotonic,
        )
        self.report: Report | None = None
        self.has = asyncio.Event()
        self.lost = 0  # connections
        self.received = 0  # bytes of chunks, wanted or not

    async def serve(self) -> None:
        """Take what comes, for ever."""
        for topic_filter in TOPICS.for_device(self.name):
            self.bus.subscribe(topic_filter)
        await self.bus.start()
        try:
            await _served(self.bus, self._take, lambda: self.transfers.next_due, self.transfers.pump)
        finally:
            await self.bus.stop()
            self._store.close()

    def offer(self, data: bytes) -> BlobRef:
        """Offer an upload, and say so at every connection."""
        ref = self.transfers.offer(data)
        self.report = Report(self.name, 1, "run", 1, 0, 1, 1, ref, {}, {}, "0" * 64)
        return ref

    def fetch(self, ref: BlobRef) -> None:
        if self.transfers.fetch(ref, {ref.sha256}):
            self.has.set()

    def _take(self, event: Event) -> None:
        match event:
            case Connected():
                self.transfers.connected()
                if self.report is not None:
                    self.bus.publish(TOPICS.build(FromDevice(self.name, Report.KIND)), wire.encode(self.report))
            case Arrived(topic, payload):
                match TOPICS.parse(topic):
                    case Chunk(sha16, index, ""):
                        self.received += len(payload)
                        if self.transfers.chunk_came(sha16, index, payload) is not None:
                            self.has.set()
                    case ToDevice() if isinstance(need := wire.decode(payload), Need):
                        self.transfers.needed(need)
            case Disconnected():
                self.lost += 1


class Collector:
    """Fetches uploads as the coordinator does."""

    def __init__(self, url: str, folder: Path, under_way: int) -> None:
        self.bus = MqttBus(MqttSettings(url, f"{FLEET}_coordinator", **BUSY))  # type: ignore[arg-type]  # as they are
        self.blobs = BlobStore(folder)
        self.uploads = Uploads(self.blobs, under_way)
        self.here: set[str] = set()
        self.most_waiting = 0
        self.changed = asyncio.Event()

    async def serve(self) -> None:
        """Take what comes, for ever."""
        for topic_filter in TOPICS.for_coordinator():
            self.bus.subscribe(topic_filter)
        await self.bus.start()
        try:
            await _served(self.bus, self._take, lambda: self.uploads.next_due, self._pump)
        finally:
            await self.bus.stop()

    def _reported(self, report: Report) -> None:
        if report.upload is None or report.device in self.here:
            return
        self._heard(self.uploads.take(report, report.upload, time.monotonic()).complete)
        self.most_waiting = max(self.most_waiting, self.uploads.waiting)

    def _take(self, event: Event) -> None:
        match event:
            case Connected():
                self.uploads.ask_again(time.monotonic())
            case Arrived(topic, payload):
                self._arrived(topic, payload)
            case Disconnected():
                pass

    def _arrived(self, topic: str, payload: bytes) -> None:
        match TOPICS.parse(topic):
            case FromDevice() if isinstance(report := wire.decode(payload), Report):
                self._reported(report)
            case Chunk(sha16, index, device):
                news = self.uploads.chunk(device, sha16, index, payload, time.monotonic())
                assert not news.wrong, news.why
                self._heard(news.complete)
            case _:
                pass

    def _heard(self, complete: Iterable[Report]) -> None:
        self.here |= {report.device for report in complete}
        self.changed.set()

    def _pump(self) -> None:
        for device, need in self.uploads.due(time.monotonic()):
            self.bus.publish(TOPICS.build(ToDevice(device, Need.KIND)), wire.encode(need))


@asynccontextmanager
async def coordinating(url: str, state: Path) -> AsyncIterator[tuple[Coordinator, Counting]]:
    """The coordinator's service, and its bus."""
    bus = Counting(MqttSettings(url, f"{FLEET}_coordinator", **BUSY))  # type: ignore[arg-type]  # as they are
    service = Coordinator(FLEET, bus, state)
    async with at_work(service.run()):
        yield service, bus


@asynccontextmanager
async def at_work(*services: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """What serves until the context ends; a fault of one is the test's."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(service) for service in services]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


class Cutter:
    """Cuts each of some lines every 0.3 to 1.2 seconds, as long as it is wanted."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self.cuts = 0

    async def cut(self, bus: MqttBus, wanted: Callable[[], bool]) -> None:
        while wanted():
            await asyncio.sleep(self._random.uniform(0.3, 1.2))
            if wanted():
                bus.drop()
                self.cuts += 1


async def kills(broker: BrokerHandle, moments: list[Callable[[], bool]]) -> None:
    """Kill the broker at each moment, and start it again with empty memory."""
    for moment in moments:
        while not moment():  # noqa: ASYNC110  what is waited for has no event
            await asyncio.sleep(0.01)
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)


class Memory:
    """The most resident memory that a broker's process had, in MB."""

    def __init__(self, broker: BrokerHandle) -> None:
        self._broker = broker
        self.most = 0.0

    async def watch(self) -> None:
        while True:
            process = getattr(self._broker, "process", None)
            with suppress(psutil.NoSuchProcess):
                if process is not None:
                    self.most = max(self.most, psutil.Process(process).memory_info().rss / 1e6)
            await asyncio.sleep(0.02)


async def _served(
    bus: MqttBus, take: Callable[[Event], None], next_due: Callable[[], float | None], pump: Callable[[], None]
) -> None:
    """What a service does with its events and its time."""
    while True:
        due = next_due()
        timeout = None if due is None else max(due - time.monotonic(), 0.001)
        with suppress(TimeoutError):
            take(await asyncio.wait_for(bus.receive(), timeout))
        pump()
