"""Leases, deadlines, stops and cuts: the round waits for who can come, and for nobody else."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import msgspec
import numpy as np
import pytest
from _scripted import (
    FLEET,
    Clock,
    config,
    coordinating,
    drained,
    finished,
    hands,
    honest_fleet,
    idle,
    play,
    ref_of,
    seat_of,
    serving,
    told,
    until,
    upload_of,
    watched,
)

from coordinator import active
from coordinator.arithmetic import Local
from coordinator.config import RunConfig
from coordinator.journal import Journal
from coordinator.rounds import Phase, State
from coordinator.service import Coordinator
from edgepfl.algorithms import Cohort
from edgepfl.algorithms.fedavg import FedAvg
from edgepfl.bundle import Bundle, pack
from edgepfl.bus.loopback import LoopbackBroker, LoopbackBus
from edgepfl.errors import BundleError, ConfigError, EdgepflError, RunError, StoreError
from edgepfl.topics import ToDevice
from edgepfl.tree import Trees
from edgepfl.wire import Commit, Gone, Progress, Report, RollCall, Task

pytestmark = pytest.mark.usefixtures("impatient")


def test_it_gathers_for_a_while_and_then_goes_on_with_who_is_here(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker, clock = LoopbackBroker(), Clock()
        async with coordinating(broker, tmp_path, clock) as service, hands(broker, "ant", "bee") as devices:
            run = service.start_run(config(goal=5, minimum=2), pack(small))
            clock.now += 100  # nobody was here for most of it: that is no gathering
            await until(service, run, lambda: service._active.round.enough == clock.now)
            assert "waiting up to 5 s for the rest" in service.status(run).waiting
            clock.now += 4.9
            service._active.tick()
            assert service._active.round.phase is Phase.SELECTING
            clock.now += 0.1
            task = await told(devices)
            assert [member.device for member in task.cohort] == ["ant", "bee"]

    play(scenario())


def test_a_dead_device_is_asked_again_then_given_up_then_not_chosen(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker, clock = LoopbackBroker(), Clock()
        async with coordinating(broker, tmp_path, clock) as service, hands(broker, "ant", "bee") as [ant, bee]:
            run = service.start_run(config(goal=2, minimum=1), pack(small))
            task = await told([ant, bee])
            clock.now += 9
            ant.say(Progress("ant", 1, run, 1, 0, 5))
            await until(service, run, lambda: seat_of(service, "ant").until == clock.now + 10)
            clock.now += 1
            assert (await bee.next(Task)).cohort[0].device == "bee"  # to it alone
            assert "no sign of life from bee" in service.status(run).waiting
            ant.say(ant.report(task, ref_of(upload_of(small.plan, task, "ant"))))
            await until(service, run, lambda: seat_of(service, "ant").state is State.REPORTED)
            clock.now += 10
            status = await watched(service, run, lambda status: status.round == 1)
            assert status.here == ("ant",)
            await bee.next(RollCall)  # perhaps it is only slow
            clock.now += 5
            second = await told([ant])
            assert [member.device for member in second.cohort] == ["ant"]
            bee.hello()
            await until(service, run, lambda: service.status(run).here == ("ant", "bee"))

    play(scenario())


def test_a_member_that_restarts_gets_its_task_again(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with coordinating(broker, tmp_path) as service, hands(broker, "ant", "bee") as [ant, bee]:
            service.start_run(config(goal=2, minimum=2), pack(small))
            task = await told([ant, bee])
            ant.say(Gone("ant", 1))
            ant.hello(session=2)
            again = await ant.next(Task)
            assert [member.device for member in again.cohort] == ["ant"]
            assert (again.round, again.seed, again.download) == (task.round, task.seed, task.download)

    play(scenario())


def test_while_the_broker_is_away_nobody_is_late(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker, clock = LoopbackBroker(), Clock()
        async with coordinating(broker, tmp_path, clock) as service, hands(broker, "ant", "bee") as [ant, bee]:
            run = service.start_run(config(goal=2, minimum=2), pack(small))
            task = await told([ant, bee])
            broker.stop()
            await until(service, run, lambda: not service._connected)
            assert service.status(run).here == ()
            for _ in range(3):
                clock.now += 300
                service._look()
            broker.start()
            for hand in (ant, bee):
                await hand.next(RollCall)
                assert seat_of(service, hand.name).state is State.WORKING
                hand.hello()
                assert (await hand.next(Task)).attempt == 0
                hand.say(hand.report(task, ref_of(upload_of(small.plan, task, hand.name))))
            await watched(service, run, lambda status: status.round == 1)

    play(scenario())


def test_a_stop_ends_it_at_once_for_everybody(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with coordinating(broker, tmp_path) as service, hands(broker, "ant", "bee") as [ant, bee]:
            run = service.start_run(config(goal=2, minimum=2), pack(small))
            task = await told([ant, bee])
            ant.say(ant.report(task, ref_of(upload_of(small.plan, task, "ant"))))
            await until(service, run, lambda: seat_of(service, "ant").state is State.REPORTED)
            service.stop_run(run)
            status = service.status(run)
            assert (status.status, status.why, status.round) == ("stopped", "stopped by a person", 0)
            for hand in (ant, bee):
                commit = await hand.next(Commit)  # whoever works stops, whoever reported forgets it
                assert (commit.run, commit.round, commit.accepted) == (run, 1, ())
            with pytest.raises(RunError, match="not active"):
                service.stop_run(run)
            bee.say(bee.report(task, ref_of(upload_of(small.plan, task, "bee"))))
            assert (await bee.next(Commit)).accepted == ()
            stored = {path.name for path in (tmp_path / "private").iterdir()}
            assert stored == service.journal.checkpoint(run).blobs
            assert status.state_sha256 in stored
            service.start_run(config(goal=2, minimum=2), pack(small))
            assert (await told([ant, bee])).attempt == 0

    play(scenario())


def test_a_stop_while_the_uploads_are_reduced(small: Bundle, tmp_path: Path) -> None:
    """The arithmetic may end; nothing comes of it, in this run or the next."""

    async def scenario() -> None:
        broker, gate = LoopbackBroker(), threading.Event()
        async with coordinating(broker, tmp_path) as service, hands(broker, "ant") as [ant]:
            run = service.start_run(config(goal=1, minimum=1), pack(small))
            task = await told([ant])
            first = service.status(run).state_sha256
            ant.say(ant.report(task, ref_of(upload_of(small.plan, task, "ant"))))
            fold = Local.fold

            def hold(self: Local, device: str, report: Report) -> None:
                fold(self, device, report)
                service._worker.submit(gate.wait)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Local, "fold", hold)
                await until(service, run, lambda: service._active.round.phase is Phase.REDUCING)
            arithmetic = service._active._arithmetic
            assert isinstance(arithmetic, Local)
            await asyncio.wrap_future(arithmetic._folds[0])
            service.stop_run(run)
            again = service.start_run(config(goal=1, minimum=1, seed=1), pack(small))
            gate.set()
            await idle(service)
            await told([ant])
            assert service.journal.checkpoint(run).round == 0
            assert service.journal.results(run) == ()
            assert service.status(again).state_sha256 == first
            assert service.status(run).status == "stopped"

    play(scenario())


def test_what_was_screened_for_an_abandoned_attempt_does_not_count_in_the_next(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker, clock, gate = LoopbackBroker(), Clock(), threading.Event()
        async with coordinating(broker, tmp_path, clock) as service, hands(broker, "ant", "bee") as [ant, bee]:
            run = service.start_run(config(goal=2, minimum=2, lease=1e6), pack(small))
            task = await told([ant, bee])
            service._worker.submit(gate.wait)
            ant.say(ant.report(task, ref_of(upload_of(small.plan, task, "ant"))))
            await drained(service, broker)
            clock.now += 1000
            again = await told([ant, bee])
            assert (again.round, again.attempt) == (1, 1)
            ant.say(ant.report(again, ref_of(upload_of(small.plan, task, "ant"))))  # the same bytes
            await drained(service, broker)
            gate.set()
            await idle(service)
            assert {name: report.attempt for name, report in service.journal.reports(run).items()} == {"ant": 1}
            for hand in (ant, bee):
                hand.say(hand.report(again, ref_of(upload_of(small.plan, again, hand.name))))
            await watched(service, run, lambda status: status.round == 1)

    play(scenario())


def test_a_disk_that_fails_under_the_new_model_costs_no_attempt(
    small: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service ends, and the next one does the same update again."""

    def fail(*_: object) -> None:
        raise StoreError("the store failed (No space left on device)")

    async def scenario() -> None:
        broker = LoopbackBroker()
        service = Coordinator(FLEET, LoopbackBus(broker, "coordinator"), tmp_path, clock=Clock())
        running = asyncio.ensure_future(service.run())
        run = service.start_run(config(attempts=1), pack(small))
        with monkeypatch.context() as patch:
            patch.setattr(type(service.vault), "save", fail)
            async with serving(*honest_fleet(broker, small)):
                with pytest.raises(StoreError, match="No space left"):
                    await running
        broker = LoopbackBroker()
        async with coordinating(broker, tmp_path) as again, serving(*honest_fleet(broker, small)):
            assert again.journal.running() is not None
            assert (await finished(again, run)).status == "done"

    play(scenario())


