"""A buffered run with a real coordinator and real agents on a real broker: nobody waits for a slow device."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from _fleet import FLEET, coordinating, devices, everyone, gathered, true
from _scripted import finished, watched

from coordinator.service import Coordinator
from coordinator.status import RunStatus
from device_agent.runners.onnx import OnnxRunner
from device_agent.work import Materials, Product, Workshop
from edgepfl.bundle import Bundle, pack
from edgepfl.wire import Task
from simulators.broker import BrokerHandle
from simulators.fleet import AgentFleet

PATIENCE = 120.0  # seconds; far more than anything here takes
SLOW = "pi-003"
COUNT, BUFFER = 4, 2
ROUNDS = 80  # so many that a device which was cut off is back before the last one
WITHOUT = 4  # updates that are made while the slow device works


class Heavy(Workshop):
    """A workshop in which one device's first training takes until it is let go."""

    def __init__(self) -> None:
        super().__init__(OnnxRunner)
        self.go = threading.Event()
        self.began: list[tuple[str, int]] = []

    def perform(self, task: Task, materials: Materials, on_step: Callable[[int], None]) -> Product:
        """As any workshop."""
        self.began.append((materials.device, task.round))

        def gated(done: int) -> None:
            if materials.device == SLOW:
                assert self.go.wait(PATIENCE)
            on_step(done)

        return super().perform(task, materials, gated)


def kept_of(service: Coordinator, run: str) -> dict[str, list[tuple[int, int]]]:
    """The round and the base of each report that counts, by device."""
    found: dict[str, list[tuple[int, int]]] = {name: [] for name in devices(COUNT)}
    for result in service.journal.results(run):
        found[result.device].append((result.round, result.base))
    return found


@pytest.mark.parametrize("cut", [False, True], ids=["calm", "its connection is cut meanwhile"])
def test_updates_do_not_wait_for_a_slow_device_and_its_report_counts_later(
    cut: bool,  # noqa: FBT001  pytest gives it by name
    tmp_path: Path,
    broker: BrokerHandle,
    small: Bundle,
) -> None:
    workshop = Heavy()

    async def scenario() -> None:
        fleet = AgentFleet(broker.url, FLEET, devices(COUNT), tmp_path / "fleet", threads=COUNT, workshop=workshop)
        async with coordinating(broker.url, tmp_path / "coordinator") as service, fleet:
            await gathered(service, COUNT)
            config = everyone(COUNT, rounds=ROUNDS, steps=4, minimum=1, buffer=BUFFER, max_staleness=ROUNDS)
            run = service.start_run(config, pack(small))
            early = await watched(service, run, lambda status: status.round >= WITHOUT)
            check_open(early)
            if cut:
                fleet.drop(SLOW)
            assert not kept_of(service, run)[SLOW]
            workshop.go.set()
            status = await finished(service, run)
            assert (status.status, status.why) == ("done", "")
            check_ended(service, run)
            await true(lambda: fleet.settled(run) == service.journal.accepted(run))

    def check_open(status: RunStatus) -> None:
        assert status.buffer is not None
        assert (status.buffer.version, status.buffer.size) == (status.round, BUFFER)
        assert status.buffer.staleness is not None
        assert f"{SLOW} since round 1" in status.waiting or status.phase == "reducing"

    def check_ended(service: Coordinator, run: str) -> None:
        found = kept_of(service, run)
        first = found[SLOW][0]
        assert first[1] == 1
        assert WITHOUT < first[0] <= ROUNDS + 1
        for name, counted in found.items():
            bases = [base for _, base in counted]
            assert bases == sorted(set(bases)), name  # each task's report counted once, in their order
        per_round = [number for counted in found.values() for number, _ in counted if number <= ROUNDS]
        assert {per_round.count(number) for number in range(1, ROUNDS + 1)} == {BUFFER}
        assert workshop.began.count((SLOW, 1)) == 1  # it was not made to begin anew

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))
