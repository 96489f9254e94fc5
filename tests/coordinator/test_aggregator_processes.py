"""Real ranks, started by torchrun and killed in the middle of rounds: the same model as the coordinator's own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from _aggregating import aggregating, remotely, store
from _plans import bundle_of
from _scripted import FLEET, TOPICS, Honest, config, coordinating, finished, honest_fleet, serving, watched

from coordinator.orders import Aggregation
from coordinator.service import Coordinator
from coordinator.storage.directory import DirectoryDepot
from edgepfl import wire
from edgepfl.bundle import Bundle, pack
from edgepfl.bus import Arrived
from edgepfl.bus.loopback import LoopbackBroker
from edgepfl.bus.mqtt import MqttBus, MqttSettings
from edgepfl.plan import Plan
from edgepfl.wire import Order, Report, Task
from simulators.broker import BrokerHandle

PATIENCE = 120.0  # seconds; far more than anything here takes
SETTINGS = config(rounds=3, lease=1e6)


class Gated(Honest):
    """A device on a real broker that reports on a round when it may."""

    def __init__(self, url: str, name: str, plan: Plan, gates: dict[int, asyncio.Event]) -> None:
        super().__init__(LoopbackBroker(), name, plan)
        self.bus = MqttBus(MqttSettings(url, name))  # type: ignore[assignment]  # it does the same
        for topic_filter in TOPICS.for_device(name):
            self.bus.subscribe(topic_filter)
        self._gates = gates
        self._sending: list[asyncio.Future[None]] = []

    def _send_report(self) -> None:
        if self._last is not None:
            self._sending.append(asyncio.ensure_future(self._sent(self._last)))

    async def _sent(self, report: Report) -> None:
        await self._gates[report.round].wait()
        self.say(report)


@contextmanager
def started(folder: Path, *launcher: str) -> Iterator[psutil.Process]:
    """An aggregator; whatever is left of it at the end is killed."""
    words = [sys.executable, "-m", *launcher, "edgepfl", "aggregator", "--config", str(folder / "aggregator.toml")]
    with (folder / "aggregator.log").open("ab") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
    found = psutil.Process(process.pid)
    try:
        yield found
    finally:
        kill(*family(found))
        process.wait()


def torchrun() -> tuple[str, ...]:
    return "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=3", "-m"


def family(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return [process, *process.children(recursive=True)]
    return []


def kill(*processes: psutil.Process) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def rank(process: psutil.Process, number: int) -> psutil.Process:
    """The process of a rank."""
    for child in process.children():
        with suppress(psutil.Error):
            if child.environ().get("RANK") == str(number):
                return child
    raise AssertionError(f"there is no rank {number}")


@asynccontextmanager
async def ears(url: str) -> AsyncIterator[MqttBus]:
    """A bus that hears what coordinator and aggregators say to each other."""
    bus = MqttBus(MqttSettings(url, "ears"))
    bus.subscribe(TOPICS.for_aggregator())
    bus.subscribe(TOPICS.from_aggregator())
    await bus.start()
    try:
        yield bus
    finally:
        await bus.stop()


async def heard(bus: MqttBus, kind: type[wire.Message]) -> None:
    while True:
        event = await bus.receive()
        if isinstance(event, Arrived) and isinstance(wire.decode(event.payload), kind):
            return


async def expected(bundle: Bundle, folder: Path) -> tuple[list[str], str]:
    """The downloads of an undisturbed run in one process, and the state of two ranks after round 2."""
    broker = LoopbackBroker()
    devices = honest_fleet(broker, bundle)
    async with coordinating(broker, folder / "local") as service, serving(*devices):
        await finished(service, service.start_run(SETTINGS, pack(bundle)))
    sent = [task.download.sha256 for task in devices[0].seen if isinstance(task, Task)]
    broker, depot = LoopbackBroker(), store(folder / "threads")
    async with (
        remotely(broker, folder / "threads", depot) as service,
        aggregating(broker, depot, 2),
        serving(*honest_fleet(broker, bundle)),
    ):
        run = service.start_run(SETTINGS, pack(bundle))
        return sent, (await watched(service, run, lambda status: status.round == 2)).state_sha256


@pytest.fixture
def folder(tmp_path: Path, broker: BrokerHandle) -> Path:
    text = f'fleet = "{FLEET}"\nstore = "store"\n[broker]\nurl = "{broker.url}"\n'
    (tmp_path / "aggregator.toml").write_text(text)
    return tmp_path


@asynccontextmanager
async def running(service: Coordinator) -> AsyncIterator[None]:
    task = asyncio.ensure_future(service.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.mark.broker
@pytest.mark.parametrize("broker", ["mosquitto"], indirect=True)
def test_ranks_that_are_killed_in_the_middle_of_rounds(folder: Path, broker: BrokerHandle) -> None:
    """A stopped rank lets the others begin; then it dies, then all die, and then another number of ranks goes on."""

    async def scenario() -> None:
        bundle = bundle_of("feddyn")
        sent, state = await expected(bundle, folder)
        gates = {number: asyncio.Event() for number in (1, 2, 3, 4)}
        gates[4].set()  # the evaluation
        devices = [Gated(broker.url, name, bundle.plan, gates) for name in ("ant", "bee", "cat")]
        bus = MqttBus(MqttSettings(broker.url, "coordinator"))
        service = Coordinator(
            FLEET, bus, folder / "state", aggregation=Aggregation(DirectoryDepot(folder / "store"), 5.0)
        )
        async with running(service), ears(broker.url) as hears, serving(*devices):
            with started(folder, *torchrun()) as agent:
                await heard(hears, wire.Here)
                run = service.start_run(SETTINGS, pack(bundle))
                victim = rank(agent, 1)
                victim.suspend()
                gates[1].set()
                await heard(hears, Order)
                victim.kill()
                await watched(service, run, lambda status: status.round == 1)
                ranks = [rank(agent, 0), rank(agent, 1)]
                assert victim.pid not in {each.pid for each in ranks}
                for each in ranks:
                    each.suspend()
                gates[2].set()
                await heard(hears, Order)
                kill(agent, *ranks)
            with started(folder, *torchrun()):
                after = await watched(service, run, lambda status: status.round == 2)
                assert after.state_sha256 == state
            gates[3].set()
            with started(folder) as alone:
                assert (await finished(service, run)).status == "done"
                alone.send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(alone.wait, PATIENCE) == 0
        assert list(dict.fromkeys(task.download.sha256 for task in devices[0].seen if isinstance(task, Task))) == sent

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))
