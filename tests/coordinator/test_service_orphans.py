"""Work that nobody wants, devices that keep failing, and bundles that nobody can run: what the service does."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from _scripted import (
    Clock,
    Hand,
    config,
    coordinating,
    drained,
    hands,
    honest_fleet,
    play,
    ref_of,
    seat_of,
    serving,
    told,
    until,
    upload_of,
    watched,
)

from coordinator.rounds import Phase, State
from coordinator.service import Coordinator
from edgepfl.bundle import Bundle, pack
from edgepfl.bus.loopback import LoopbackBroker
from edgepfl.wire import Cancel, Commit, Failed, Progress, Report, Stopped, Task

pytestmark = pytest.mark.usefixtures("impatient")


def result(hand: Hand, task: Task, bundle: Bundle) -> Report:
    return hand.report(task, ref_of(upload_of(bundle.plan, task, hand.name)))


def said(service: Coordinator, run: str, device: str) -> tuple[str, str]:
    """What the status says of a device."""
    found = {each.name: each for each in service.status(run).devices}
    return found[device].state, found[device].why


async def cancelled(hand: Hand) -> Cancel:
    """The next Cancel, which is not answered."""
    hand.obliging = False
    return await hand.next(Cancel)


def test_goal_reports_end_an_over_selected_round_and_the_rest_is_busy_until_it_says_so(
    small: Bundle, tmp_path: Path
) -> None:
    async def scenario() -> None:
        broker, clock = LoopbackBroker(), Clock()
        async with coordinating(broker, tmp_path, clock) as service, hands(broker, "ant", "bee", "cat") as devices:
            ant, bee, cat = devices
            run = service.start_run(config(goal=2, minimum=2, over=1.5), pack(small))
            task = await told(devices)
            cat.say(Progress("cat", 1, run, 1, 0, 3))
            for hand in (bee, ant):
                hand.say(result(hand, task, small))
            await watched(service, run, lambda status: status.round == 1)
            cancel = await cancelled(cat)
            assert (cancel.round, cancel.attempt, cancel.unknown) == (1, 0, False)
            assert said(service, run, "cat")[0] == "busy"
            assert "still ending work of before: cat" in service.status(run).waiting
            clock.now += 3  # more than a quarter of its lease
            assert await cat.next(Cancel) == cancel
            assert service._active.round.phase is Phase.SELECTING
            cat.say(Stopped("cat", 1, run, 1, 0, 4))
            assert [member.device for member in (await told([cat])).cohort] == ["ant", "bee", "cat"]
            assert (await ant.next(Commit)).accepted == ("ant", "bee")

    play(scenario())


def test_whoever_never_says_stopped_is_free_after_a_lease(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker, clock = LoopbackBroker(), Clock()
        async with coordinating(broker, tmp_path, clock) as service, hands(broker, "ant", "bee") as [ant, bee]:
            run = service.start_run(config(goal=1, minimum=1, over=2.0, gather=1e6), pack(small))
            task = await told([ant, bee])
            ant.say(result(ant, task, small))
            await cancelled(bee)
            await watched(service, run, lambda status: status.round == 1)
            clock.now += 8.9
            await drained(service, broker)  # which takes a second
            assert service._active.round.present == {"ant"}
            clock.now += 0.1
            await told([ant, bee])

    play(scenario())


ANSWERED: dict[str, Progress | Failed | Report] = {
    "progress of an old attempt": Progress("ant", 1, "", 0, 7, 3),
    "progress of a later round": Progress("ant", 1, "", 9, 0, 3),
    "a failure of a later round": Failed("ant", 1, "", 9, 0, "GraphFailed", "x"),
    "a report of a later round": Report("ant", 1, "", 9, 0, 5, 1, None, {}, {}, "0" * 64),
}


@pytest.mark.parametrize("name", ANSWERED)
def test_work_on_an_attempt_that_is_not_open_is_answered(small: Bundle, tmp_path: Path, name: str) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with coordinating(broker, tmp_path) as service, hands(broker, "ant", "bee") as [ant, _]:
            run = service.start_run(config(goal=2, minimum=2), pack(small))
            await told([ant])
            message = msgspec.structs.replace(ANSWERED[name], run=run)
            ant.say(message)
            cancel = await ant.next(Cancel)
            assert (cancel.run, cancel.round, cancel.attempt) == (run, message.round, message.attempt)
            assert not cancel.unknown
            await drained(service, broker)
            assert seat_of(service, "ant").state is State.WORKING  # its own work goes on

    play(scenario())


@pytest.mark.parametrize("message", [m for n, m in ANSWERED.items() if "old" not in n], ids=lambda m: m.KIND)
def test_work_for_a_run_that_is_not_known_is_stopped_and_touches_nothing(
    small: Bundle, tmp_path: Path, message: Progress | Failed | Report, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with coordinating(broker, tmp_path) as service, hands(broker, "ant") as [ant]:
            ant.say(msgspec.structs.replace(message, run="lost-1"))
            cancel = await ant.next(Cancel)
            assert (cancel.run, cancel.unknown, cancel.reason) == ("lost-1", True, "unknown run")
            assert "was the state directory deleted or set back" in caplog.text
            run = service.start_run(config(goal=1, minimum=1), pack(small))
            await told([ant])
            service.stop_run(run)
            await ant.next(Commit)
            ant.say(msgspec.structs.replace(message, run=run))
            while not isinstance(answer := await ant.heard(), Commit | Cancel):
                pass
            assert isinstance(answer, Commit) == isinstance(message, Report)
            assert answer.run == run
            assert not (isinstance(answer, Cancel) and answer.unknown)  # it is only over

    play(scenario())


def test_whoever_works_on_an_old_attempt_after_a_restart_is_not_chosen_until_it_has_stopped(
    small: Bundle, tmp_path: Path
) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with coordinating(broker, tmp_path) as service, hands(broker, "ant", "bee") as [ant, bee]:
            run = service.start_run(config(goal=3, minimum=3), pack(small))
            ant.say(Progress("ant", 1, run, 0, 0, 3))
            await cancelled(ant)
            await until(service, run, lambda: service._active.round.present == {"bee"})
            assert said(service, run, "ant")[0] == "busy"
            ant.say(Stopped("ant", 1, run, 0, 0, 3))
            await until(service, run, lambda: service._active.round.present == {"ant", "bee"})
            assert bee.name == "bee"

    play(scenario())


def test_a_late_sign_of_work_on_a_round_that_counted_takes_nothing_back(small: Bundle, tmp_path: Path) -> None:
    """A hub that was restarted says Progress on what its parent has taken already: the answer is that it counts."""

    async def scenario() -> None:
        broker = LoopbackBroker()
        async with coordinating(broker, tmp_path) as service, hands(broker, "ant") as [ant]:
            run = service.start_run(config(goal=1, minimum=1, rounds=1), pack(small))
            task = await told([ant])
            ant.say(result(ant, task, small))
            assert (await ant.next(Commit)).accepted == ("ant",)
            for _ in range(2):  # while the run goes on, and when it is over
                for late in (Progress("ant", 1, run, 1, 0, 3), Failed("ant", 1, run, 1, 0, "settled", "x")):
                    ant.say(late)
                    while not isinstance(answer := await ant.heard(), Commit | Cancel):
                        pass
                    assert answer == Commit(run, 1, ("ant",))
                assert "ant" in service.status(run).here
                if not service._active.ended:
                    service.stop_run(run)
                    assert (await ant.next(Commit)).round == 2

    play(scenario())


def test_a_device_that_keeps_failing_sits_out_also_after_a_restart(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker, clock = LoopbackBroker(), Clock()
        settings = config(goal=2, minimum=1, rounds=9, quarantine_after=2, quarantine_rounds=3)
        async with hands(broker, "bad") as [bad]:
            async with coordinating(broker, tmp_path, clock) as service, serving(*honest_fleet(broker, small, "ant")):
                bad.hello()
                run = service.start_run(settings, pack(small))
                for number in (1, 2):
                    while (await told([bad])).round < number:
                        pass
                    bad.say(Failed("bad", 1, run, number, 0, "DataError", "no rows"))
                await watched(service, run, lambda status: status.round == 2)
                assert said(service, run, "bad")[0] == "quarantined"
            async with coordinating(broker, tmp_path, clock) as service, serving(*honest_fleet(broker, small, "ant")):
                bad.hello()
                await until(service, run, lambda: service._active.round.present == {"ant", "bad"})
                state, why = said(service, run, "bad")
                assert (state, why) == (
                    "quarantined",
                    "quarantined until round 5: it failed 2 times in a row (DataError: no rows)",
                )
                for number in (3, 4, 5):
                    await until(service, run, lambda: service._active.round.enough is not None)
                    clock.now += 5  # it gathers
                    await watched(service, run, lambda status, number=number: status.round == number)  # type: ignore[misc]
                while (task := await told([bad])).round < 6:
                    assert [member.device for member in task.cohort] == ["ant"]
                assert [member.device for member in task.cohort] == ["ant", "bad"]

    play(scenario())


def test_a_bundle_that_two_canaries_cannot_load_reaches_nobody_else(small: Bundle, tmp_path: Path) -> None:
    names = tuple(f"pi-{number}" for number in range(8))

    async def scenario() -> None:
        broker = LoopbackBroker()
        async with coordinating(broker, tmp_path) as service, hands(broker, *names) as devices:
            run = service.start_run(config(goal=8, minimum=4, canary=0.05), pack(small))
            given = []
            for _ in range(2):
                task = await devices[0].next(Task)  # it is told to all, and is for those whom it names
                [member] = task.cohort
                given.append(member.device)
                hand = devices[names.index(member.device)]
                assert said(service, run, member.device)[0] == "working"
                hand.say(Failed(member.device, 1, run, 1, 0, "BundleError", "of another protocol"))
            commit = await devices[0].next(Commit)
            assert (commit.round, commit.accepted) == (1, ())
            status = service.status(run)
            assert status.status == "failed"
            assert "2 of the 2 devices that have the task cannot run its bundle" in status.why
            assert "BundleError: of another protocol" in status.why
            assert len(set(given)) == 2

    play(scenario())
