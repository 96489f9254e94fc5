"""The broker, killed and started again with nothing at each phase of a round: both sides survive it to the same bits.

A phase is reached when the message that opens it is about to be sent: the broker dies at that moment, and the message
with it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
import pytest
from _matrix import SOAK, Row
from _once import once
from _scripted import attended, finished
from _servers import Agents, Valve
from _shared import digits
from _theatre import DEVICES, FLEET, SETTINGS, TOPICS

from coordinator.config import RunConfig
from coordinator.journal import Result
from coordinator.service import Coordinator
from device_agent.runners.onnx import OnnxRunner
from device_agent.work import Materials, Product, Workshop
from edgepfl import algorithms
from edgepfl.bundle import pack
from edgepfl.bus import Arrived, Connected, Disconnected
from edgepfl.bus.mqtt import MqttBus, MqttSettings
from edgepfl.topics import Address, Chunk, ToAll
from edgepfl.wire import Commit, Need, Report, Task
from exporters.build import build
from exporters.fitting import fitted
from exporters.zoo import mlp
from simulators.broker import BrokerHandle
from simulators.experiment import HEAD

WIDE = 2400  # hidden units: models of 700 kB, which cross in several chunks of any size
LIMIT = 240.0

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]


def bundle(algorithm: str) -> bytes:
    """An algorithm on a model of some 700 kB."""
    inputs, classes = digits(3).input_shape[0], len(digits(3).classes)
    chosen = algorithms.build(algorithm, SETTINGS[algorithm])
    model = partial(mlp, inputs=inputs, hidden=WIDE, classes=classes)
    return once(f"wide {algorithm}", lambda: pack(build(chosen, fitted(chosen, model(), own=HEAD))))


Opens: TypeAlias = Callable[[str, Address | None], bool]
"""Whether what somebody is about to do opens a phase: who, and to whom he speaks; None: it works."""


@dataclass
class Strike:
    """One death of the broker.

    Attributes:
        phase: of the round.
        at: when, in seconds.
        resumed: when the coordinator, connected again, next said something about the round; None for not yet.
    """

    phase: str
    at: float
    resumed: float | None = None


class Trap:
    """Kills the broker in each round, at the first message that opens the round's phase, and starts it again.

    Args:
        broker: the victim.
        phases: of one round after the other.
    """

    def __init__(self, broker: BrokerHandle, phases: Mapping[str, Opens]) -> None:
        self._broker = broker
        self._phases = iter(phases.items())
        self._now = next(self._phases, None)
        self._is_back = False
        self.strikes: list[Strike] = []

    def look(self, who: str, address: Address | None) -> None:
        """Somebody is about to send something, or to work."""
        if self._is_back and who == "coordinator" and _is_of_a_round(address):
            self.strikes[-1].resumed, self._is_back = time.monotonic(), False
        if self._now is not None and self._now[1](who, address):
            self._broker.kill()
            self._broker.start()
            self.strikes.append(Strike(self._now[0], time.monotonic()))
            self._now = None
        if address == ToAll(Commit.KIND):
            self._now = next(self._phases, None)

    def connected(self) -> None:
        """The coordinator is connected (again)."""
        self._is_back = bool(self.strikes) and self.strikes[-1].resumed is None


def _is_of_a_round(address: Address | None) -> bool:
    return isinstance(address, Chunk) or getattr(address, "kind", "") in {Task.KIND, Commit.KIND, Need.KIND}


class Interrupted(Workshop):
    """Shows the trap that work has begun, after its first step."""

    def __init__(self, trap: Trap) -> None:
        super().__init__(OnnxRunner)
        self._trap, self._loop = trap, asyncio.get_running_loop()

    def perform(self, task: Task, materials: Materials, on_step: Callable[[int], None]) -> Product:
        """See :class:`Workshop`."""
        looked = threading.Event()

        def look() -> None:
            self._trap.look("work", None)
            looked.set()

        def watched(done: int) -> None:
            on_step(done)
            if done == 1:
                self._loop.call_soon_threadsafe(look)
                looked.wait(LIMIT)

        return super().perform(task, materials, watched)


class Looked(Valve):
    """A connection that shows the trap what is about to be sent."""

    def __init__(self, url: str, fleet: str, device: str, session: int, trap: Trap) -> None:
        super().__init__(url, fleet, device, session)
        self._who, self._trap = device, trap

    def publish(self, topic: str, payload: bytes, *, qos: Literal[0, 1] = 1) -> bool:
        """See :class:`~edgepfl.bus.Bus`."""
        self._trap.look(self._who, TOPICS.parse(topic))
        return super().publish(topic, payload, qos=qos)


class Servers(MqttBus):
    """The coordinator's connection, likewise."""

    def __init__(self, url: str, trap: Trap) -> None:
        super().__init__(MqttSettings(url, "coordinator"))
        self._trap = trap

    def publish(self, topic: str, payload: bytes, *, qos: Literal[0, 1] = 1) -> bool:
        """See :class:`~edgepfl.bus.Bus`."""
        self._trap.look("coordinator", TOPICS.parse(topic))
        return super().publish(topic, payload, qos=qos)

    async def receive(self) -> Arrived | Connected | Disconnected:
        """See :class:`~edgepfl.bus.Bus`."""
        event = await super().receive()
        if isinstance(event, Connected):
            self._trap.connected()
        return event


