"""Two levels on loopback buses: a coordinator, hubs, and devices with the agent's own session and store.

A device trains nothing: what it keeps and sends follows from its task, its name and what it kept.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import msgspec
import numpy as np
from _scripted import FLEET, Clock, Hand, config, finished, serving
from msgspec import UNSET

from coordinator.config import RunConfig
from coordinator.hub.link import Link, will
from coordinator.hub.service import HubService, Modelling
from coordinator.service import Coordinator
from coordinator.status import RunStatus
from device_agent import session
from device_agent.session import Session, Standing, task_id
from device_agent.store import Store
from edgepfl import wire
from edgepfl.bundle import Bundle, pack
from edgepfl.bus import Arrived, Connected
from edgepfl.bus.loopback import LoopbackBroker, LoopbackBus
from edgepfl.coding import Coding
from edgepfl.eligibility import Readings
from edgepfl.plan import Plan, Reduce, Role
from edgepfl.seeds import generator
from edgepfl.topics import ToAll, ToDevice, Topics
from edgepfl.tree import Tree, Trees
from edgepfl.wire import BlobRef, Cancel, Commit, Failed, Hello, Need, Report, RollCall, Stopped, Task

TOPICS = Topics(FLEET)


def examples_of(device: str) -> int:
    """How many examples a device has: different numbers."""
    return 3 + sum(map(ord, device)) % 17


def uploaded(plan: Plan, task: Task, device: str, kept: bytes) -> bytes:
    """A device's UP slots: of all that may shape them, numbers of very different sizes."""
    source = generator(task.seed, "upload", device, task.download.sha256, kept.hex())

    def drawn(shape: tuple[int, ...], reduce: Reduce | None) -> np.ndarray[Any, Any]:
        sizes = 2.0 ** source.integers(-20, 3, shape)
        numbers = np.asarray(sizes * source.standard_normal(shape), np.float32)
        return abs(numbers) if reduce is Reduce.SUM else numbers  # some of these stand for precisions

    trees: Trees = {
        name: Tree({tensor: drawn(spec.shape, slot.reduce) for tensor, spec in slot.tensors.items()})
        for name, slot in plan.by_role(Role.UP).items()
    }
    return Coding(task.codec, plan).encode(trees, task.seed).data


Train: TypeAlias = Callable[[Plan, Task, str, bytes], bytes]
"""From a plan, a task, a device and what it kept to its upload."""


class Agent(Hand):
    """A device: the agent's session and store, and work that takes no time."""

    def __init__(self, broker: LoopbackBroker, name: str, plan: Plan, folder: Path, train: Train | None = None) -> None:
        super().__init__(broker, name)
        self._train = train or uploaded
        folder.mkdir(parents=True, exist_ok=True)
        self.store = Store(folder / f"{name}.db")
        runs = {run: Standing(*here) for run, here in self.store.standings().items()}
        self._state = Session(name, runs)
        self._plan = plan
        self._offered: dict[str, bytes] = {}
        self.working = asyncio.Event()  # cleared: it holds back what it has done
        self.working.set()
        self.tasks: list[Task] = []
        self.readings = Readings()

    async def serve(self) -> None:
        while True:
            event = await self.bus.receive()
            if isinstance(event, Connected):
                self._feed(session.Connected())
            elif isinstance(event, Arrived) and isinstance(TOPICS.parse(event.topic), ToAll | ToDevice):
                message = wire.decode(event.payload)
                if isinstance(message, Need):
                    for start, stop in message.ranges:
                        for index in range(start, stop):
                            self.chunk(self._offered[message.sha256], index)
                else:
                    assert isinstance(message, Task | Commit | Cancel | RollCall)
                    if isinstance(message, Task) and any(each.device == self.name for each in message.cohort):
                        self.tasks.append(message)
                        await self.working.wait()
                    self._feed(session.Received(message, 0.0, self.readings))

    def kept(self, run: str) -> tuple[int, str]:
        """The settled round, and what it keeps since."""
        round_, data = self.store.keep(run)
        return round_, (data or b"").hex()

    def _feed(self, event: session.Event) -> None:
        self._state, effects = session.advance(self._state, event)
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: session.Effect) -> None:
        match effect:
            case session.SayHello(pending):
                waiting = (pending.run, pending.round) if pending else ("", -1)
                self.say(self._hello(waiting))
            case session.SendFailed(failed, code, detail):
                self.say(Failed(self.name, 1, failed.run, failed.round, failed.attempt, code, detail))
            case session.SayStopped(ended):
                self.say(Stopped(self.name, 1, ended.run, ended.round, ended.attempt, 0))
            case session.SendReports():
                for waiting_report in self.store.outbox():
                    self.raw(Report.KIND, waiting_report.report)
            case session.Fetch(ref):
                self._feed(session.Fetched(ref.sha256))
            case session.Work(task):
                self._work(task)
                self._feed(session.Worked(task_id(task)))
            case session.Settle(task_id_, accepted):
                self.store.settle(task_id_.run, accepted, task_id_.round, task_id_.attempt)
            case session.Close(task_id_, accepted):
                self.store.close_round(task_id_.run, task_id_.round, accepted=accepted)

    def _hello(self, waiting: tuple[str, int]) -> Hello:
        plain = Hello(self.name, 1, ("onnx",), examples_of(self.name), 512, "test", waiting)
        here = self._state.outlook
        return msgspec.structs.replace(plain, judged=here.judged or UNSET, unmet=here.reasons or UNSET)

    def _work(self, task: Task) -> None:
        before = self.store.keep(task.run).data or b""
        keep = hashlib.sha256(before + task.seed.to_bytes(8, "big") + task.download.sha256.encode()).digest()
        upload = None
        if task.steps:
            data = self._train(self._plan, task, self.name, before)
            upload = BlobRef(hashlib.sha256(data).hexdigest(), len(data), data)
        else:
            keep = before
        metrics = {"loss": float(len(self.name)), "accuracy.own": examples_of(self.name) / 100}
        report = Report(
            self.name, 1, task.run, task.round, task.attempt, examples_of(self.name), task.steps, upload, metrics,
            {}, hashlib.sha256(keep).hexdigest(),
        )  # fmt: skip
        self.store.commit_pending(task.run, task.round, task.attempt, keep=keep, report=wire.encode(report))


