"""One agent on the loopback bus, and the coordinator's side of it driven by hand."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from device_agent.data import Examples
from device_agent.runners.onnx import OnnxRunner
from device_agent.service import AgentService, Place, will
from device_agent.work import Materials, Product, Workshop
from edgepfl import codec, wire
from edgepfl.bundle import Bundle, pack
from edgepfl.bus import Arrived
from edgepfl.bus.blobs import BlobStore
from edgepfl.bus.chunks import Receiver, Sender
from edgepfl.bus.loopback import LoopbackBroker, LoopbackBus
from edgepfl.errors import StoreError
from edgepfl.topics import Chunk, FromDevice, ToAll, ToDevice, Topics
from edgepfl.wire import BlobRef, Member, Message, Need, Report, RollCall, Task

FLEET, DEVICE = "watches", "pi-07"
PATIENCE = 60.0  # seconds; far more than anything here takes
TOPICS = Topics(FLEET)
Sent = TypeVar("Sent", bound=Message)


def play(scenario: Coroutine[Any, Any, None]) -> None:
    """Run a scenario to its end, or fail."""
    asyncio.run(asyncio.wait_for(scenario, PATIENCE))


async def until(true: Callable[[], bool]) -> None:
    """Wait for what nothing tells of."""
    while not true():  # noqa: ASYNC110  see above
        await asyncio.sleep(0.005)


def examples(inputs: int = 20) -> Examples:
    """Ten rows to train on, six to test."""
    source = np.random.default_rng(7)
    x, y = source.standard_normal((16, inputs), dtype=np.float32), source.integers(0, 3, 16)
    return Examples(x[:10], y[:10], x[10:], y[10:])


class GatedBus(LoopbackBus):
    """A bus that may be told to be full for some kinds of messages."""

    def __init__(self, broker: LoopbackBroker, client_id: str) -> None:
        super().__init__(broker, client_id, will=will(FLEET, client_id, 1))
        self.refuses: dict[str, int] = {}  # kind to how often
        self.refused = 0
        self.joined = asyncio.Event()

    def join(self) -> None:
        super().join()
        self.joined.set()

    def publish(self, topic: str, payload: bytes, *, qos: Literal[0, 1] = 1) -> bool:
        kind = topic.rpartition("/")[2]
        if self.refuses.get(kind, 0) > 0:
            self.refuses[kind] -= 1
            self.refused += 1
            return False
        return super().publish(topic, payload, qos=qos)


class GatedWorkshop(Workshop):
    """A workshop whose tasks begin when its gate is opened, and end when its exit is."""

    def __init__(self) -> None:
        super().__init__(OnnxRunner)
        self.gate, self.exit, self.at_exit = threading.Event(), threading.Event(), threading.Event()
        self.gate.set()
        self.exit.set()
        self.breaks = False  # once, at the exit

    def perform(self, task: Task, materials: Materials, on_step: Callable[[int], None]) -> Product:
        assert self.gate.wait(PATIENCE)
        product = super().perform(task, materials, on_step)
        self.at_exit.set()
        assert self.exit.wait(PATIENCE)
        if self.breaks:
            self.breaks = False
            raise StoreError("its blobs are deleted")
        return product


class Agent:
    """A device's agent with its storage in a folder; what is given replaces its part."""

    def __init__(
        self,
        broker: LoopbackBroker,
        folder: Path,
        *,
        place: Place | None = None,
        bus: GatedBus | None = None,
        data: Examples | None = None,
    ) -> None:
        self.place = place or Place.open(folder)
        self.bus = bus or GatedBus(broker, DEVICE)
        self.workshop = GatedWorkshop()
        self.pool = ThreadPoolExecutor(1)
        self.service = AgentService(
            DEVICE,
            FLEET,
            self.place.store.next_session(),
            bus=self.bus,
            place=self.place,
            examples=data or examples(),
            workshop=self.workshop,
            pool=self.pool,
        )
        self.serving: asyncio.Task[None] | None = None

    @property
    def chunk_filters(self) -> set[str]:
        """The chunk topics it listens to."""
        return set(self.bus.filters) - set(TOPICS.for_device(DEVICE))

    async def start(self) -> None:
        self.serving = asyncio.get_running_loop().create_task(self.service.run())
        await self.bus.joined.wait()

    async def end(self) -> BaseException | None:
        """Stop it, and say what had ended it before."""
        if self.serving is None:
            raise AssertionError("it was not started")
        self.serving.cancel()
        [found] = await asyncio.gather(self.serving, return_exceptions=True)
        self.pool.shutdown()
        self.place.store.close()
        return None if isinstance(found, asyncio.CancelledError) else found


