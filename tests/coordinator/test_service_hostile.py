"""Messages that are none, or not from who they say, or late, or of another run: nothing changes, nothing ends."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import msgpack
import pytest
from _scripted import (
    Clock,
    config,
    coordinating,
    drained,
    finished,
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

from coordinator.rounds import State
from coordinator.service import Coordinator
from edgepfl import wire
from edgepfl.bundle import Bundle, pack
from edgepfl.bus.loopback import LoopbackBroker
from edgepfl.wire import Cancel, Commit, Failed, Gone, Hello, Progress, RollCall, Task

pytestmark = pytest.mark.usefixtures("impatient")

KINDS = ("hello", "gone", "report", "failed", "progress", "need", "task", "commit", "anything")


def frozen(service: Coordinator, run: str) -> tuple[Any, ...]:
    """All that a message could change."""
    return service._active.round, service.fleet, service.journal.open_state(run), service.journal.reports(run)


def noise(source: random.Random, template: bytes) -> bytes:
    """Bytes that are random, or nearly right."""
    match source.randrange(4):
        case 0:
            return source.randbytes(source.randrange(200))
        case 1:
            return template[: source.randrange(len(template))]
        case 2:
            at = source.randrange(len(template))
            return template[:at] + source.randbytes(1) + template[at + 1 :]
        case _:
            fields: dict[str, object] = {"device": source.choice(["ant", "", 7, None, "x" * 500]), "session": -1}
            return bytes(msgpack.packb([source.choice([1, 2, True]), source.choice(KINDS), fields]))


def test_noise_changes_nothing(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with coordinating(broker, tmp_path) as service, hands(broker, "ant", "bee", "cat") as devices:
            run = service.start_run(config(), pack(small))
            task = await told(devices)
            ant = devices[0]
            await drained(service, broker)
            before = frozen(service, run)
            source = random.Random(7)
            right = wire.encode(ant.report(task, ref_of(upload_of(small.plan, task, "ant"))))
            for _ in range(500):
                ant.raw(source.choice(KINDS), noise(source, right)[: len(right) - 1])
                ant.bus.publish(f"edgepfl/1/home/up/ant/blob/{source.randbytes(8).hex()}.{source.randrange(9)}", b"?")
            for strange in ("up/ANT/hello", "up/ant/blob/zz.0", "up/ant/blob/" + "a" * 16 + ".99999999"):
                ant.bus.publish(f"edgepfl/1/home/{strange}", right)
            await drained(service, broker)
            assert frozen(service, run) == before
            assert not service._uploads._coming

    play(scenario())


def test_nobody_speaks_for_another(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with coordinating(broker, tmp_path) as service, hands(broker, "ant", "bee", "eve") as [ant, bee, eve]:
            await drained(service, broker)
            run = service.start_run(config(goal=2, minimum=2), pack(small))
            before = frozen(service, run)
            victim = next(name for name in service._active.round.seats if name != "eve")
            for message in (
                Failed(victim, 1, run, 1, 0, "data", "gone"),
                Gone(victim, 1),
                Hello(victim, 9, (), 0, 0, "test"),
                Progress(victim, 1, run, 1, 0, 3),
                (ant if victim == "ant" else bee).report_of(run, 1, ref_of(b"nothing")),
            ):
                eve.raw(message.KIND, wire.encode(message))
            for command in (Commit(run, 1, ()), Cancel(run, 1, 0, "no"), RollCall(1)):
                eve.raw(command.KIND, wire.encode(command))  # what only the coordinator says
            await drained(service, broker)
            assert frozen(service, run) == before
            assert seat_of(service, victim).state is State.WORKING

    play(scenario())


def test_late_and_repeated_messages_change_nothing(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with coordinating(broker, tmp_path) as service, hands(broker, "ant", "bee") as [ant, bee]:
            run = service.start_run(config(goal=2, minimum=2), pack(small))
            first = await told([ant, bee])
            reports = [hand.report(first, ref_of(upload_of(small.plan, first, hand.name))) for hand in (ant, bee)]
            for hand, report in zip((ant, bee), reports, strict=True):
                hand.say(report)
            second = await told([ant, bee])
            assert second.round == 2
            await drained(service, broker)
            before = frozen(service, run)
            for again in reports[0], ant.report_of(run, 3, None), ant.report_of(run, 2, None, attempt=1):
                ant.say(again)
            ant.say(Failed("ant", 1, run, 1, 0, "data", "of the last round"))
            ant.say(Failed("ant", 1, run, 2, 5, "data", "of another attempt"))
            ant.say(Failed("ant", 1, "another", 2, 0, "data", "of another run"))
            ant.say(Progress("ant", 1, run, 1, 0, 3))
            ant.say(ant.report_of("another", 2, None))
            commit = await ant.next(Commit)
            while commit.accepted != ("ant",):
                commit = await ant.next(Commit)
            assert commit.round == 1  # the late report is answered: it counts
            await drained(service, broker)
            assert frozen(service, run) == before

    play(scenario())


def test_the_will_of_an_old_session_says_nothing(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with coordinating(broker, tmp_path) as service, hands(broker, "ant") as [ant]:
            run = service.start_run(config(goal=2, minimum=2), pack(small))
            ant.hello(session=5)
            ant.say(Gone("ant", 1))
            ant.say(Gone("dog", 1))
            ant.hello(session=4)  # late
            await drained(service, broker)
            assert service.status(run).here == ("ant",)
            assert service._active.round.present == {"ant"}
            ant.say(Gone("ant", 5))
            await until(service, run, lambda: not service.status(run).here)
            assert service._active.round.present == frozenset()
            ant.hello(session=1)  # a new card in the old board
            await until(service, run, lambda: service._active.round.present == {"ant"})

    play(scenario())


@pytest.mark.parametrize("field", ["code", "detail"])
def test_what_a_device_says_of_itself_is_made_fit_to_print(field: str, small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with coordinating(broker, tmp_path) as service, hands(broker, "ant", "bee") as devices:
            run = service.start_run(config(goal=2, minimum=1), pack(small))
            await told(devices)
            words = {"code": "data", "detail": "x" * 200, field: "\x1b[2J\nroot logged in"}
            devices[0].say(Failed("ant", 1, run, 1, 0, **words))
            await until(service, run, lambda: seat_of(service, "ant").state is State.FAILED)
            assert seat_of(service, "ant").why.isprintable()
            assert "root logged in" in service.status(run).waiting

    play(scenario())


def test_metrics_that_overflow_do_not_break_the_status(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with coordinating(broker, tmp_path) as service, hands(broker, "ant", "bee") as devices:
            run = service.start_run(config(goal=2, minimum=2), pack(small))
            task = await told(devices)
            for hand in devices:
                report = hand.report(task, ref_of(upload_of(small.plan, task, hand.name)))
                report.metrics["loss"] = 1.7e308
                hand.say(report)
            status = await watched(service, run, lambda status: status.round == 1)
            assert status.metrics["loss"] == pytest.approx(1.7e308)

    play(scenario())


def test_a_run_among_noise_ends_as_one_without(small: Bundle, tmp_path: Path) -> None:
    async def scenario(state: Path, *, loud: bool) -> str:
        broker, source = LoopbackBroker(), random.Random(3)
        devices = honest_fleet(broker, small)
        async with coordinating(broker, state) as service, hands(broker, "eve") as [eve], serving(*devices):
            eve.hello(examples=0)
            run = service.start_run(config(), pack(small))
            ending = asyncio.ensure_future(finished(service, run))
            right = wire.encode(eve.report_of(run, 1, ref_of(b"x")))
            while not ending.done():
                if loud:
                    eve.raw(source.choice(KINDS), noise(source, right))
                await asyncio.sleep(0)
            return (await ending).state_sha256

    def digest(state: Path, *, loud: bool) -> str:
        return asyncio.run(asyncio.wait_for(scenario(state, loud=loud), 30))

    quiet = digest(tmp_path / "quiet", loud=False)
    assert len(quiet) == 64
    assert digest(tmp_path / "loud", loud=True) == quiet


def test_a_device_without_data_is_not_chosen(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with coordinating(broker, tmp_path, Clock()) as service, hands(broker, "ant", "bee") as [ant, bee]:
            run = service.start_run(config(goal=3, minimum=2), pack(small))
            await until(service, run, lambda: service._active.round.present == {"ant", "bee"})
            bee.hello(examples=0)
            await until(service, run, lambda: service._active.round.present == {"ant"})
            bee.say(Hello("bee", 1, ("executorch",), 5, 512, "test"))
            await drained(service, broker)
            assert service._active.round.present == {"ant"}
            bee.hello()
            await until(service, run, lambda: service._active.round.present == {"ant", "bee"})
            ant.say(
                Task(
                    run,
                    1,
                    0,
                    (),
                    ref_of(b"x"),
                    ref_of(b"x"),
                    {},
                    1,
                    1,
                    evaluate=True,
                    tune_steps=0,
                    final=True,
                    deadline=1.0,
                    heartbeat=1.0,
                )
            )
            await drained(service, broker)

    play(scenario())