HUBS = {"north": ("ant", "bee", "cat"), "south": ("dog", "eel")}
DIRECT = ("fly",)
NAMES = (*HUBS["north"], *HUBS["south"], *DIRECT)


@asynccontextmanager
async def working(*agents: Agent) -> AsyncIterator[None]:
    """Agents at work; what breaks one of them breaks the test."""
    try:
        async with serving(*agents):
            yield
    finally:
        for agent in agents:
            agent.store.close()


def hub_service(
    name: str,
    parent: LoopbackBroker,
    own: LoopbackBroker,
    state: Path,
    clock: Callable[[], float],
    form: Modelling | None = None,
    hubs: Mapping[str, int] = MappingProxyType({}),
    **settings: Any,  # noqa: ANN401
) -> HubService:
    """A hub, not yet at work."""

    def link(hub: HubService) -> Link:
        bus = LoopbackBus(parent, name, will=will(FLEET, name, 1))
        return Link(name, FLEET, 1, bus=bus, fetched=hub.vault.offered.local, offered=hub.upward, clock=clock, ear=hub)

    fields = {"goal": 100, "minimum": 1, "gather": 5.0, "lease": 10.0, "deadline": 500.0, **settings}
    return HubService(
        FLEET,
        LoopbackBus(own, "coordinator"),
        state,
        link=link,
        config=RunConfig(**fields),
        form=form,
        hubs=hubs,
        clock=clock,
    )


@asynccontextmanager
async def at_work(service: Coordinator) -> AsyncIterator[None]:
    """A service at work, from its first connection on."""
    serving = asyncio.ensure_future(service.run())
    try:
        while not service._connected:
            await asyncio.sleep(0)
            if serving.done():
                serving.result()
        yield
        if serving.done():
            serving.result()
    finally:
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving


async def present(service: Coordinator, *names: str, members: int | None = None) -> None:
    """Until these devices are here, a hub's as many as wanted."""
    while True:
        here = {name: known.hello for name, known in service.fleet.devices.items() if known.present}
        below = sum(len(hello.members or ()) for hello in here.values())
        if set(names) <= here.keys() and members in {None, below}:
            return
        changed = service._changed
        await changed.wait()


@dataclass(frozen=True)
class Outcome:
    """How a run ended: the status, the state's digest, what each device keeps, and whose results count by round."""

    status: str
    state: str
    kept: Mapping[str, tuple[int, str]]
    results: Mapping[int, tuple[str, ...]]
    metrics: Mapping[str, float]


