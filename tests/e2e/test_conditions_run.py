"""Runs with conditions, with a real coordinator and real agents on a real broker: who waits, pauses and gives up."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
from _fleet import FLEET, coordinating, devices, everyone, gathered
from _scripted import finished, watched

from coordinator.config import RunConfig
from coordinator.service import Coordinator
from coordinator.status import RunStatus
from device_agent.runners.onnx import OnnxRunner
from device_agent.work import Materials, Product, Workshop
from edgepfl.bundle import Bundle, pack
from edgepfl.eligibility import Conditions, Readings
from edgepfl.wire import Task
from simulators.broker import BrokerHandle
from simulators.fleet import AgentFleet

PATIENCE = 120.0  # seconds; far more than anything here takes
SENSE = 0.05  # seconds between two looks at the sensors
HALFWAY, STEPS = 3, 8
SICK, WEAK, WELL = "pi-000", "pi-001", "pi-002"
CHARGING = Conditions(charging=True, pause_limit=5.0)


class Plug:
    """Whether a device is on external power."""

    def __init__(self, *, powered: bool = True) -> None:
        self.powered = powered

    def __call__(self) -> Readings:
        return Readings(powered=self.powered)


class Halfway(Workshop):
    """A workshop in which the first training of some devices stops and waits at a step until it is let go."""

    def __init__(self, *whose: str) -> None:
        super().__init__(OnnxRunner)
        self.reached = {device: threading.Event() for device in whose}
        self.go = {device: threading.Event() for device in whose}
        self.steps: dict[str, list[int]] = {}

    def perform(self, task: Task, materials: Materials, on_step: Callable[[int], None]) -> Product:
        """As any workshop, and note the steps."""
        device = materials.device
        steps = self.steps.setdefault(device, [])

        def gated(done: int) -> None:
            steps.append(done)
            if done == HALFWAY and device in self.reached and not self.go[device].is_set():
                self.reached[device].set()
                assert self.go[device].wait(PATIENCE)
            on_step(done)

        return super().perform(task, materials, gated)


def play(scenario: Coroutine[Any, Any, RunStatus]) -> RunStatus:
    """Run a scenario to its end."""
    return asyncio.run(asyncio.wait_for(scenario, PATIENCE))


async def until(true: Callable[[], bool]) -> None:
    """Wait for what nothing tells of."""
    while not true():  # noqa: ASYNC110  see above
        await asyncio.sleep(0.005)


def fleet_of(broker: BrokerHandle, folder: Path, workshop: Workshop, plugs: dict[str, Plug]) -> AgentFleet:
    """Agents whose plugs we hold."""
    return AgentFleet(
        broker.url,
        FLEET,
        devices(len(plugs)),
        folder,
        threads=len(plugs),
        workshop=workshop,
        sensors=plugs,
        sense_every=SENSE,
        checkpoint_seconds=3600.0,
    )


def asking(config: RunConfig) -> RunConfig:
    """The run, with conditions."""
    return msgspec.structs.replace(config, conditions=CHARGING)


def doing(service: Coordinator, run: str, device: str) -> tuple[str, str]:
    """What the status says of a device, without the numbers."""
    [found] = [each for each in service.status(run).devices if each.name == device]
    return str(found.state), found.why.partition(";")[0]


async def pauses(fleet: AgentFleet, device: str) -> None:
    """Until a device's work pauses."""
    await until(lambda: fleet[device].service.state.paused is not None)


def kept(service: Coordinator, run: str) -> str:
    """A digest of what every device kept, in every round."""
    results = sorted((r.round, r.device, r.kept) for r in service.journal.results(run))
    return hashlib.sha256(repr(results).encode()).hexdigest()


