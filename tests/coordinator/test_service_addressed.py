"""Runs that send each device a download of its own, and runs that are refused or end for what they send."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from _plans import bundle_of
from _scripted import (
    Hand,
    config,
    coordinating,
    drained,
    finished,
    hands,
    honest_fleet,
    idle,
    play,
    ref_of,
    serving,
    upload_of,
    watched,
)

from coordinator import checkpoint, updater
from coordinator.service import Coordinator
from edgepfl import codec
from edgepfl.algorithms.fpfc import FPFC
from edgepfl.bundle import Bundle, pack
from edgepfl.bus.loopback import LoopbackBroker
from edgepfl.errors import ConfigError
from edgepfl.plan import Role
from edgepfl.tree import Trees
from edgepfl.wire import Failed, Task

pytestmark = pytest.mark.usefixtures("impatient")


def own(bundle: Bundle, task: Task) -> Trees:
    """The DOWN slots of a task."""
    declared = {name: slot.tensors for name, slot in bundle.plan.by_role(Role.DOWN).items()}
    return codec.decode(task.download.inline, declared)


def answer(bundle: Bundle, hand: Hand, task: Task) -> None:
    hand.say(hand.report(task, ref_of(upload_of(bundle.plan, task, hand.name))))


def offered(service: Coordinator) -> set[str]:
    return {path.name for path in service._desk.vault.offered.local.directory.iterdir()}


def test_each_device_is_told_alone_and_downloads_live_one_round(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker, bundle = LoopbackBroker(), bundle_of("fpfc")
        async with coordinating(broker, tmp_path) as service, hands(broker, "ant", "bee", "cat") as three:
            await drained(service, broker)
            run = service.start_run(config(rounds=1), pack(bundle))
            first = {hand.name: await hand.next(Task) for hand in three}
            for name, task in first.items():
                assert [member.device for member in task.cohort] == [name]
            for hand in three:
                answer(bundle, hand, first[hand.name])
            second = {hand.name: await hand.next(Task) for hand in three}
            state = service._active._saved.state
            algorithm = updater.algorithm_of(bundle.plan, {})
            for name, task in second.items():
                wanted = updater.downloads(algorithm, state, name)
                assert (task.round, task.final) == (2, True)
                assert codec.encode(own(bundle, task)) == codec.encode(wanted)
            downloads = {task.download.sha256 for task in second.values()}
            assert len(downloads) == 3
            assert offered(service) == downloads | {second["ant"].bundle.sha256}
            for hand in three:
                hand.say(hand.report(second[hand.name], None))
            assert (await finished(service, run)).status == "done"
            assert offered(service) == {second["ant"].bundle.sha256}

    play(scenario())


def test_a_device_that_restarts_gets_its_own_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker, bundle = LoopbackBroker(), bundle_of("fpfc")
        async with hands(broker, "ant", "bee", "cat") as three:
            ant = three[0]
            async with coordinating(broker, tmp_path) as service:
                for hand in three:
                    hand.hello()
                service.start_run(config(), pack(bundle))
                for hand in three:
                    answer(bundle, hand, await hand.next(Task))
                before = await ant.next(Task)
                assert before.round == 2
                ant.hello(session=2)
                assert await ant.next(Task) == before
                for hand in three[1:]:
                    answer(bundle, hand, await hand.next(Task))
                await watched(service, before.run, lambda status: "2 of 3 reported" in status.waiting)
            async with coordinating(broker, tmp_path) as service:
                await drained(service, broker)
                for hand in three:
                    hand.hello(session=3)
                assert await ant.next(Task) == before
                answer(bundle, ant, before)
                final = await ant.next(Task)
                assert (final.round, final.download.sha256 != before.download.sha256) == (3, True)
                assert {before.download.sha256} & offered(service) == set()

    play(scenario())


def test_a_download_that_cannot_be_made_costs_its_device_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = FPFC.send_each

    def send_each(self: FPFC, state: Any, devices: Any) -> Any:  # noqa: ANN401  it stands for FPFC's
        if "bee" in devices:
            raise ZeroDivisionError("bee")
        return good(self, state, devices)

    async def scenario() -> None:
        broker, bundle = LoopbackBroker(), bundle_of("fpfc")
        async with (
            coordinating(broker, tmp_path) as service,
            serving(*honest_fleet(broker, bundle)),
        ):
            await drained(service, broker)
            monkeypatch.setattr(FPFC, "send_each", send_each)
            run = service.start_run(config(minimum=2, rounds=1), pack(bundle))
            assert (await finished(service, run)).status == "done"
            assert {(r.round, r.device) for r in service.journal.results(run)} == {
                (number, name) for number in (1, 2) for name in ("ant", "cat")
            }
            alone = service.start_run(config(minimum=3, attempts=2), pack(bundle))
            status = await finished(service, alone)
            assert (status.status, status.round) == ("failed", 0)
            assert "bee: ZeroDivisionError: bee" in status.why
            await idle(service)

    play(scenario())


def test_downloads_that_are_too_big_end_the_run_and_not_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        broker, bundle = LoopbackBroker(), bundle_of("fpfc")
        async with coordinating(broker, tmp_path) as service, serving(*honest_fleet(broker, bundle)):
            monkeypatch.setattr(checkpoint, "BLOB_LIMIT", 100)
            status = await finished(service, service.start_run(config(attempts=2), pack(bundle)))
            assert (status.status, status.round) == ("failed", 0)
            assert "a download of" in status.why
            assert "at most 100 are possible" in status.why
            monkeypatch.undo()
            again = await finished(service, service.start_run(config(rounds=1), pack(bundle)))
            assert again.status == "done"

    play(scenario())


def test_an_abandoned_attempt_makes_no_device_known(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker, bundle = LoopbackBroker(), bundle_of("scaffold")
        async with coordinating(broker, tmp_path) as service, hands(broker, "ant", "bee", "cat") as three:
            await drained(service, broker)
            run = service.start_run(config(rounds=1, gather=1e-6), pack(bundle))
            task = await three[2].next(Task)
            assert service._active.round.joined == ("ant", "bee", "cat")
            async with Hand(broker, "dog") as dog:
                dog.hello()
                await drained(service, broker)
                assert service._active.round.joined == ("ant", "bee", "cat")  # it came after the choice
                for hand in three:
                    hand.say(Failed(hand.name, 1, run, task.round, 0, "data", "it is gone"))
                await watched(service, run, lambda _: service._active.round.attempt == 1)
                assert service.journal.accepted(run) == {}
                now = service._active.round
                assert now.joined == ("ant", "bee", "cat", "dog")
                chosen = now.seats
                for hand in (*three, dog):
                    if hand.name in chosen:
                        again = await hand.next(Task)
                        while again.attempt == 0:
                            again = await hand.next(Task)
                        answer(bundle, hand, again)
                await watched(service, run, lambda status: status.round == 1)
                left_out = {"ant", "bee", "cat", "dog"} - chosen.keys()
                assert service.journal.accepted(run) == {**dict.fromkeys(chosen, 1), **dict.fromkeys(left_out, -1)}
                assert len(left_out) == 1

    play(scenario())


def test_a_method_that_needs_every_device_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        broker, bundle = LoopbackBroker(), bundle_of("proxskip")
        async with coordinating(broker, tmp_path) as service, serving(*honest_fleet(broker, bundle)):
            await drained(service, broker)
            with pytest.raises(
                ConfigError, match="proxskip needs every device in every round, and 2 of 3 do"
            ) as caught:
                service.start_run(config(minimum=2), pack(bundle))
            assert caught.value.remedy.startswith("Set minimum to 3")
            with pytest.raises(ConfigError, match="over-selection leaves some out"):
                service.start_run(config(over=1.3), pack(bundle))
            assert service.journal.running() is None
            status = await finished(service, service.start_run(config(minimum=3), pack(bundle)))
            assert status.status == "done"
            assert "without" not in caplog.text
            status = await finished(service, service.start_run(config(goal=2, minimum=2, rounds=1), pack(bundle)))
            warned = [record.message for record in caplog.records if "proxskip needs" in record.message]
            assert len(warned) == 1  # the final evaluation needs nobody
            assert f"{status.run}: proxskip needs every device in every round, and round 1 is without 1: " in warned[0]

    play(scenario())


def test_decay_reaches_the_devices_and_is_refused_where_it_ends_badly(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker, bundle = LoopbackBroker(), bundle_of("scaffold", lr=0.5)
        fleet = honest_fleet(broker, bundle)
        async with coordinating(broker, tmp_path) as service, serving(*fleet):
            with pytest.raises(ConfigError, match=r"in round 2001, lr = 0\.0"):
                service.start_run(config(rounds=2000, decay={"lr": 0.5}), pack(bundle))
            assert service.journal.running() is None
            run = service.start_run(config(decay={"lr": 0.5}, patience=2.5), pack(bundle))
            assert (await finished(service, run)).status == "done"
            told = [message for message in fleet[0].seen if isinstance(message, Task)]
            assert [task.hyper for task in told] == [{"lr": 0.5}, {"lr": 0.25}, {"lr": 0.125}]
            assert {task.patience for task in told} == {2.5}

    play(scenario())
