"""The agent's service on the loopback bus, with a real bundle and a coordinator played by hand."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from _bundles import ditto_bundle
from _hand import DEVICE, TOPICS, Agent, Hand, agent, hand, play, until

from device_agent.models import newest
from device_agent.service import Place
from device_agent.session import Phase, Standing
from edgepfl import codec
from edgepfl.bundle import Bundle
from edgepfl.bus import Arrived
from edgepfl.bus.loopback import LoopbackBroker, LoopbackBus
from edgepfl.errors import StoreError
from edgepfl.plan import Role
from edgepfl.topics import FromDevice
from edgepfl.wire import Cancel, Commit, Gone, Hello, Member, Need, Progress, Report, RollCall, Task

ENDLESS = 1 << 40  # steps


@pytest.fixture
def ditto() -> Bundle:
    """Exported once for all tests."""
    return ditto_bundle()


def test_a_round_from_hello_to_commit(tmp_path: Path, ditto: Bundle) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with hand(broker, tmp_path, ditto) as coordinator, agent(broker, tmp_path / "device") as one:
            hello = await coordinator.hear(Hello)
            assert (hello.device, hello.examples, hello.runtimes, hello.pending) == (DEVICE, 10, ("onnx",), ("", -1))
            report = await coordinator.work(coordinator.task(evaluate=True, tune_steps=2))
            assert (report.run, report.round, report.attempt, report.steps) == ("run", 1, 0, 3)
            assert report.metrics.keys() >= {"loss", "accuracy.personal", "accuracy.global"}
            assert report.upload is not None
            sent = codec.decode(
                await coordinator.fetch(report.upload),
                {name: slot.tensors for name, slot in ditto.plan.by_role(Role.UP).items()},
                where="upload",
            )
            assert sent.keys() == {"delta"}
            assert one.chunk_filters == set()
            assert one.place.store.keep("run").data is None
            coordinator.say(Commit("run", 1, (DEVICE,)))
            coordinator.say(RollCall(1))
            assert (await coordinator.hear(Hello)).pending == ("", -1)
            kept = one.place.store.keep("run")
            assert kept.round == 1
            assert hashlib.sha256(kept.data or b"").hexdigest() == report.kept
            assert not one.place.offered.has(report.upload.sha256)

    play(scenario())


def test_the_next_round_goes_on_from_what_was_accepted(tmp_path: Path, ditto: Bundle) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with hand(broker, tmp_path, ditto) as coordinator, agent(broker, tmp_path / "device") as one:
            first = await coordinator.work(coordinator.task())
            dropped = await coordinator.work(coordinator.task(round_=2, accepted=-1))
            again = await coordinator.work(coordinator.task(round_=3, accepted=-1))
            assert first.kept == dropped.kept == again.kept
            settled = await coordinator.work(coordinator.task(round_=4, accepted=3))
            assert settled.kept != again.kept
            assert one.place.store.keep("run").round == 3

    play(scenario())


def test_the_last_round_trains_nothing_and_leaves_a_model_to_predict_with(tmp_path: Path, ditto: Bundle) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with hand(broker, tmp_path, ditto) as coordinator, agent(broker, tmp_path / "device") as one:
            trained = await coordinator.work(coordinator.task())
            last = coordinator.task(round_=2, accepted=1, steps=0, evaluate=True, tune_steps=1, final=True)
            report = await coordinator.work(last)
            assert (report.upload, report.steps, report.kept) == (None, 0, trained.kept)
            assert newest(tmp_path / "device" / "store.db").round == 2
            assert one.place.store.keep("run").round == 1

    play(scenario())


def test_a_repeated_task_is_answered_with_progress_and_then_with_the_same_report(tmp_path: Path, ditto: Bundle) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with hand(broker, tmp_path, ditto) as coordinator, agent(broker, tmp_path / "device"):
            coordinator.serves = False
            task = coordinator.task()
            coordinator.say(task)
            await coordinator.hear(Need)
            coordinator.say(task)
            assert (await coordinator.hear(Progress)).steps == 0
            coordinator.serves = True
            coordinator.say(task)
            first = await coordinator.hear(Report)
            assert await coordinator.work(task) == first
            assert coordinator.came["report"] == 2

    play(scenario())


def test_progress_tells_the_steps_and_cancel_ends_the_work(tmp_path: Path, ditto: Bundle) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with hand(broker, tmp_path, ditto) as coordinator, agent(broker, tmp_path / "device") as one:
            coordinator.say(coordinator.task(steps=ENDLESS, heartbeat=0.1))
            while (told := await coordinator.hear(Progress)).steps == 0:
                pass
            assert (told.device, told.run, told.round, told.attempt) == (DEVICE, "run", 1, 0)
            coordinator.say(Cancel("run", 1, 0, "abandoned"))
            await until(lambda: one.service.state.phase is Phase.IDLE)
            report = await coordinator.work(coordinator.task(attempt=1))
            assert (report.attempt, report.steps, coordinator.came["report"]) == (1, 3, 1)

    play(scenario())


def test_a_task_that_is_stopped_and_sent_again_can_be_stopped_again(tmp_path: Path, ditto: Bundle) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with hand(broker, tmp_path, ditto) as coordinator, agent(broker, tmp_path / "device") as one:
            endless = coordinator.task(heartbeat=0.1, steps=ENDLESS)
            coordinator.say(endless)
            while one.service.state.phase is not Phase.WORKING:
                await coordinator.hear(Progress)
            for message in (Cancel("run", 1, 0, "x"), endless, Cancel("run", 1, 0, "x"), endless):
                coordinator.say(message)
            await coordinator.hear(Progress)
            coordinator.say(Commit("run", 1, ()))
            await until(lambda: one.service.state.phase is Phase.IDLE)
            assert (await coordinator.work(coordinator.task(round_=2))).round == 2
            assert coordinator.came["report"] == 1

    play(scenario())


def test_cancel_while_fetching_leaves_no_chunk_topic_behind(tmp_path: Path, ditto: Bundle) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with hand(broker, tmp_path, ditto) as coordinator, agent(broker, tmp_path / "device") as one:
            coordinator.serves = False
            coordinator.say(coordinator.task())
            await coordinator.hear(Need)
            assert len(one.chunk_filters) == 2
            coordinator.say(Cancel("run", 1, 0, "abandoned"))
            await until(lambda: one.service.state.phase is Phase.IDLE)
            assert one.chunk_filters == set()
            coordinator.serves = True
            assert (await coordinator.work(coordinator.task(attempt=1))).attempt == 1

    play(scenario())


def test_blobs_that_never_come_end_at_the_deadline_and_the_task_may_come_again(tmp_path: Path, ditto: Bundle) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with hand(broker, tmp_path, ditto) as coordinator, agent(broker, tmp_path / "device") as one:
            coordinator.serves = False
            coordinator.say(coordinator.task(deadline=0.2))
            await coordinator.hear(Need)
            await until(lambda: one.service.state.phase is Phase.IDLE)
            assert one.chunk_filters == set()
            coordinator.serves = True
            assert (await coordinator.work(coordinator.task())).steps == 3

    play(scenario())


def test_a_task_for_others_and_messages_of_strangers_change_nothing(tmp_path: Path, ditto: Bundle) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with hand(broker, tmp_path, ditto) as coordinator, agent(broker, tmp_path / "device") as one:
            await coordinator.hear(Hello)
            for topic, payload in (
                (f"edgepfl/1/watches/down/{DEVICE}/task", b"\xc1"),
                ("edgepfl/1/watches/all/hello", b"[1, 2]"),
                (f"edgepfl/1/watches/down/{DEVICE}/UPPER", b""),
            ):
                coordinator.bus.publish(topic, payload)
            coordinator.say(coordinator.task(cohort=(Member("pi-08", -1),)))
            coordinator.say(RollCall(1))
            await coordinator.hear(Hello)
            assert one.service.state.phase is Phase.IDLE
            assert one.place.store.standings() == {}

    play(scenario())


def test_a_new_run_does_not_forget_the_report_of_the_old_one(tmp_path: Path, ditto: Bundle) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with hand(broker, tmp_path, ditto) as coordinator, agent(broker, tmp_path / "device") as one:
            await coordinator.hear(Hello)
            old = await coordinator.work(coordinator.task("old"))
            new = await coordinator.work(coordinator.task("new", seed=6))
            assert new.run == "new"
            assert old.upload is not None
            assert new.upload is not None
            coordinator.say(Commit("new", 1, ()))
            coordinator.say(RollCall(1))
            assert (await coordinator.hear(Hello)).pending == ("old", 1)
            assert await coordinator.hear(Report) == old
            assert not one.place.offered.has(new.upload.sha256)
            assert await coordinator.fetch(old.upload)
            coordinator.say(Commit("old", 1, (DEVICE,)))
            coordinator.say(RollCall(2))
            assert (await coordinator.hear(Hello)).pending == ("", -1)
            assert one.place.store.standings() == {"old": (1, None)}
            assert not one.place.offered.has(old.upload.sha256)

    play(scenario())


def test_an_agent_says_goodbye_and_one_that_vanishes_has_a_will(tmp_path: Path, ditto: Bundle) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with hand(broker, tmp_path, ditto) as coordinator:
            async with agent(broker, tmp_path / "device") as one:
                number = (await coordinator.hear(Hello)).session
                broker.detach(one.bus, "vanished")
                assert (await coordinator.hear(Gone)).session == 1 == number
                broker.attach(one.bus)
                await coordinator.hear(Hello)
            assert (await coordinator.hear(Gone)).device == DEVICE
            assert one.serving is not None
            assert one.serving.done()

    play(scenario())


@pytest.mark.parametrize("phase", [Phase.FETCHING, Phase.WORKING])
def test_stopping_the_agent_ends_its_work_or_its_fetching_and_the_next_start_gives_the_same(
    tmp_path: Path, ditto: Bundle, phase: Phase
) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with hand(broker, tmp_path, ditto) as coordinator:
            expected = await undisturbed(coordinator, broker, tmp_path / "other")
            async with agent(broker, tmp_path / "device") as one:
                coordinator.serves = phase is Phase.WORKING
                coordinator.say(coordinator.task(steps=ENDLESS, heartbeat=0.1))
                while one.service.state.phase is not phase:
                    await coordinator.hear(Progress)
            coordinator.serves = True
            async with agent(broker, tmp_path / "device"):
                report = await coordinator.work(coordinator.task())
                assert (report.kept, report.upload) == (expected.kept, expected.upload)
                assert report.session == 2

    play(scenario())


async def undisturbed(coordinator: Hand, broker: LoopbackBroker, folder: Path, task: Task | None = None) -> Report:
    """What a new device says of a task that nothing disturbs."""
    async with agent(broker, folder):
        return await coordinator.work(task or coordinator.task())


def test_two_agents_cannot_have_one_store(tmp_path: Path) -> None:
    place = Place.open(tmp_path / "device")
    with pytest.raises(StoreError, match="another agent is using it"):
        Place.open(tmp_path / "device")
    place.store.close()
    Place.open(tmp_path / "device").store.close()


def test_a_store_is_one_devices_for_good(tmp_path: Path) -> None:
    place = Place.open(tmp_path / "card")
    Agent(LoopbackBroker(), tmp_path, place=place)
    with pytest.raises(StoreError, match="another device"):
        place.store.claim("pi-08")
    place.store.close()
    again = Place.open(tmp_path / "card")
    with pytest.raises(StoreError, match="Give pi-08 a state directory of its own"):
        again.store.claim("pi-08")
    again.store.claim(DEVICE)
    again.store.close()


def test_a_state_directory_that_cannot_be_one_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(StoreError, match="file"):
        Place.open(tmp_path / "file")
    with pytest.raises(StoreError, match="file"):
        Place.open(tmp_path / "file" / "below")


def test_what_the_store_holds_is_what_the_session_begins_with(tmp_path: Path, ditto: Bundle) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with hand(broker, tmp_path, ditto) as coordinator:
            async with agent(broker, tmp_path / "device"):
                await coordinator.work(coordinator.task(round_=1))
                await coordinator.work(coordinator.task(round_=2, accepted=1))
            one = Agent(broker, tmp_path / "device")
            assert one.service.state.runs == {"run": Standing(1, (2, 0))}
            await one.start()
            assert (await coordinator.hear(Report)).round == 2
            assert await one.end() is None

    play(scenario())


def test_a_device_writes_only_below_its_own_topic(tmp_path: Path, ditto: Bundle) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        ear = LoopbackBus(broker, "ear")
        ear.subscribe("#")
        await ear.start()
        async with hand(broker, tmp_path, ditto) as coordinator, agent(broker, tmp_path / "device"):
            report = await coordinator.work(coordinator.task())
            assert report.upload is not None
            await coordinator.fetch(report.upload)
        mine: set[str] = set()
        while not any(topic.endswith("/gone") for topic in mine):
            event = await ear.receive()
            if isinstance(event, Arrived) and "/up/" in event.topic:
                mine.add(event.topic)
        own = TOPICS.build(FromDevice(DEVICE, "x")).removesuffix("x")
        assert {topic.rpartition("/")[2] for topic in mine} >= {"hello", "need", "report"}
        assert all(topic.startswith(own) for topic in mine)

    play(scenario())