async def soon(when: Callable[[], bool]) -> None:
    """Until something holds that no event of one service tells of."""
    while not when():  # noqa: ASYNC110  it is true of several services together
        await asyncio.sleep(0)


async def ended(service: Coordinator, run: str, agents: Mapping[str, Agent]) -> Outcome:
    """How a run ends, once every device has heard what counts of it."""
    last = await finished(service, run)
    for name, number in service.journal.accepted(run).items():
        agent = agents.get(name.rpartition("/")[2])
        await soon(lambda agent=agent, number=number: agent is None or agent.kept(run)[0] >= number)  # type: ignore[misc]  # bound now
    return outcome(service, last, agents)


def outcome(service: Coordinator, last: RunStatus, agents: Mapping[str, Agent]) -> Outcome:
    results: dict[int, tuple[str, ...]] = {}
    for result in service.journal.results(last.run):
        if result.metrics:
            results[result.round] = (*results.get(result.round, ()), result.device.rpartition("/")[2])
    ordered = {number: tuple(sorted(devices)) for number, devices in results.items()}
    kept = {name: agent.kept(last.run) for name, agent in agents.items()}
    return Outcome(last.status, last.state_sha256, kept, ordered, last.metrics)


async def flat(bundle: Bundle, folder: Path, names: tuple[str, ...], **settings: Any) -> Outcome:  # noqa: ANN401
    """The same run without hubs."""
    broker = LoopbackBroker()
    agents = {name: Agent(broker, name, bundle.plan, folder / "agents") for name in names}
    service = Coordinator(FLEET, LoopbackBus(broker, "coordinator"), folder / "state", clock=Clock())
    async with at_work(service), working(*agents.values()):
        await present(service, *names)
        run = service.start_run(config(**{"goal": len(names), "minimum": 1, "exact": True, **settings}), pack(bundle))
        return await ended(service, run, agents)


@dataclass
class World:
    """Two levels: the brokers, the devices, and where everything is stored.

    Attributes:
        root: the coordinator's broker.
        own: each hub's.
        agents: the devices, by name.
        folder: of this test.
    """

    root: LoopbackBroker
    own: Mapping[str, LoopbackBroker]
    agents: Mapping[str, Agent]
    folder: Path

    @classmethod
    def of(
        cls,
        bundle: Bundle,
        folder: Path,
        hubs: Mapping[str, tuple[str, ...]],
        direct: tuple[str, ...],
        train: Train | None = None,
    ) -> World:
        root, own = LoopbackBroker(), {hub: LoopbackBroker() for hub in hubs}
        below = {device: own[hub] for hub, devices in hubs.items() for device in devices}
        places = {**below, **dict.fromkeys(direct, root)}
        agents = {name: Agent(broker, name, bundle.plan, folder / "agents", train) for name, broker in places.items()}
        return cls(root, own, agents, folder)

    def hub(
        self,
        name: str,
        clock: Clock | None = None,
        form: Modelling | None = None,
        **settings: Any,  # noqa: ANN401
    ) -> HubService:
        """A hub, not yet at work."""
        return hub_service(
            name, self.root, self.own[name], self.folder / name, clock or time.monotonic, form=form, **settings
        )


@asynccontextmanager
async def two_levels(
    bundle: Bundle,
    folder: Path,
    hubs: Mapping[str, tuple[str, ...]] = MappingProxyType(HUBS),
    direct: tuple[str, ...] = DIRECT,
    *,
    without: tuple[str, ...] = (),
    form: Modelling | None = None,
    train: Train | None = None,
) -> AsyncIterator[tuple[World, Coordinator]]:
    """Everything at work, and every device known; ``without`` are hubs that the test starts itself."""
    world = World.of(bundle, folder, hubs, direct, train)
    async with AsyncExitStack() as stack:
        service = Coordinator(
            FLEET, LoopbackBus(world.root, "coordinator"), folder / "root", hubs=dict.fromkeys(hubs, 10)
        )  # clocks go here: a chunk is not sent twice in an instant, and whoever lacks it asks again
        await stack.enter_async_context(at_work(service))
        await stack.enter_async_context(working(*world.agents.values()))
        here = [hub for hub in hubs if hub not in without]
        for hub in here:
            await stack.enter_async_context(at_work(world.hub(hub, form=form)))
        await present(service, *here, *direct, members=sum(len(hubs[hub]) for hub in here))
        yield world, service
