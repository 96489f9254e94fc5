"""A fleet whose reports take every wrong way: repeated, shuffled among each other, and a round too late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np
from _scripted import FLEET, TOPICS, Clock, attended, ref_of, upload_of, watched

from coordinator import pieces, updater
from coordinator.config import RunConfig
from coordinator.pieces import Manifest
from coordinator.rounds import State
from coordinator.service import Coordinator
from edgepfl import codec, wire
from edgepfl.bundle import Bundle, pack
from edgepfl.bus import Arrived, Bus, Connected
from edgepfl.bus.blobs import BlobStore
from edgepfl.plan import Plan, Role
from edgepfl.topics import FromDevice
from edgepfl.tree import Tree, Trees
from edgepfl.wire import Cancel, Hello, Report, RollCall, Stopped, Task

MOST_COPIES = 5
LATE = 0.1  # of the copies, and of the devices whose every copy is
DEADLINE = 100.0
EXAMPLES = 5


@dataclass(eq=False)
class Device:
    """One that works on every task and leaves the sending of its report to others."""

    name: str
    examples: int
    bus: Bus
    plan: Plan
    done: asyncio.Queue[tuple[Device, Task, Report]]
    seen: set[tuple[int, int]] = field(default_factory=set)

    async def serve(self) -> None:
        while True:
            match await self.bus.receive():
                case Connected():
                    self._hello()
                case Arrived(_, payload):
                    self._heard(wire.decode(payload))

    def send(self, report: Report) -> None:
        sent = self.bus.publish(TOPICS.build(FromDevice(self.name, Report.KIND)), wire.encode(report))
        assert sent, "more than the bus takes"

    def _heard(self, message: wire.Message) -> None:
        match message:
            case RollCall():
                self._hello()
            case Task() if any(member.device == self.name for member in message.cohort):
                if (message.round, message.attempt) not in self.seen:
                    self.seen.add((message.round, message.attempt))
                    self.done.put_nowait((self, message, self._report(message)))

            case Cancel():  # what it does is ended, and it is free for another task
                stopped = Stopped(self.name, 1, message.run, message.round, message.attempt, 0)
                self.bus.publish(TOPICS.build(FromDevice(self.name, Stopped.KIND)), wire.encode(stopped))

    def _hello(self) -> None:
        hello = Hello(self.name, 1, ("onnx",), self.examples, 512, "test")
        self.bus.publish(TOPICS.build(FromDevice(self.name, Hello.KIND)), wire.encode(hello))

    def _report(self, task: Task) -> Report:
        upload = None if task.final else ref_of(upload_of(self.plan, task, self.name))
        made = (task.run, task.round, task.attempt, self.examples, task.steps, upload)
        return Report(self.name, 1, *made, {"loss": 1.0}, {}, "0" * 64)


@dataclass
class Outcome:
    """What a run came to, and what it had to come to.

    Attributes:
        state: the digest of its last state.
        counted: round and device of every report that counts.
        expected: those that were there in time.
        tasks: of each round of training.
        sent: how many reports were sent.
    """

    state: str
    counted: list[tuple[int, str]]
    expected: list[tuple[int, str]] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    sent: int = 0


class Play:
    """A run in which the post is bad.

    Args:
        bus: makes the connection of a name.
        bundle: what is trained.
        devices: how many.
        seed: of who is too late.
        order: seed of how often each report is sent, and in which order.
    """

    def __init__(self, bus: Callable[[str], Bus], bundle: Bundle, devices: int, seed: int, order: int = 0) -> None:
        self._bus, self._bundle = bus, bundle
        self._lateness, self._order = Random(seed), Random(order)
        self._done: asyncio.Queue[tuple[Device, Task, Report]] = asyncio.Queue()
        self._late: list[tuple[Device, Report]] = []
        self.devices = [self._device(f"device-{number:03d}", number) for number in range(devices)]
        self.outcome = Outcome("", [])

    async def run(self, state: Path, rounds: int) -> Outcome:
        """All of it."""
        clock = Clock()
        service = Coordinator(FLEET, self._bus("coordinator"), state, clock=clock)
        everybody = len(self.devices)
        self.service = service
        self.clock = clock
        config = RunConfig(
            rounds=rounds,
            goal=everybody,
            minimum=everybody // 2,
            deadline=DEADLINE,
            lease=1e6,
            gather=1e6,
            evaluate_every=0,
            canary=0.0,
            quarantine_after=1 << 20,
        )
        async with attended(service), self._serving():
            run = service.start_run(config, pack(self._bundle))
            for number in range(1, rounds + 2):
                await self._round(service, run, number, clock, is_last=number > rounds)
            status = await watched(service, run, lambda status: status.status != "running")
            assert (status.status, status.why) == ("done", "")
            self.outcome.state = status.state_sha256
            self.outcome.counted = [(result.round, result.device) for result in service.journal.results(run)]
        return self.outcome

    async def _round(self, service: Coordinator, run: str, number: int, clock: Clock, *, is_last: bool) -> None:
        """Take everybody's reports, and let only some arrive in time, the others with those of the next round."""
        reports = [await self._done.get() for _ in self.devices]
        reports.sort(key=lambda each: each[0].name)  # the same chances fall to the same devices
        assert {(task.round, task.attempt) for _, task, _ in reports} == {(number, 0)}
        now, self._late = self._late, []
        late = set[str]() if is_last else {device.name for device, _, _ in reports if self._lateness.random() < LATE}
        for device, _, report in reports:
            for copy in range(self._order.randint(1, MOST_COPIES)):
                is_late = device.name in late or (copy > 0 and self._order.random() < LATE)
                (self._late if is_late else now).append((device, report))
        self._order.shuffle(now)
        in_time = {device.name for device in self.devices} - late
        self.outcome.expected += [(number, name) for name in sorted(in_time)]
        self.outcome.tasks += [] if is_last else [reports[0][1]]
        await self._send(now)
        if late:
            await watched(service, run, lambda _: set(service._active.round.devices(State.REPORTED)) == in_time)
            clock.now += DEADLINE
        await watched(service, run, lambda status: status.round >= number or status.status != "running")

    async def _send(self, letters: list[tuple[Device, Report]]) -> None:
        for device, report in letters:
            device.send(report)
            self.outcome.sent += 1
            await asyncio.sleep(0)

    def _device(self, name: str, number: int) -> Device:
        bus = self._bus(name)
        for topic_filter in TOPICS.for_device(name):
            bus.subscribe(topic_filter)
        return Device(name, EXAMPLES + number % 3, bus, self._bundle.plan, self._done)

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            tasks = []
            for device in self.devices:
                await device.bus.start()
                tasks.append(group.create_task(device.serve()))
            yield
            for task in tasks:
                task.cancel()
            for device in self.devices:
                await device.bus.stop()


