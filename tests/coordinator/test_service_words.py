"""What devices say, and what of it the coordinator repeats, remembers and blames them for."""

from __future__ import annotations

from pathlib import Path

import pytest
from _scripted import (
    FLEET,
    TOPICS,
    Clock,
    attended,
    config,
    coordinating,
    drained,
    hands,
    idle,
    play,
)

from coordinator import quarantine
from coordinator.blame import ROOM
from coordinator.config import TransferTable
from coordinator.rounds import State
from coordinator.service import Coordinator
from edgepfl import wire
from edgepfl.bundle import Bundle, pack
from edgepfl.bus.loopback import LoopbackBroker, LoopbackBus
from edgepfl.topics import FromDevice
from edgepfl.wire import Cancel, Failed, Progress, Task

pytestmark = pytest.mark.usefixtures("impatient")


def test_the_longest_reason_of_a_device_can_be_repeated_to_it(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with coordinating(broker, tmp_path) as service, hands(broker, "ant", "bee", "cat") as devices:
            ant = devices[0]
            ant.obliging = False
            await drained(service, broker)
            run = service.start_run(config(), pack(small))
            task = await ant.next(Task)
            ant.say(Failed("ant", 1, run, task.round, task.attempt, "GraphFailed", "x" * 256))
            await drained(service, broker)
            ant.say(Progress("ant", 1, run, task.round, task.attempt, 1))
            cancel = await ant.next(Cancel)
            assert cancel.reason.startswith("GraphFailed: xxx")
            assert service.status(run).status == "running"

    play(scenario())


def test_nobody_is_remembered_as_busy_who_never_said_hello(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with coordinating(broker, tmp_path) as service, hands(broker, "ant", "bee", "cat"):
            await drained(service, broker)
            run = service.start_run(config(), pack(small))
            await drained(service, broker)
            stranger = Progress("stranger", 1, run, 1, 0, 3)
            service._arrived(TOPICS.build(FromDevice("stranger", Progress.KIND)), wire.encode(stranger))
            assert "stranger" not in service._active._attendance.busy

    play(scenario())


def test_a_device_is_not_blamed_for_a_disk_that_is_full_here(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        full = TransferTable(quota_mib=1)
        service = Coordinator(FLEET, LoopbackBus(broker, "coordinator"), tmp_path, clock=Clock(), transfer=full)
        async with attended(service), hands(broker, "ant", "bee") as (ant, _):
            await drained(service, broker)
            service.start_run(config(goal=2, minimum=1), pack(small))
            task = await ant.next(Task)
            (tmp_path / "private" / ("0" * 64)).write_bytes(bytes(1 << 20))
            ant.say(ant.report(task, wire.BlobRef("1" * 64, 100_000, chunks=bytes(32))))
            await drained(service, broker)
            await idle(service)
            seat = service._active.round.seats["ant"]
            assert (seat.state, seat.code) == (State.FAILED, ROOM)
            assert not quarantine.judge({}, service._active.round, quarantine.Rule())

    play(scenario())
