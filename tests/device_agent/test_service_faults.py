"""The agent's service when the power fails, the bus refuses, blobs lie and disks are full."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Literal

import pytest
from _bundles import ditto_bundle
from _hand import DEVICE, PATIENCE, Agent, GatedBus, Hand, agent, hand, play, until

from device_agent.messages import inline
from device_agent.service import Place
from device_agent.session import Phase
from device_agent.store import Outgoing, Store
from edgepfl import wire
from edgepfl.bundle import Bundle
from edgepfl.bus.blobs import BlobStore
from edgepfl.bus.chunks import digests
from edgepfl.bus.loopback import LoopbackBroker
from edgepfl.errors import BusError, StoreError
from edgepfl.wire import CHUNK, BlobRef, Cancel, Commit, Failed, Gone, Hello, Need, Progress, Report, RollCall, Stopped

ENDLESS = 1 << 40  # steps


@pytest.fixture
def ditto() -> Bundle:
    """Exported once for all tests."""
    return ditto_bundle()


class PowerCutError(BaseException):
    """Nothing after this happens."""


class Fuse:
    """Blows at one named point, once: the bus is silent from then on."""

    def __init__(self, point: str, bus: GatedBus, broker: LoopbackBroker) -> None:
        self.point, self.bus, self.broker = point, bus, broker

    def at(self, point: str) -> None:
        if point == self.point:
            self.point = ""
            self.broker.detach(self.bus, "power cut")
            raise PowerCutError(point)


class CutBlobs(BlobStore):
    fuse: Fuse

    def put(self, data: bytes, chunk: int = CHUNK) -> BlobRef:
        self.fuse.at("before the upload is stored")
        ref = super().put(data, chunk)
        self.fuse.at("after the upload is stored")
        return ref


class CutStore(Store):
    fuse: Fuse

    def commit_pending(self, *task: Any, **result: Any) -> None:  # noqa: ANN401  as it is given
        self.fuse.at("before the commit")
        super().commit_pending(*task, **result)
        self.fuse.at("after the commit")

    def outbox(self) -> list[Outgoing]:
        waiting = super().outbox()
        if waiting:
            self.fuse.at("before the report is sent")
        return waiting

    def close_round(self, run: str, round_: int, *, accepted: bool) -> None:
        self.fuse.at("before the round is closed")
        super().close_round(run, round_, accepted=accepted)
        self.fuse.at("after the round is closed")


UNSTORED = ["before the upload is stored", "after the upload is stored", "before the commit"]
STORED = ["after the commit", "before the report is sent"]
ANSWERED = ["before the round is closed", "after the round is closed"]


def fused(point: str, broker: LoopbackBroker, folder: Path) -> Agent:
    """An agent whose power fails at this point."""
    bus = GatedBus(broker, DEVICE)
    fuse = Fuse(point, bus, broker)
    store, offered = CutStore(folder / "store.db"), CutBlobs(folder / "offered")
    store.fuse = offered.fuse = fuse
    return Agent(broker, folder, place=Place(store, BlobStore(folder / "fetched"), offered), bus=bus)


async def blown(coordinator: Hand, one: Agent) -> None:
    """Until the power failed."""
    await coordinator.hear(Gone)  # the will
    if one.serving is None:
        raise AssertionError("it was not started")
    await asyncio.wait({one.serving}, timeout=PATIENCE)
    assert isinstance(await one.end(), PowerCutError)


async def undisturbed(coordinator: Hand, broker: LoopbackBroker, folder: Path) -> Report:
    """What a new device says of the first task when nothing disturbs it."""
    async with agent(broker, folder):
        report = await coordinator.work(coordinator.task())
    await coordinator.hear(Gone)
    return report


@pytest.mark.parametrize("point", UNSTORED + STORED)
def test_a_power_cut_anywhere_before_the_report_is_sent_changes_no_bit(
    tmp_path: Path, ditto: Bundle, point: str
) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with hand(broker, tmp_path, ditto) as coordinator:
            expected = await undisturbed(coordinator, broker, tmp_path / "other")
            one = fused(point, broker, tmp_path / "device")
            await one.start()
            coordinator.say(coordinator.task())
            await blown(coordinator, one)
            assert coordinator.came["report"] == 1
            async with agent(broker, tmp_path / "device") as again:
                if point in UNSTORED:
                    coordinator.say(coordinator.task())
                report = await coordinator.hear(Report)
                assert (report.kept, report.upload) == (expected.kept, expected.upload)
                assert report.session == (1 if point in STORED else 2)
                assert await coordinator.work(coordinator.task()) == report
                assert report.upload is not None
                assert len(await coordinator.fetch(report.upload)) == report.upload.size
                coordinator.say(Commit("run", 1, (DEVICE,)))
                await until(lambda: again.place.store.keep("run").round == 1)
                assert again.place.store.outbox() == []

    play(scenario())


@pytest.mark.parametrize("point", ANSWERED)
def test_a_power_cut_while_the_answer_is_taken_leaves_the_old_state_or_the_new(
    tmp_path: Path, ditto: Bundle, point: str
) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with hand(broker, tmp_path, ditto) as coordinator:
            one = fused(point, broker, tmp_path / "device")
            await one.start()
            report = await coordinator.work(coordinator.task())
            coordinator.say(Commit("run", 1, (DEVICE,)))
            await blown(coordinator, one)
            async with agent(broker, tmp_path / "device") as again:
                if point == "before the round is closed":
                    assert await coordinator.hear(Report) == report
                following = await coordinator.work(coordinator.task(round_=2, accepted=1))
                assert following.kept != report.kept
                assert again.place.store.keep("run").round == 1

    play(scenario())


def test_a_report_that_the_bus_has_no_room_for_is_sent_later(tmp_path: Path, ditto: Bundle) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with hand(broker, tmp_path, ditto) as coordinator, agent(broker, tmp_path / "device") as one:
            one.bus.refuses = {"report": 1, "hello": 1}
            report = await coordinator.work(coordinator.task())
            assert report.round == 1
            assert one.bus.refused == 1
            coordinator.backlog.clear()
            coordinator.say(RollCall(1))
            assert (await coordinator.hear(Hello)).pending == ("run", 1)
            assert one.bus.refused == 2

    play(scenario())


class NarrowBus(GatedBus):
    """A bus to a broker that takes short messages only."""

    most = 20_000

    @property
    def largest(self) -> int:
        return self.most

    def publish(self, topic: str, payload: bytes, *, qos: Literal[0, 1] = 1) -> bool:
        if len(payload) > self.most:
            raise BusError("a message too long", where=topic, remedy="Send it as a blob")
        return super().publish(topic, payload, qos=qos)


def test_a_stored_report_that_the_broker_never_takes_is_told_once_and_the_agent_lives(
    tmp_path: Path, ditto: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        place, bus = Place.open(tmp_path), NarrowBus(broker, DEVICE)
        report = Report(DEVICE, 1, "old", 1, 0, 10, 3, inline(bytes(30_000)), {}, {}, "0" * 64)
        place.store.commit_pending("old", 1, 0, keep=b"k", report=wire.encode(report))
        async with hand(broker, tmp_path, ditto) as coordinator, agent(broker, tmp_path, place=place, bus=bus):
            await coordinator.hear(Hello)
            bus.drop()
            await coordinator.hear(Hello)
            assert (await coordinator.work(coordinator.task("new"))).run == "new"  # and it goes on to work
            assert coordinator.came["report"] == 1
        assert caplog.text.count("is not sent") == 1
        assert "the report of round 1 of old is not sent" in caplog.text

    play(scenario())


@pytest.mark.parametrize(("most", "rides"), [(wire.MESSAGE_LIMIT, True), (20_000, False)])
def test_an_upload_rides_in_its_report_only_where_the_broker_takes_that(
    tmp_path: Path,
    most: int,
    rides: bool,  # noqa: FBT001  a parameter of the test
) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        bus = NarrowBus(broker, DEVICE)
        bus.most = most
        async with hand(broker, tmp_path, ditto_bundle(300)) as coordinator, agent(broker, tmp_path, bus=bus):
            upload = (await coordinator.work(coordinator.task())).upload
            assert upload is not None
            assert 20_000 < upload.size <= wire.INLINE_LIMIT
            assert bool(upload.inline) == rides
            if not rides:
                assert len(await coordinator.fetch(upload)) == upload.size

    play(scenario())


def test_a_failure_that_could_not_be_said_is_said_after_the_reconnection(tmp_path: Path, ditto: Bundle) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with hand(broker, tmp_path, ditto) as coordinator, agent(broker, tmp_path / "device") as one:
            coordinator.say(coordinator.task(steps=ENDLESS, heartbeat=0.1))
            while (await coordinator.hear(Progress)).steps == 0:
                pass
            one.bus.refuses = {"failed": 1}
            coordinator.say(coordinator.task(round_=2, bundle=coordinator.offered.put(b"no bundle")))
            failed = await coordinator.hear(Failed)
            assert (failed.round, failed.code, one.bus.refused) == (2, "BundleError", 1)

    play(scenario())


def test_a_bus_that_is_lost_while_working_gets_the_report_when_it_is_back(tmp_path: Path, ditto: Bundle) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with hand(broker, tmp_path, ditto) as coordinator, agent(broker, tmp_path / "device") as one:
            one.workshop.gate.clear()
            coordinator.say(coordinator.task(heartbeat=0.1))
            while one.service.state.phase is not Phase.WORKING:
                await coordinator.hear(Progress)
            broker.stop()
            one.workshop.gate.set()
            await until(lambda: bool(one.place.store.outbox()))
            broker.start()
            report = await coordinator.hear(Report)
            assert (report.steps, coordinator.came["report"]) == (3, 1)
            assert one.service.state.task is None

    play(scenario())


async def at_exit(coordinator: Hand, one: Agent) -> None:
    """Until the first task is worked out and waits to be kept."""
    one.workshop.exit.clear()
    coordinator.say(coordinator.task(heartbeat=0.1))
    while not one.workshop.at_exit.is_set():
        await coordinator.hear(Progress)


def test_what_comes_of_work_that_was_stopped_is_not_kept(tmp_path: Path, ditto: Bundle) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with hand(broker, tmp_path, ditto) as coordinator, agent(broker, tmp_path / "device") as one:
            await at_exit(coordinator, one)
            coordinator.say(Cancel("run", 1, 0, "too late"))
            await until(lambda: one.service.state.phase is Phase.IDLE)
            one.workshop.exit.set()
            await until(lambda: not one.service._jobs)
            assert one.place.store.standings() == {}
            assert (await coordinator.work(coordinator.task(round_=2))).round == 2

    play(scenario())


@pytest.mark.parametrize("word", [Cancel("run", 1, 0, "too late"), Commit("run", 1, ())], ids=lambda word: word.KIND)
def test_it_says_stopped_when_its_thread_has_left_the_task_and_not_before(
    tmp_path: Path, ditto: Bundle, word: Cancel | Commit
) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with hand(broker, tmp_path, ditto) as coordinator, agent(broker, tmp_path / "device") as one:
            await at_exit(coordinator, one)
            coordinator.say(word)
            await until(lambda: one.service.state.phase is Phase.IDLE)
            coordinator.say(RollCall(1))
            await coordinator.hear(Hello)  # it has heard the word, and answered what came after it
            assert "stopped" not in coordinator.came
            one.workshop.exit.set()
            stopped = await coordinator.hear(Stopped)
            assert (stopped.device, stopped.run, stopped.round, stopped.attempt, stopped.steps) == (
                DEVICE,
                "run",
                1,
                0,
                3,
            )
            assert not one.service._jobs
            coordinator.say(Cancel("run", 1, 0, "too late"))  # once more, and there is nothing to stop
            again = await coordinator.hear(Stopped)
            assert (again.round, again.steps) == (1, 0)

    play(scenario())


def test_a_coordinator_that_does_not_know_the_run_is_told_its_report_again_at_the_next_connection_only(
    tmp_path: Path, ditto: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with hand(broker, tmp_path, ditto) as coordinator, agent(broker, tmp_path / "device") as one:
            await coordinator.work(coordinator.task())
            coordinator.say(Cancel("run", 1, 0, "unknown run", unknown=True))
            await coordinator.hear(Stopped)
            coordinator.say(Commit("run", 7, ()))  # it would ask by sending its report again
            coordinator.say(Cancel("run", 7, 0, "x"))
            await coordinator.hear(Stopped)
            assert coordinator.came["report"] == 1
            assert [(each.run, each.round) for each in one.place.store.outbox()] == [("run", 1)]
            assert "the coordinator does not know run run" in caplog.text
            coordinator.say(RollCall(1))
            assert (await coordinator.hear(Report)).round == 1

    play(scenario())


def test_a_fault_of_work_that_was_stopped_is_not_said_of_the_same_task_again(tmp_path: Path, ditto: Bundle) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with hand(broker, tmp_path, ditto) as coordinator, agent(broker, tmp_path / "device") as one:
            await at_exit(coordinator, one)
            one.workshop.breaks = True
            coordinator.say(Cancel("run", 1, 0, "too late"))
            coordinator.say(coordinator.task())
            await until(lambda: one.service.state.phase is Phase.WORKING and len(one.service._jobs) == 2)
            one.workshop.exit.set()
            assert (await coordinator.hear(Report)).round == 1
            assert "failed" not in coordinator.came

    play(scenario())


def test_a_bus_that_is_lost_while_fetching_goes_on_where_it_was(tmp_path: Path, ditto: Bundle) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with hand(broker, tmp_path, ditto) as coordinator, agent(broker, tmp_path / "device") as one:
            coordinator.serves = False
            coordinator.say(coordinator.task())
            await coordinator.hear(Need)
            coordinator.serves = True
            one.bus.drop()
            report = await coordinator.hear(Report)
            assert report.steps == 3
            assert one.chunk_filters == set()

    play(scenario())


@pytest.mark.parametrize("named", ["bundle", "download"])
def test_a_blob_that_is_no_bundle_or_no_download_is_refused_once_and_the_device_goes_on(
    tmp_path: Path, ditto: Bundle, named: str
) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with hand(broker, tmp_path, ditto) as coordinator, agent(broker, tmp_path / "device") as one:
            wrong: dict[str, Any] = {named: coordinator.offered.put(b"something else" * 10_000)}
            coordinator.say(coordinator.task(**wrong))
            failed = await coordinator.hear(Failed)
            assert failed.code == {"bundle": "BundleError", "download": "CodecError"}[named]
            assert one.service.state.phase is Phase.IDLE
            assert (await coordinator.work(coordinator.task(attempt=1))).attempt == 1
            assert coordinator.came["failed"] == 1

    play(scenario())


@pytest.mark.parametrize("lie", ["whole", "count", "inline"])
def test_a_reference_that_lies_ends_the_task_and_leaves_nothing_wanted(tmp_path: Path, ditto: Bundle, lie: str) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with hand(broker, tmp_path, ditto) as coordinator, agent(broker, tmp_path / "device") as one:
            data = b"x" * 100_000
            true = coordinator.offered.put(data)
            reference = {
                "whole": BlobRef("0" * 64, len(data), chunks=digests(data)),
                "count": BlobRef(true.sha256, len(data), chunks=true.chunks[:16]),
                "inline": BlobRef(true.sha256, 4, inline=b"nope"),
            }[lie]
            coordinator.offered.path("0" * 64).write_bytes(data)
            coordinator.say(coordinator.task(bundle=reference))
            failed = await coordinator.hear(Failed)
            assert failed.code == "TransferError"
            assert one.chunk_filters == set()
            assert one.service.state.phase is Phase.IDLE
            assert (await coordinator.work(coordinator.task(attempt=1))).steps == 3

    play(scenario())


class FullStore(Store):
    """No room for a result, as often as it is told."""

    full = 0
    unreadable = False

    def commit_pending(self, *task: Any, **result: Any) -> None:  # noqa: ANN401  as it is given
        if self.full:
            self.full -= 1
            raise StoreError("database or disk is full", where="store.db", remedy="Free some space", full=True)
        super().commit_pending(*task, **result)

    def outbox(self) -> list[Outgoing]:
        if self.unreadable:
            raise StoreError("disk I/O error", where="store.db")
        return super().outbox()


def test_a_full_disk_fails_the_task_and_not_the_service(tmp_path: Path, ditto: Bundle) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        store = FullStore(tmp_path / "device" / "store.db")
        place = Place(store, BlobStore(tmp_path / "fetched"), BlobStore(tmp_path / "offered"))
        async with hand(broker, tmp_path, ditto) as coordinator, agent(broker, tmp_path, place=place) as one:
            store.full = 3  # also after what can be had again is deleted
            coordinator.say(coordinator.task())
            failed = await coordinator.hear(Failed)
            assert (failed.code, failed.detail) == (
                "StoreError",
                "store.db: database or disk is full. Free some space",
            )
            assert one.service.state.runs["run"].pending is None
            assert (await coordinator.work(coordinator.task(attempt=1))).attempt == 1

    play(scenario())


def test_a_store_that_cannot_be_read_ends_the_service_with_its_error(tmp_path: Path, ditto: Bundle) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        store = FullStore(tmp_path / "device" / "store.db")
        place = Place(store, BlobStore(tmp_path / "fetched"), BlobStore(tmp_path / "offered"))
        async with hand(broker, tmp_path, ditto) as coordinator:
            one = Agent(broker, tmp_path, place=place)
            await one.start()
            await coordinator.hear(Hello)
            store.unreadable = True
            coordinator.say(RollCall(1))
            assert one.serving is not None
            await asyncio.wait({one.serving}, timeout=PATIENCE)
            found = await one.end()
            assert isinstance(found, StoreError)
            assert "disk I/O error" in str(found)

    play(scenario())


def test_a_blob_damaged_on_the_disk_is_fetched_again_for_the_next_attempt(tmp_path: Path, ditto: Bundle) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with hand(broker, tmp_path, ditto) as coordinator, agent(broker, tmp_path / "device") as one:
            first = await coordinator.work(coordinator.task())
            path = one.place.fetched.path(coordinator.download.sha256)
            path.write_bytes(path.read_bytes()[:-1] + b"?")
            coordinator.say(coordinator.task(attempt=1))
            assert "damaged" in (await coordinator.hear(Failed)).detail
            report = await coordinator.work(coordinator.task(attempt=2))
            assert (report.attempt, report.kept) == (2, first.kept)

    play(scenario())
