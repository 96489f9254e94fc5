"""Promise 3: a broker that is killed and comes back empty costs seconds, and no round."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from _fleet import FLEET, coordinating, devices, everyone, gathered
from _scale import record, scaled, seed_of
from _scripted import finished, watched

from coordinator.rounds import Phase, State
from coordinator.service import Coordinator
from coordinator.status import RunStatus
from edgepfl.bundle import Bundle, pack
from simulators.broker import BrokerHandle
from simulators.fleet import AgentFleet

DEVICES = scaled(10, 50)
ROUNDS = 2
KILLS = scaled(2, 3)  # in each round
STEPS = 50
MARK = 10.0  # seconds until every device must be back
WIDE = 3.0  # times that on a busy machine, where time is not the point


class Paced(ThreadPoolExecutor):
    """One thread that does a task when it may: so a round lasts until its kills are over."""

    def __init__(self) -> None:
        super().__init__(1)
        self.permits = threading.Semaphore(0)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:  # noqa: ANN401  Executor's
        def permitted() -> object:
            self.permits.acquire()
            return fn(*args, **kwargs)

        return super().submit(permitted)


@dataclass
class Kills:
    """A broker that is killed when so many devices of a round have reported.

    Attributes:
        back: seconds after each start until every device was here again.
    """

    broker: BrokerHandle
    service: Coordinator
    pace: Paced
    back: list[float] = field(default_factory=list)

    async def during(self, run: str) -> None:
        """Kill it several times in every round of a run: before the first report, and between others."""
        for number in range(1, ROUNDS + 1):
            for kill in range(KILLS):
                reports = kill * DEVICES // KILLS
                await watched(self.service, run, partial(self._reached, number, reports))
                await self._kill()
                more = (kill + 1) * DEVICES // KILLS - reports
                self.pace.permits.release(more)
        self.pace.permits.release(DEVICES)  # the last evaluation

    def _reached(self, number: int, reports: int, _: RunStatus) -> bool:
        """Whether a round is reporting, and so many reports are here."""
        round_ = self.service._active.round
        reporting = round_.number == number and round_.phase is Phase.REPORTING
        return reporting and len(round_.devices(State.REPORTED)) >= reports

    async def _kill(self) -> None:
        await asyncio.to_thread(self.broker.kill)
        while any(known.present for known in self.service.fleet.devices.values()):
            await self.service._changed.wait()
        await asyncio.to_thread(self.broker.start)
        started = time.monotonic()
        await gathered(self.service, DEVICES)
        self.back.append(time.monotonic() - started)


async def trained(broker: BrokerHandle, folder: Path, bundle: bytes, *, kill: bool, seed: int) -> tuple[str, Kills]:
    """The digest of the model that a run comes to, and what its kills cost."""
    async with (
        coordinating(broker.url, folder / "coordinator") as service,
        AgentFleet(broker.url, FLEET, devices(DEVICES), folder / "agents", threads=1) as fleet,
    ):
        pace = Paced()
        for agent in fleet.agents.values():
            agent.service._jobs._pool = pace
        kills = Kills(broker, service, pace)
        await gathered(service, DEVICES)
        run = service.start_run(everyone(DEVICES, rounds=ROUNDS, steps=STEPS, seed=seed), bundle)
        if kill:
            await kills.during(run)
        else:
            pace.permits.release(DEVICES * (ROUNDS + 1))
        last = await finished(service, run)
        fleet.check()
        assert (last.status, last.round) == ("done", ROUNDS + 1), last
        counted = [(result.round, result.device) for result in service.journal.results(run)]
        assert sorted(counted) == [(n, d) for n in range(1, ROUNDS + 2) for d in devices(DEVICES)]
        pace.shutdown()
        return last.state_sha256, kills


@pytest.mark.broker
@pytest.mark.promise(3)
@pytest.mark.timeout(scaled(120, 600))
def test_a_broker_that_is_killed_and_comes_back_empty_costs_seconds_and_no_round(
    broker: BrokerHandle, small: Bundle, tmp_path: Path
) -> None:
    seed = seed_of("broker kills")
    calm, _ = asyncio.run(trained(broker, tmp_path / "calm", pack(small), kill=False, seed=seed))
    rough, kills = asyncio.run(trained(broker, tmp_path / "rough", pack(small), kill=True, seed=seed))
    assert rough == calm
    assert len(kills.back) == KILLS * ROUNDS
    record(
        3,
        "broker kills",
        broker=broker.name,
        devices=DEVICES,
        kills=len(kills.back),
        slowest_back_seconds=round(max(kills.back), 2),
    )
    assert max(kills.back) < MARK * WIDE, kills.back
