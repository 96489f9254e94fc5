"""Promise 8: a round ends by its deadline with the reports it needs, or comes to nothing, whoever drops out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from _dropout import Ended, play
from _fleet import FLEET, coordinating, devices, gathered
from _scale import record, scaled, seed_of
from _scripted import finished

from coordinator.config import RunConfig
from coordinator.rounds import Phase, Policy
from edgepfl import wire
from edgepfl.bundle import Bundle, pack
from edgepfl.bus import Connected
from edgepfl.bus.mqtt import MqttBus, MqttSettings
from edgepfl.topics import FromDevice, Topics
from simulators.broker import BrokerHandle
from simulators.fleet import AgentFleet

GOAL, MINIMUM, DEADLINE, LEASE = 50, 30, 120.0, 10.0
ROUNDS = scaled(20, 1000)  # of each kind
DROPOUTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)


def sweep(over: float, dropout: float, rounds: int = ROUNDS) -> list[Ended]:
    policy = Policy(GOAL, MINIMUM, 5.0, DEADLINE, LEASE, over=over)
    first = seed_of(f"dropout {dropout}, over {over}")
    return [play(policy, 100, dropout, first + number) for number in range(rounds)]


@pytest.mark.promise(8)
@pytest.mark.parametrize("dropout", DROPOUTS)
@pytest.mark.parametrize("over", [1.0, 1.3])
def test_it_ends_by_its_deadline_with_the_minimum_or_comes_to_nothing(dropout: float, over: float) -> None:
    found = sweep(over, dropout)
    for each in found:
        assert each.seconds <= DEADLINE
        assert each.reports == min(each.alive, GOAL)
        assert each.phase is (Phase.REDUCING if each.alive >= MINIMUM else Phase.ABANDONED)
    full = sum(each.reports == GOAL for each in found) / ROUNDS
    record(
        8,
        "dropout",
        dropout=dropout,
        over=over,
        full=full,
        abandoned=sum(each.phase is Phase.ABANDONED for each in found) / ROUNDS,
        seconds=sum(each.seconds for each in found) / ROUNDS,
    )


@pytest.mark.promise(8)
def test_over_selection_makes_the_difference() -> None:
    """At a dropout of 15 %: of 50 devices hardly ever all report, of 65 at least 50 do in 97 of 100 rounds."""
    plain, over = sweep(1.0, 0.15, count := scaled(60, 1000)), sweep(1.3, 0.15, count)
    full, over_full = (sum(each.reports == GOAL for each in found) / count for found in (plain, over))
    seconds, over_seconds = (sum(each.seconds for each in found) / count for found in (plain, over))
    record(8, "over-selection", full=full, over_full=over_full, seconds=seconds, over_seconds=over_seconds)
    assert full < 0.05
    assert over_full > 0.85
    assert over_seconds < 0.8 * seconds


class Mute:
    """A device that says Hello, gets its task, and is never heard of again."""

    def __init__(self, url: str, name: str) -> None:
        topics = Topics(FLEET)
        self._bus = MqttBus(MqttSettings(url, name))
        self._hello = (
            topics.build(FromDevice(name, wire.Hello.KIND)),
            wire.encode(wire.Hello(name, 1, ("onnx",), 16, 512, "test")),
        )

    async def serve(self) -> None:
        await self._bus.start()
        try:
            while True:
                if isinstance(await self._bus.receive(), Connected):
                    self._bus.publish(*self._hello)
        finally:
            await self._bus.stop()


@asynccontextmanager
async def muted(url: str, count: int) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(Mute(url, f"mute-{number}").serve()) for number in range(count)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@dataclass(frozen=True)
class Ending:
    """How a run ended, why, each round's number of reports, and whom it blames."""

    status: str
    why: str
    counts: list[int]
    blamed: list[str]


async def trained(broker: BrokerHandle, bundle: Bundle, state: Path, config: RunConfig) -> Ending:
    """A run with six agents and two devices that fall silent."""
    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(coordinating(broker.url, state / "coordinator"))
        await stack.enter_async_context(AgentFleet(broker.url, FLEET, devices(6), state))
        await stack.enter_async_context(muted(broker.url, 2))
        await gathered(service, 8)
        run = service.start_run(config, pack(bundle))
        try:
            status = await asyncio.wait_for(finished(service, run), 240)
        except TimeoutError:
            pytest.fail(f"it does not end: {service.status(run)}")
        results = service.journal.results(run)
        counts = [sum(result.round == number for result in results) for number in range(1, status.round + 1)]
        blamed = sorted(device for device, conduct in service.journal.conduct(run).items() if conduct.failures)
        return Ending(status.status, status.why, counts, blamed)


USUAL = {"rounds": 1, "steps": 2, "canary": 0.0, "evaluate_every": 0, "gather": 0.5, "attempts": 1}


@pytest.mark.promise(8)
def test_over_selected_agents_do_not_wait_for_the_silent_ones(
    broker: BrokerHandle, small: Bundle, tmp_path: Path
) -> None:
    config = RunConfig(**USUAL, goal=6, over=1.3, minimum=4, lease=90.0, deadline=1e6)  # type: ignore[arg-type]  # by name
    assert config.selected == 8
    assert asyncio.run(trained(broker, small, tmp_path, config)) == Ending("done", "", [6, 6], [])


@pytest.mark.promise(8)
@pytest.mark.parametrize("minimum", [6, 7])
def test_without_it_the_lease_ends_the_wait_and_the_minimum_decides(
    broker: BrokerHandle, small: Bundle, tmp_path: Path, minimum: int
) -> None:
    config = RunConfig(**USUAL, goal=8, minimum=minimum, lease=1.0, deadline=1e6)  # type: ignore[arg-type]  # by name
    found = asyncio.run(trained(broker, small, tmp_path, config))
    if minimum == 6:
        assert found == Ending("done", "", [6, 6], ["mute-0", "mute-1"])
    else:
        assert (found.status, found.counts) == ("failed", [])
        assert "6 reports, at least 7 needed" in found.why
        assert "mute-0: no sign of life" in found.why