def test_a_fault_of_the_algorithm_costs_an_attempt(
    small: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = FedAvg.update
    faults = [KeyError("delta"), RuntimeError("out of memory")]

    def sometimes(self: FedAvg, state: Trees, got: Cohort) -> Trees:
        if faults:
            raise faults.pop()
        return update(self, state, got)

    monkeypatch.setattr(FedAvg, "update", sometimes)

    async def scenario() -> None:
        broker = LoopbackBroker()
        devices = honest_fleet(broker, small)
        async with coordinating(broker, tmp_path) as service, serving(*devices):
            status = await finished(service, service.start_run(config(), pack(small)))
            assert (status.status, status.round) == ("done", 3)
            tasks = [(m.round, m.attempt) for m in devices[0].seen if isinstance(m, Task)]
            assert tasks == [(1, 0), (1, 1), (1, 2), (2, 0), (3, 0)]

    play(scenario())


def test_one_coordinator_for_one_directory(tmp_path: Path) -> None:
    broker = LoopbackBroker()
    first = Coordinator(FLEET, LoopbackBus(broker, "first"), tmp_path / "state")
    with pytest.raises(StoreError, match="another coordinator is using it") as caught:
        Coordinator(FLEET, LoopbackBus(broker, "second"), tmp_path / "state")
    assert caught.value.remedy
    first.close()
    Coordinator(FLEET, LoopbackBus(broker, "third"), tmp_path / "state").close()
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


def test_a_full_disk_ends_the_service_and_loses_nothing(small: Bundle, tmp_path: Path) -> None:
    settings = config(rounds=30)  # enough for some more pages of results

    async def whole(state: Path) -> str:
        broker = LoopbackBroker()
        async with coordinating(broker, state) as service, serving(*honest_fleet(broker, small)):
            run = service.status().run if service.journal.run() else service.start_run(settings, pack(small))
            status = await finished(service, run)
            assert (status.status, status.round) == ("done", 31)
            return status.state_sha256

    async def scenario() -> None:
        broker = LoopbackBroker()
        service = Coordinator(FLEET, LoopbackBus(broker, "coordinator"), tmp_path / "full", clock=Clock())
        running = asyncio.ensure_future(service.run())
        run = service.start_run(settings, pack(small))
        async with serving(*honest_fleet(broker, small)):
            await watched(service, run, lambda status: status.round == 1)
            [pages] = service.journal._db.execute("PRAGMA page_count").fetchone()
            service.journal._db.execute(f"PRAGMA max_page_count = {pages}")
            with pytest.raises(StoreError, match="full") as caught:
                await running
        assert "disk" in caught.value.remedy
        assert await whole(tmp_path / "full") == await whole(tmp_path / "never full")

    play(scenario())


def test_a_long_round_does_not_grow_the_journal(small: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(active, "COMPACT_AFTER", 10)

    async def scenario() -> None:
        broker, clock = LoopbackBroker(), Clock()
        async with coordinating(broker, tmp_path, clock) as service, hands(broker, "ant", "bee") as [ant, bee]:
            run = service.start_run(config(goal=2, minimum=2), pack(small))
            await told([ant, bee])
            for k in range(200):
                clock.now += 1
                for hand in (ant, bee):
                    hand.say(Progress(hand.name, 1, run, 1, 0, k))
                await until(service, run, lambda: seat_of(service, "bee").until == clock.now + 10)
            [rows] = service.journal._db.execute("SELECT count(*) FROM events").fetchone()
            assert rows < 10
            assert service.journal.open_state(run) == service._active.round

    play(scenario())


REFUSED = {
    "a name that cannot be one": (config(name="../x"), None, ConfigError, "cannot be a name"),
    "no bundle": (config(), b"nothing", BundleError, "not a bundle|zip|archive"),
    "an unknown setting": (config(hyper={"lam": 1.0}), None, ConfigError, "no hyperparameter"),
    "a setting that needs another export": (config(hyper={"inner_steps": 2.0}), None, ConfigError, "shaped the graphs"),
}


@pytest.mark.parametrize(("settings", "data", "kind", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_a_run_that_cannot_be_is_refused_and_leaves_nothing(
    settings: RunConfig, data: bytes | None, kind: type[EdgepflError], words: str, small: Bundle, tmp_path: Path
) -> None:
    service = Coordinator(FLEET, LoopbackBus(LoopbackBroker(), "coordinator"), tmp_path)
    with pytest.raises(kind, match=words):
        service.start_run(settings, data if data is not None else pack(small))
    assert service.journal.run() is None
    with pytest.raises(RunError, match="there is no such run"):
        service.status()
    service.close()


def test_a_second_run_waits_for_the_end_of_the_first(small: Bundle, tmp_path: Path) -> None:
    service = Coordinator(FLEET, LoopbackBus(LoopbackBroker(), "coordinator"), tmp_path)
    run = service.start_run(config(), pack(small))
    with pytest.raises(RunError, match="another run is active") as caught:
        service.start_run(config(), pack(small))
    assert caught.value.where == run
    service.close()
    unread = Coordinator(FLEET, LoopbackBus(LoopbackBroker(), "coordinator"), tmp_path)  # not serving yet
    with pytest.raises(RunError, match="another run is active"):
        unread.start_run(config(), pack(small))
    unread.close()


def test_a_run_that_cannot_go_on_is_ended_and_says_why(small: Bundle, tmp_path: Path) -> None:
    service = Coordinator(FLEET, LoopbackBus(LoopbackBroker(), "coordinator"), tmp_path)
    run = service.start_run(config(), pack(small))
    service.close()
    journal = Journal(tmp_path / "journal.db")
    journal._db.execute('UPDATE runs SET config = replace(config, \'"hyper":{}\', \'"hyper":{"lam":1}\')')
    journal.close()

    async def scenario() -> None:
        async with coordinating(LoopbackBroker(), tmp_path) as again:
            status = again.status(run)
            assert status.status == "failed"
            assert "no hyperparameter 'lam'" in status.why
            again.start_run(config(), pack(small))  # and the next may begin

    play(scenario())


def test_a_start_that_the_disk_cuts_short_leaves_no_zombie(
    small: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is stored and its first round is not: the service ends, and the next one begins with round 1."""

    def fail(*_: object) -> None:
        raise StoreError("cannot be written (disk is full)")

    async def scenario() -> None:
        service = Coordinator(FLEET, LoopbackBus(LoopbackBroker(), "coordinator"), tmp_path, clock=Clock())
        running = asyncio.ensure_future(service.run())
        await asyncio.sleep(0)  # it runs now
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "open_round", fail)
            with pytest.raises(StoreError, match="disk is full"):
                service.start_run(config(), pack(small))
        with pytest.raises(StoreError, match="disk is full"):
            await running
        broker = LoopbackBroker()
        async with coordinating(broker, tmp_path) as again, serving(*honest_fleet(broker, small)):
            run = again.journal.running()
            assert run is not None
            status = await finished(again, run.id)
            assert (status.status, status.round) == ("done", 3)
            assert min(result.round for result in again.journal.results(run.id)) == 1

    play(scenario())


def test_a_flood_of_the_same_hello_is_answered_once(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker, clock = LoopbackBroker(), Clock()
        async with coordinating(broker, tmp_path, clock) as service, hands(broker, "ant", "bee", "cat") as three:
            service.start_run(config(), pack(small))
            await told(three)
            ant = three[0]
            for _ in range(300):
                ant.hello()
            await drained(service, broker)  # a second passes, and the first of the flood is heard after it
            ant.hello()
            await drained(service, broker)
            service._send(ToDevice("ant", RollCall.KIND), RollCall(7))
            seen: list[object] = []
            while seen[-1:] != [RollCall(7)]:
                seen.append(await ant.heard())
            assert len([message for message in seen if isinstance(message, Task)]) == 2  # for each second that passed

    play(scenario())


def test_an_initial_model_that_is_not_finite_starts_no_run(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinating(LoopbackBroker(), tmp_path) as service:
            sick = small.model.map(lambda tensor: np.full_like(tensor, np.nan))
            with pytest.raises(RunError, match="its initial model is not finite") as caught:
                service.start_run(config(), pack(msgspec.structs.replace(small, model=sick)))
            assert caught.value.remedy
            assert service.journal.running() is None

    play(scenario())