def oracle(play: Play) -> Tree:
    """FedAvg's model in NumPy: in each round the mean of what was there in time, added up in the order of the names.

    Sums are in float64, as :mod:`coordinator.reduction` says; the weight of an upload is its device's examples.
    """
    plan, examples = play._bundle.plan, {device.name: device.examples for device in play.devices}
    tensors = {name: slot.tensors for name, slot in plan.by_role(Role.UP).items()}
    w = play._bundle.model
    for number, task in enumerate(play.outcome.tasks, 1):
        names = sorted(name for round_, name in play.outcome.expected if round_ == number)
        deltas = [codec.decode(upload_of(plan, task, name), tensors)["delta"] for name in names]
        weights = [float(examples[name]) for name in names]
        w = Tree({key: _mean_added(w[key], [delta[key] for delta in deltas], weights) for key in w})
    return w


def _mean_added(
    w: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
    deltas: list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]],
    weights: list[float],
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    total = np.zeros(w.shape, np.float64)
    for delta, weight in zip(deltas, weights, strict=True):
        total += weight * delta.astype(np.float64)
    return (w + (total / sum(weights)).astype(np.float32)).astype(np.float32)


def stored(state: Path, digest: str) -> Trees:
    """The tensors of a coordinator's state."""
    blobs = BlobStore(state / "private")
    [shard] = pieces.decode(blobs.read(digest), Manifest, "state").shards
    return updater.numpy_of(pieces.take(blobs, shard))