@asynccontextmanager
async def agent(broker: LoopbackBroker, folder: Path, **given: Any) -> AsyncIterator[Agent]:  # noqa: ANN401  to Agent
    """An agent that serves for as long as the context lasts, and does not end by itself."""
    one = Agent(broker, folder, **given)
    await one.start()
    try:
        yield one
    finally:
        found = await one.end()
    assert found is None


class Hand:
    """The coordinator's side: offers blobs, sends what it is told to, and gathers what comes."""

    def __init__(self, broker: LoopbackBroker, folder: Path, bundle: Bundle) -> None:
        self.bus = LoopbackBus(broker, "coordinator")
        self.offered = BlobStore(folder / "offered")
        self.taken = BlobStore(folder / "taken")
        self.sender, self.receiver = Sender(self.offered), Receiver(self.taken)
        self.bundle = self.offered.put(pack(bundle))
        self.download = self.offered.put(codec.encode({"w": bundle.model}))
        self.serves = True  # answers Needs
        self.backlog: list[Message] = []
        self.came: dict[str, int] = {}  # messages by kind
        self.now = 0.0

    async def start(self) -> None:
        for topic_filter in TOPICS.for_coordinator():
            self.bus.subscribe(topic_filter)
        await self.bus.start()

    def task(self, run: str = "run", round_: int = 1, attempt: int = 0, accepted: int = -1, **other: Any) -> Task:  # noqa: ANN401  of Task
        fields: dict[str, Any] = {
            "run": run,
            "round": round_,
            "attempt": attempt,
            "cohort": (Member(DEVICE, accepted),),
            "bundle": self.bundle,
            "download": self.download,
            "hyper": {},
            "steps": 3,
            "seed": 5,
            "evaluate": False,
            "tune_steps": 0,
            "final": False,
            "deadline": 3600.0,
            "heartbeat": 600.0,
        }
        return Task(**{**fields, **other})

    def say(self, message: Message) -> None:
        """Send to everyone or to the device, as the coordinator does."""
        to_all = isinstance(message, Task | wire.Commit | RollCall)
        address = ToAll(message.KIND) if to_all else ToDevice(DEVICE, message.KIND)
        assert self.bus.publish(TOPICS.build(address), wire.encode(message))

    async def hear(self, kind: type[Sent]) -> Sent:
        """The next message of a kind; others wait for their turn."""
        while True:
            for message in self.backlog:
                if isinstance(message, kind):
                    self.backlog.remove(message)
                    return message
            event = await self.bus.receive()
            if isinstance(event, Arrived):
                self._arrived(event)

    async def fetch(self, ref: BlobRef) -> bytes:
        """The bytes of an upload, asked for chunk by chunk."""
        self.now += 60.0
        while not self.receiver.want(ref, self.now):
            for need in self.receiver.due(self.now):
                self.say(need)
            event = await self.bus.receive()
            if isinstance(event, Arrived):
                self._arrived(event)
        return self.taken.read(ref.sha256)

    async def work(self, task: Task) -> Report:
        """Send a task and wait for its report."""
        self.say(task)
        return await self.hear(Report)

    def _arrived(self, event: Arrived) -> None:
        match TOPICS.parse(event.topic):
            case FromDevice():
                message = wire.decode(event.payload)
                self.came[message.KIND] = self.came.get(message.KIND, 0) + 1
                if isinstance(message, Need):
                    self._offer(message)
                else:
                    self.backlog.append(message)
            case Chunk(sha16, index, _):
                self.receiver.chunk(sha16, index, event.payload, self.now)

    def _offer(self, need: Need) -> None:
        if not self.serves:
            self.backlog.append(need)
            return
        self.now += 60.0  # longer than a chunk is not sent twice
        for index, data in self.sender.requested(need, self.now):
            self.bus.publish(TOPICS.build(Chunk(need.sha256[:16], index)), data, qos=0)


@asynccontextmanager
async def hand(broker: LoopbackBroker, folder: Path, bundle: Bundle) -> AsyncIterator[Hand]:
    """A coordinator's side that is connected for as long as the context lasts."""
    one = Hand(broker, folder / "coordinator", bundle)
    await one.start()
    try:
        yield one
    finally:
        await one.bus.stop()
