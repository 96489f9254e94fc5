"""A coordinator on a loopback bus, and devices that speak the wire but train nothing.

A scripted device's upload follows from the task and its name alone, so a round done again gives the same bits.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, Self, TypeVar

import numpy as np

from coordinator.config import RunConfig
from coordinator.rounds import Seat
from coordinator.service import Coordinator
from coordinator.status import RunStatus
from edgepfl import wire
from edgepfl.bundle import Bundle
from edgepfl.bus import Arrived, Connected
from edgepfl.bus._window import digests
from edgepfl.bus.chunks import CHUNK
from edgepfl.bus.loopback import LoopbackBroker, LoopbackBus
from edgepfl.coding import Coding
from edgepfl.plan import Plan, Role
from edgepfl.seeds import generator
from edgepfl.topics import Chunk, FromDevice, ToAll, ToDevice, Topics
from edgepfl.tree import Tree, Trees
from edgepfl.wire import BlobRef, Cancel, Hello, Message, Need, Report, RollCall, Stopped, Task

FLEET = "home"
TOPICS = Topics(FLEET)
PATIENCE = 30.0  # seconds; far more than anything here takes
AnyMessage = TypeVar("AnyMessage", bound=Message)


class Clock:
    """Time that passes when the test says so."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def play(scenario: Coroutine[Any, Any, None]) -> None:
    """Run a scenario to its end, or fail."""
    asyncio.run(asyncio.wait_for(scenario, PATIENCE))


def upload_of(plan: Plan, task: Task, device: str) -> bytes:
    """A device's UP slots: they depend on the round, on the state that was sent, and on its name."""
    source = generator(task.seed, "upload", device, task.download.sha256)
    trees: Trees = {
        name: Tree(
            {
                tensor: (0.1 * source.standard_normal(spec.shape)).astype(np.float32)
                for tensor, spec in slot.tensors.items()
            }
        )
        for name, slot in plan.by_role(Role.UP).items()
    }
    return Coding(task.codec, plan).encode(trees, task.seed).data


def ref_of(data: bytes, *, inline: bool = True) -> BlobRef:
    """A reference as an agent makes it."""
    sha256 = hashlib.sha256(data).hexdigest()
    if inline and len(data) <= wire.INLINE_LIMIT:
        return BlobRef(sha256, len(data), data)
    return BlobRef(sha256, len(data), chunks=digests(data))


class Hand:
    """A device's connection, every message made by hand."""

    def __init__(self, broker: LoopbackBroker, name: str, *, session: int = 1) -> None:
        self.name, self.session = name, session
        self.obliging = True  # whether it says Stopped when it is told to stop
        self.bus = LoopbackBus(broker, name)
        for topic_filter in TOPICS.for_device(name):
            self.bus.subscribe(topic_filter)

    async def __aenter__(self) -> Self:
        await self.bus.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.bus.stop()

    def say(self, message: Message) -> None:
        self.raw(message.KIND, wire.encode(message))

    def raw(self, kind: str, payload: bytes) -> None:
        self.bus.publish(TOPICS.build(FromDevice(self.name, kind)), payload)

    def hello(self, *, examples: int = 5, session: int | None = None) -> None:
        self.say(Hello(self.name, session or self.session, ("onnx",), examples, 512, "test"))

    def report(self, task: Task, upload: BlobRef | None, *, examples: int = 5) -> Report:
        """The report on a task, as the agent would make it; it is not sent."""
        return self.report_of(task.run, task.round, upload, attempt=task.attempt, examples=examples, steps=task.steps)

    def report_of(
        self, run: str, round_: int, upload: BlobRef | None, *, attempt: int = 0, examples: int = 5, steps: int = 10
    ) -> Report:
        loss = {"loss": 1.0 + round_}
        return Report(self.name, self.session, run, round_, attempt, examples, steps, upload, loss, {}, "0" * 64)

    def chunk(self, data: bytes, index: int) -> None:
        sha16 = hashlib.sha256(data).hexdigest()[:16]
        topic = TOPICS.build(Chunk(sha16, index, self.name))
        self.bus.publish(topic, data[index * CHUNK : (index + 1) * CHUNK])

    async def heard(self) -> Message | Connected:
        """What comes next."""
        while True:
            event = await self.bus.receive()
            if isinstance(event, Connected):
                return event
            if isinstance(event, Arrived) and isinstance(TOPICS.parse(event.topic), ToAll | ToDevice):
                message = wire.decode(event.payload)
                if isinstance(message, Cancel) and self.obliging:
                    self.stopped(message)
                return message

    def stopped(self, cancel: Cancel) -> None:
        """Say that work has ended, as an agent does whether it had any or not."""
        self.say(Stopped(self.name, self.session, cancel.run, cancel.round, cancel.attempt, 0))

    async def next(self, kind: type[AnyMessage]) -> AnyMessage:
        """The next message of a kind; others are dropped."""
        while not isinstance(message := await self.heard(), kind):
            pass
        return message


