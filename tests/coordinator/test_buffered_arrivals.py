"""Uploads and reports of a buffered run that arrive while a round ends, or before one begins: none is lost."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from _power import cuts_of
from _scripted import (
    Clock,
    Hand,
    config,
    coordinating,
    drained,
    hands,
    idle,
    play,
    ref_of,
    until,
    upload_of,
)

from coordinator.checkpoint import Saved, Vault
from coordinator.intake import Intake
from coordinator.journal import Journal
from coordinator.screening import Screening
from coordinator.seats import Phase
from coordinator.service import Coordinator
from edgepfl.bundle import Bundle, pack
from edgepfl.bus.chunks import CHUNK
from edgepfl.bus.loopback import LoopbackBroker
from edgepfl.wire import BlobRef, Report, Task

pytestmark = pytest.mark.usefixtures("impatient")

NAMES = ("ant", "cat")
ONE_BY_ONE: dict[str, Any] = {"rounds": 9, "goal": 2, "minimum": 1, "buffer": 1}


async def task_of(hand: Hand) -> Task:
    """The next task of a device."""
    while True:
        task = await hand.next(Task)
        if any(member.device == hand.name for member in task.cohort):
            return task


def report(bundle: Bundle, hand: Hand, task: Task) -> None:
    hand.say(hand.report(task, ref_of(upload_of(bundle.plan, task, hand.name))))


def counted(service: Coordinator, run: str) -> list[tuple[int, str]]:
    return [(result.round, result.device) for result in service.journal.results(run)]


def test_an_upload_that_is_half_here_when_an_update_is_committed_goes_on(wide: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with coordinating(broker, tmp_path) as service, hands(broker, *NAMES) as (ant, cat):
            await drained(service, broker)
            run = service.start_run(config(**ONE_BY_ONE), pack(wide))
            fast, slow = await task_of(ant), await task_of(cat)
            data = {ant: upload_of(wide.plan, fast, "ant"), cat: upload_of(wide.plan, slow, "cat")}
            last = -(-len(data[cat]) // CHUNK) - 1
            assert last > 0
            cat.say(cat.report(slow, ref_of(data[cat])))
            await drained(service, broker)
            for index in range(last):
                cat.chunk(data[cat], index)
            await drained(service, broker)
            ant.say(ant.report(fast, ref_of(data[ant])))
            for index in range(last + 1):
                ant.chunk(data[ant], index)
            await until(service, run, lambda: service.status(run).round >= 1)
            cat.chunk(data[cat], last)
            await until(service, run, lambda: service.status(run).round >= 2)
            assert counted(service, run) == [(1, "ant"), (2, "cat")]

    play(scenario())


def test_an_upload_that_is_decoded_while_an_update_is_committed_stays(
    small: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker stores what it decoded, and only later the loop, which deletes meanwhile, hears of it."""
    arrived, decoded = threading.Event(), threading.Event()
    save, screened, commit = Vault.save, Screening.screened, Journal.commit

    def saved_late(*arguments: Any, **named: Any) -> Saved:  # noqa: ANN401  it stands for a method
        arrived.wait(10)
        return save(*arguments, **named)

    def seen(self: Screening, one: Report) -> tuple[Report, str]:
        found = screened(self, one)
        if one.device == "cat":
            decoded.set()
        return found

    def committed_late(*arguments: Any, **named: Any) -> None:  # noqa: ANN401  likewise
        commit(*arguments, **named)
        assert decoded.wait(10)

    async def scenario() -> None:
        broker = LoopbackBroker()
        async with coordinating(broker, tmp_path) as service, hands(broker, *NAMES) as (ant, cat):
            await drained(service, broker)
            run = service.start_run(config(codec="int8", **ONE_BY_ONE), pack(small))
            tasks = {hand: await task_of(hand) for hand in (ant, cat)}
            monkeypatch.setattr(Vault, "save", saved_late)
            monkeypatch.setattr(Screening, "screened", seen)
            monkeypatch.setattr(Journal, "commit", committed_late)
            report(small, ant, tasks[ant])
            await until(service, run, lambda: service._active.round.phase is Phase.REDUCING)
            report(small, cat, tasks[cat])
            await drained(service, broker)
            arrived.set()
            await until(service, run, lambda: service.status(run).round >= 2)
            assert counted(service, run) == [(1, "ant"), (2, "cat")]
            assert service._active.round.attempt == 0
            assert not service._active._intake._claimed

    play(scenario())


def test_nothing_is_claimed_while_somebody_cleans_up() -> None:
    intake = Intake()
    intake.claim("a" * 64)
    with intake.settled() as held:
        assert held == {"a" * 64}
        other = threading.Thread(target=intake.claim, args=("b" * 64,))
        other.start()
        other.join(0.05)
        assert other.is_alive()
    other.join(10)
    upload = BlobRef("a" * 64, 1)
    intake.release(Report("ant", 1, "run", 1, 0, 1, 1, upload, {}, {}, "0" * 64))
    with intake.settled() as held:
        assert held == {"b" * 64}


def test_a_report_that_comes_before_the_first_tick_after_a_restart_counts(
    small: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        with cuts_of(tmp_path / "state", tmp_path) as cuts:
            async with coordinating(broker, tmp_path / "state") as service, hands(broker, *NAMES) as (ant, cat):
                await drained(service, broker)
                run = service.start_run(config(**ONE_BY_ONE), pack(small))
                fast, slow = await task_of(ant), await task_of(cat)
                report(small, ant, fast)
                await until(service, run, lambda: service.status(run).round >= 1)
        state = next(left for when, left in cuts if when.startswith("after commit"))
        monkeypatch.setattr("coordinator.service.TICK", 1000.0)
        broker = LoopbackBroker()
        async with coordinating(broker, state, Clock()) as service, hands(broker, "cat") as (cat,):
            report(small, cat, slow)
            await drained(service, broker)
            await idle(service)
            assert service._active.round.phase is Phase.SELECTING
            service._look()
            await until(service, run, lambda: service.status(run).round >= 2)
            assert counted(service, run) == [(1, "ant"), (2, "cat")]

    play(scenario())