class Crew(Agents):
    """Agents whose connections the trap sees."""

    def __init__(self, url: str, folder: Path, trap: Trap) -> None:
        data = dict(zip(DEVICES, digits(3).devices.values(), strict=True))
        super().__init__(url, dict.fromkeys(DEVICES, FLEET), data, folder)
        self._trap = trap
        self._workshop = Interrupted(trap)

    def valve(self, fleet: str, device: str, session: int) -> Valve:
        """See :class:`Agents`."""
        return Looked(self._url, fleet, device, session, self._trap)


PHASES: Mapping[str, Opens] = {
    "before Task": lambda _, address: getattr(address, "kind", "") == Task.KIND,  # one for all, or one for each
    "during download": lambda who, address: isinstance(address, Chunk) and who == "coordinator" and address.index > 0,
    "during work": lambda who, address: who == "work" and address is None,
    "before Report": lambda who, address: who in DEVICES and getattr(address, "kind", "") == Report.KIND,
    "during upload": lambda who, address: isinstance(address, Chunk) and who in DEVICES and address.index > 0,
    "before Commit": lambda _, address: address == ToAll(Commit.KIND),
}


async def trained(folder: Path, broker: BrokerHandle, algorithm: str, trap: Trap) -> tuple[str, list[Result]]:
    """A run of one round for each phase; its last state, and what the reports said that count."""
    service = Coordinator(FLEET, Servers(broker.url, trap), folder / "coordinator", clock=time.monotonic)
    agents = Crew(broker.url, folder / "agents", trap)
    everybody = len(DEVICES)
    config = RunConfig(rounds=len(PHASES), steps=4, goal=everybody, minimum=everybody, lease=1e4, seed=5, canary=0.0)
    async with attended(service), agents.serving():
        run = service.start_run(config, bundle(algorithm))
        status = await finished(service, run)
        agents.check()
        assert (status.status, status.why) == ("done", "")
        results = [msgspec.structs.replace(result, seconds={}) for result in service.journal.results(run)]
    return status.state_sha256, results


@pytest.mark.promise(2)
@pytest.mark.parametrize("algorithm", sorted(SETTINGS) if SOAK else ["feddc"])
def test_the_broker_dies_in_every_phase_of_a_round(
    tmp_path: Path,
    broker: BrokerHandle,
    algorithm: str,
    matrix: list[Row],
) -> None:
    async def scenario() -> None:
        expected = await trained(tmp_path / "peace", broker, algorithm, Trap(broker, {}))
        trap = Trap(broker, PHASES)
        found = await trained(tmp_path / "kills", broker, algorithm, trap)
        assert [strike.phase for strike in trap.strikes] == list(PHASES)
        assert found == expected
        for strike in trap.strikes:
            assert strike.resumed is not None
            seconds = strike.resumed - strike.at
            matrix.append(Row(f"broker ({broker.name})", strike.phase, "", "everything", algorithm, seconds, same=True))

    asyncio.run(asyncio.wait_for(scenario(), LIMIT))