class Honest(Hand):
    """A device that does what it is told, and remembers its last report until the coordinator's word."""

    def __init__(self, broker: LoopbackBroker, name: str, plan: Plan, *, times: int = 1) -> None:
        super().__init__(broker, name)
        self._plan = plan
        self._times = times  # how often each report is sent
        self._offered: dict[str, bytes] = {}
        self._last: Report | None = None
        self.seen: list[Message] = []

    async def serve(self) -> None:
        while True:
            message = await self.heard()
            match message:
                case Connected() | RollCall():
                    self.hello()
                    self._send_report()
                case Task() if any(member.device == self.name for member in message.cohort):
                    self._last = self._work(message)
                    self._send_report()
                case Need():
                    for start, stop in message.ranges:
                        for index in range(start, stop):
                            self.chunk(self._offered[message.sha256], index)
            if isinstance(message, Message):
                self.seen.append(message)

    def _work(self, task: Task) -> Report:
        if task.final:
            return self.report(task, None)
        data = upload_of(self._plan, task, self.name)
        ref = ref_of(data)
        self._offered[ref.sha256] = data
        return self.report(task, ref)

    def _send_report(self) -> None:
        for _ in range(self._times if self._last is not None else 0):
            assert self._last is not None
            self.say(self._last)


class AtWork(Protocol):
    """A device that serves on a bus of its own."""

    bus: LoopbackBus

    async def serve(self) -> None: ...


@asynccontextmanager
async def serving(*devices: AtWork) -> AsyncIterator[None]:
    """Devices at work; what breaks one of them breaks the test."""
    async with asyncio.TaskGroup() as group:
        tasks = []
        for device in devices:
            await device.bus.start()
            tasks.append(group.create_task(device.serve()))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            for device in devices:
                await device.bus.stop()


@asynccontextmanager
async def coordinating(
    broker: LoopbackBroker,
    state: Path,
    clock: Callable[[], float] | None = None,
    hubs: Mapping[str, int] = MappingProxyType({}),
) -> AsyncIterator[Coordinator]:
    """A coordinator at work; its fault is the test's."""
    bus = LoopbackBus(broker, "coordinator")
    async with attended(Coordinator(FLEET, bus, state, clock=clock or Clock(), hubs=hubs)) as service:
        yield service


@asynccontextmanager
async def attended(service: Coordinator) -> AsyncIterator[Coordinator]:
    """A coordinator at work once it is connected; its fault is the test's."""
    serving = asyncio.ensure_future(service.run())
    try:
        while not service._connected:
            await asyncio.sleep(0)
            if serving.done():
                serving.result()
        yield service
        for each in (serving, service._broken):
            if each is not None and each.done():
                each.result()
    finally:
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving


async def watched(service: Coordinator, run: str, when: Callable[[RunStatus], bool]) -> RunStatus:
    """The first status of a run that is as we want it."""
    async for status in service.watch(run):
        if when(status):
            return status
    raise AssertionError(f"the run ended before: {service.status(run)}")


async def finished(service: Coordinator, run: str) -> RunStatus:
    """The last status of a run."""
    return await watched(service, run, lambda status: status.status != "running")


def config(**fields: Any) -> RunConfig:  # noqa: ANN401  whatever RunConfig takes
    """Settings of a small run of three devices, whose time is the test's."""
    small = {"rounds": 2, "goal": 3, "minimum": 3, "lease": 10.0, "deadline": 1000.0, "gather": 5.0, "canary": 0.0}
    return RunConfig(**{**small, **fields})


def honest_fleet(broker: LoopbackBroker, bundle: Bundle, *names: str, times: int = 1) -> tuple[Honest, ...]:
    return tuple(Honest(broker, name, bundle.plan, times=times) for name in names or ("ant", "bee", "cat"))


def seat_of(service: Coordinator, device: str) -> Seat:
    """A member's seat in the open round."""
    return service._active.round.seats[device]


async def until(service: Coordinator, run: str, when: Callable[[], bool]) -> None:
    """Wait for a change after which ``when()`` holds, while the run goes on."""
    await watched(service, run, lambda _: when())


async def drained(service: Coordinator, broker: LoopbackBroker) -> None:
    """Until the service has taken everything that was sent: it answers a last Need with a chunk that only it has."""
    bus = LoopbackBus(broker, "probe")
    ref = service._desk.vault.offered.put(b"a blob to ask for")
    bus.subscribe(TOPICS.chunks_of(ref.sha256[:16]))
    await bus.start()
    await bus.receive()
    topic = TOPICS.build(FromDevice("probe", Need.KIND))
    service._clock.now += 1  # type: ignore[attr-defined]  # the test's clock: else the same chunk is not sent twice
    bus.publish(topic, wire.encode(Need(ref.sha256, ((0, 1),))))
    await bus.receive()
    await bus.stop()


async def idle(service: Coordinator) -> None:
    """Until the worker has nothing to do, and what comes of its work is done."""
    while service._jobs:
        await asyncio.wait(service._jobs)


async def told(hands: Iterable[Hand]) -> Task:
    """The task that all of these are told."""
    tasks = await asyncio.gather(*(hand.next(Task) for hand in hands))
    assert len({(task.run, task.round, task.attempt, task.cohort) for task in tasks}) == 1
    return tasks[0]


@asynccontextmanager
async def hands(broker: LoopbackBroker, *names: str) -> AsyncIterator[tuple[Hand, ...]]:
    """Devices that said Hello, and do nothing else by themselves."""
    async with AsyncExitStack() as stack:
        present = tuple([await stack.enter_async_context(Hand(broker, name)) for name in names])
        for hand in present:
            hand.hello()
        yield present