async def disturbed(broker: BrokerHandle, folder: Path, small: Bundle, *, pause: bool) -> tuple[str, str, int]:
    """A run whose first device, perhaps, pauses halfway; the digests of its end, and how many starts it took."""
    plugs = {name: Plug() for name in devices(2)}
    workshop = Halfway(*((SICK,) if pause else ()))
    async with (
        coordinating(broker.url, folder / "coordinator") as service,
        fleet_of(broker, folder / "fleet", workshop, plugs) as fleet,
    ):
        await gathered(service, 2)
        run = service.start_run(asking(everyone(2, rounds=2, steps=STEPS)), pack(small))
        if pause:
            agent = fleet[SICK].service
            await until(workshop.reached[SICK].is_set)
            plugs[SICK].powered = False
            await pauses(fleet, SICK)
            workshop.go[SICK].set()
            await until(lambda: (job := agent._jobs.current) is not None and job.resting)
            assert workshop.steps[SICK][-1] <= HALFWAY + 1
            plugs[SICK].powered = True
        status = await finished(service, run)
        assert status.status == "done"
        return status.state_sha256, kept(service, run), workshop.steps[SICK].count(0)


def test_training_that_pauses_and_goes_on_gives_the_same_bits(
    tmp_path: Path, broker: BrokerHandle, small: Bundle
) -> None:
    async def scenario() -> tuple[tuple[str, str, int], tuple[str, str, int]]:
        return (
            await disturbed(broker, tmp_path / "a", small, pause=False),
            await disturbed(broker, tmp_path / "b", small, pause=True),
        )

    calm, paused = asyncio.run(asyncio.wait_for(scenario(), PATIENCE))
    assert paused[:2] == calm[:2]
    assert paused[2] == calm[2] + 1


def test_one_device_pauses_and_goes_on_and_one_gives_up_and_the_run_says_so(
    tmp_path: Path, broker: BrokerHandle, small: Bundle
) -> None:
    plugs = {name: Plug() for name in (SICK, WEAK, WELL)}
    workshop = Halfway(SICK, WEAK)

    async def scenario() -> RunStatus:
        async with (
            coordinating(broker.url, tmp_path / "coordinator") as service,
            fleet_of(broker, tmp_path / "fleet", workshop, plugs) as fleet,
        ):
            await gathered(service, 3)
            config = everyone(3, rounds=2, steps=STEPS, minimum=2, gather=0.5, canary=0.0)
            run = service.start_run(asking(config), pack(small))
            for name in (SICK, WEAK):
                await until(workshop.reached[name].is_set)
                plugs[name].powered = False
            for name in (SICK, WEAK):
                await pauses(fleet, name)
                await until(lambda name=name: doing(service, run, name) == ("paused", "not charging"))  # type: ignore[misc]  # bound now
                workshop.go[name].set()
            plugs[SICK].powered = True
            gone = await watched(service, run, lambda status: status.round == 1)
            assert gone.unmet == {WEAK: "not charging"}
            assert {r.device for r in service.journal.results(run) if r.round == 1} == {SICK, WELL}
            return await finished(service, run)

    status = play(scenario())
    assert status.status == "done"
    assert STEPS in workshop.steps[SICK]
    assert max(workshop.steps[WEAK]) == HALFWAY


def test_a_run_waits_until_a_device_is_charging_and_says_why(
    tmp_path: Path, broker: BrokerHandle, small: Bundle
) -> None:
    plugs = {name: Plug(powered=False) for name in devices(1)}

    async def scenario() -> RunStatus:
        async with (
            coordinating(broker.url, tmp_path / "coordinator") as service,
            fleet_of(broker, tmp_path / "fleet", Workshop(OnnxRunner), plugs),
        ):
            await gathered(service, 1)
            run = service.start_run(asking(everyone(1, rounds=1, steps=STEPS)), pack(small))
            waits = await watched(service, run, lambda status: status.unmet == {SICK: "not charging"})
            assert waits.phase == "selecting"
            assert f"not ready: {SICK} (not charging)" in waits.waiting
            plugs[SICK].powered = True
            return await finished(service, run)

    assert play(scenario()).status == "done"
