"""A hub with a parent whose every word is the test's: what its devices keep follows from the parent's word alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from _levels import Agent, World, at_work, examples_of, soon, working
from _plans import bundle_of
from _scripted import FLEET, Clock, play, ref_of

from coordinator import updater
from coordinator.devices import welcome
from coordinator.exact import Grid
from coordinator.hub.run import HubRun
from coordinator.hub.service import HubService
from coordinator.rounds import Phase, State
from edgepfl import codec, wire
from edgepfl.bundle import Bundle, pack
from edgepfl.bus import Arrived
from edgepfl.bus.loopback import LoopbackBus
from edgepfl.topics import Address, FromDevice, ToAll, ToDevice, Topics
from edgepfl.wire import Cancel, Commit, Failed, Hello, Member, Message, Part, Progress, Report, RollCall, Task

pytestmark = pytest.mark.usefixtures("impatient")

TOPICS = Topics(FLEET)
Kind = TypeVar("Kind", bound=Message)


@dataclass
class Above:
    """The parent, by hand."""

    bus: LoopbackBus
    bundle: Bundle
    heard: list[Message] = field(default_factory=list)

    def say(self, message: Message) -> None:
        address: Address = ToDevice("north", message.KIND) if isinstance(message, Cancel) else ToAll(message.KIND)
        self.bus.publish(TOPICS.build(address), wire.encode(message))

    def task(self, number: int = 1, accepted: int = -1, **fields: Any) -> Task:  # noqa: ANN401  whatever a task has
        """Tell the hub a task."""
        algorithm = updater.algorithm_of(self.bundle.plan, {})
        state = updater.first_state(algorithm, self.bundle.plan, self.bundle.model)
        download = ref_of(codec.encode(updater.downloads(algorithm, state, "north")))
        named: dict[str, Any] = {
            "run": "run", "round": number, "attempt": 0, "cohort": (Member("north", accepted),),
            "bundle": ref_of(pack(self.bundle)), "download": download,
            "hyper": dict(self.bundle.plan.hyper), "steps": 10, "seed": 7, "evaluate": False, "tune_steps": 0,
            "final": False, "deadline": 400.0, "heartbeat": 5.0, "grid": Grid.of(1e6, 1e6).top,
        }  # fmt: skip
        task = Task(**{**named, **fields})
        self.say(task)
        return task

    async def next(self, kind: type[Kind]) -> Kind:
        """The next message of a kind."""
        while True:
            event = await self.bus.receive()
            if isinstance(event, Arrived) and isinstance(TOPICS.parse(event.topic), FromDevice):
                message = wire.decode(event.payload)
                self.heard.append(message)
                if isinstance(message, kind):
                    return message

    async def greeted(self, members: int = 2) -> Hello:
        while len((hello := await self.next(Hello)).members or ()) < members:
            pass
        return hello


@dataclass
class Scene:
    above: Above
    hub: HubService
    agents: dict[str, Agent]
    clock: Clock

    async def settled(self, number: int, run: str = "run") -> None:
        """Until every device knows that a round counts."""
        await soon(lambda: all(agent.kept(run)[0] == number for agent in self.agents.values()))

    async def reported(self, *devices: str) -> None:
        """Until just these have reported to the hub."""
        await soon(lambda: self.hub._run is not None and self.hub._run.round.devices(State.REPORTED) == devices)

    def kept(self) -> set[int]:
        return {agent.kept("run")[0] for agent in self.agents.values()}


@asynccontextmanager
async def scene(tmp_path: Path, name: str = "fedavg", **settings: Any) -> AsyncIterator[Scene]:  # noqa: ANN401  of the hub
    bundle, clock = bundle_of(name), Clock()
    world = World.of(bundle, tmp_path, {"north": ("ant", "bee")}, ())
    async with AsyncExitStack() as stack:
        bus = LoopbackBus(world.root, "parent")
        for topic_filter in TOPICS.for_coordinator():
            bus.subscribe(topic_filter)
        await bus.start()
        stack.push_async_callback(bus.stop)
        await stack.enter_async_context(working(*world.agents.values()))
        hub = world.hub("north", clock, **settings)
        await stack.enter_async_context(at_work(hub))
        above = Above(bus, bundle)
        await above.greeted()
        yield Scene(above, hub, dict(world.agents), clock)


def test_a_report_counts_below_when_it_counts_above(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene(tmp_path) as here:
            here.above.task()
            report = await here.above.next(Report)
            assert [part.device for part in report.members] == ["ant", "bee"]
            assert (report.examples, report.steps) == (sum(part.examples for part in report.members), 10)
            assert report.members[0].metrics["loss"] == 3.0
            assert here.kept() == {-1}
            here.above.say(Commit("run", 1, ("else", "north")))
            await here.settled(1)

    play(scenario())


@pytest.mark.parametrize("how", ["a commit without it", "a task that says so", "a new attempt"])
def test_a_report_that_does_not_count_is_forgotten_below(tmp_path: Path, how: str) -> None:
    async def scenario() -> None:
        async with scene(tmp_path) as here:
            here.above.task()
            first = await here.above.next(Report)
            match how:
                case "a commit without it":
                    here.above.say(Commit("run", 1, ()))
                    here.above.task(2)
                case "a task that says so":
                    here.above.task(2)
                case _:
                    here.above.task(attempt=1)
            second = await here.above.next(Report)
            assert here.kept() == {-1}
            assert (second.round, second.attempt) != (first.round, first.attempt)
            assert second.upload == first.upload  # it begins again from what was kept before
            here.above.say(Commit("run", second.round, ("north",)))
            await here.settled(second.round)
            kept = {agent.kept("run") for agent in here.agents.values()}
            assert len(kept) == 1  # once from the beginning, whatever came before

    play(scenario())


def test_the_word_may_come_with_the_next_task(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene(tmp_path) as here:
            here.above.task()
            await here.above.next(Report)
            here.above.task(2, accepted=1)
            await here.above.next(Report)
            assert here.kept() == {1}

    play(scenario())


def test_a_word_on_a_later_round_makes_it_ask(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene(tmp_path) as here:
            here.above.task()
            first = await here.above.next(Report)
            here.above.say(Commit("run", 3, ("else",)))
            assert await here.above.next(Report) == first
            here.above.say(Commit("run", 1, ("north",)))
            await here.settled(1)

    play(scenario())


def test_what_is_repeated_is_answered_and_not_done_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene(tmp_path) as here:
            here.agents["bee"].working.clear()
            task = here.above.task()
            await here.reported("ant")
            here.above.say(task)
            await here.above.next(Progress)
            here.agents["bee"].working.set()
            first = await here.above.next(Report)
            here.above.say(task)
            assert await here.above.next(Report) == first
            here.above.say(RollCall(4))
            assert (await here.above.next(Hello)).pending == ("run", 1)
            assert await here.above.next(Report) == first
            assert [len(agent.tasks) for agent in here.agents.values()] == [1, 1]
            here.above.say(Cancel("run", 1, 0, "too late to cancel"))
            here.above.say(Commit("run", 1, ("north",)))
            await here.settled(1)
            late = here.above.task(1, accepted=-1)
            assert (await here.above.next(Failed)).round == late.round

    play(scenario())


def test_a_cancelled_task_comes_to_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene(tmp_path) as here:
            here.agents["bee"].working.clear()
            here.above.task()
            await here.reported("ant")
            here.above.say(Cancel("run", 1, 0, "the round ended"))
            await soon(lambda: here.hub._active.round.phase is Phase.ABANDONED)
            await soon(lambda: here.agents["ant"].store.outbox() == [])  # it need not wait for the next task
            here.agents["bee"].working.set()
            here.above.task(2)
            report = await here.above.next(Report)
            assert (report.round, here.kept()) == (2, {-1})
            assert not any(isinstance(message, Report) and message.round == 1 for message in here.above.heard)

    play(scenario())


def test_too_few_devices_are_told_with_the_reason(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene(tmp_path, minimum=3, goal=5) as here:
            here.above.task()
            await soon(lambda: here.hub._run is not None)
            here.clock.now += 50.0
            assert (await here.above.next(Progress)).round == 1
            here.clock.now += 60.0
            failed = await here.above.next(Failed)
            assert (failed.code, "2 of 3 devices are here, 1 more needed" in failed.detail) == ("hub", True)

    play(scenario())


def test_more_devices_than_a_hello_can_name_are_left_out_and_the_hub_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene(tmp_path) as here:
            for number in range(wire.MEMBERS_LIMIT):
                hello = Hello(f"zoe-{number:04d}-{'x' * 20}", 1, ("onnx",), 1, 512, "test")
                here.hub._fleet = welcome(here.hub._fleet, hello, here.clock())
            here.hub._look()
            hello = await here.above.greeted(3)
            names = hello.members or ()
            assert len(names) == wire.MEMBERS_LIMIT
            assert set(here.agents) < set(names)
            assert hello.examples == examples_of("ant") + examples_of("bee") + wire.MEMBERS_LIMIT - 2

    play(scenario())


def test_a_device_with_runtimes_of_its_own_does_not_hide_those_of_the_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene(tmp_path) as here:
            for device in ("yak", "zoe"):
                odd = tuple(f"{device}-{number:02d}-{'x' * 50}" for number in range(wire.RUNTIMES_LIMIT))
                here.hub._fleet = welcome(here.hub._fleet, Hello(device, 1, odd, 1, 512, "test"), here.clock())
            here.hub._look()
            hello = await here.above.greeted(4)
            assert "onnx" in hello.runtimes
            assert len(hello.runtimes) == wire.RUNTIMES_LIMIT

    play(scenario())


def test_a_report_that_no_message_can_hold_is_told_as_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with scene(tmp_path) as here:
            part = Part("a", 1, 1)
            monkeypatch.setattr(HubRun, "_parts", lambda *_: tuple(part for _ in range(wire.MEMBERS_LIMIT + 1)))
            here.above.task()
            assert "too long" in (await here.above.next(Failed)).detail
            here.above.say(Commit("run", 1, ()))
            monkeypatch.undo()
            here.above.task(2)
            assert (await here.above.next(Report)).round == 2

    play(scenario())


def test_another_run_waits_for_the_word_on_this_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene(tmp_path) as here:
            here.above.task()
            first = await here.above.next(Report)
            here.above.task(run="other")
            assert await here.above.next(Report) == first
            here.above.say(Commit("run", 1, ("north",)))
            assert (await here.above.next(Report)).run == "other"
            assert here.kept() == {1}

    play(scenario())


def test_another_run_with_another_bundle_takes_the_place_of_one_at_work(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene(tmp_path) as here:
            here.agents["ant"].working.clear()
            here.above.task()
            await here.reported("bee")
            here.above.bundle = bundle_of("fedprox")
            other = here.above.task(run="other")
            await soon(lambda: here.hub._run is not None and here.hub._run.row.id == "other")
            here.agents["ant"].working.set()
            assert (await here.above.next(Report)).run == "other"
            assert here.hub.vault.offered.local.has(other.bundle.sha256)

    play(scenario())


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("fpfc", "fpfc needs each device's own"),
        ("fedamp", "fedamp needs each device's own"),
    ],
)
def test_what_cannot_be_summed_is_refused(name: str, why: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene(tmp_path, name) as here:
            here.above.task()
            failed = await here.above.next(Failed)
            assert why in failed.detail
            assert "relay" in failed.detail

    play(scenario())


def test_a_task_that_cannot_be_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene(tmp_path) as here:
            here.above.task(hyper={"strange": 1.0})
            assert "strange" in (await here.above.next(Failed)).detail
            here.above.task(2, download=wire.BlobRef("0" * 64, 3, b"abc"))
            assert "digest" in (await here.above.next(Failed)).detail
            here.above.task(3)
            assert (await here.above.next(Report)).round == 3

    play(scenario())
