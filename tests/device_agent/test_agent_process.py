"""The agent as a process: ended in order, by force, and because another one has its name."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from _bundles import ditto_bundle
from _hand import DEVICE, FLEET, Hand, examples, play

from device_agent.runners.onnx import OnnxRunner
from device_agent.work import Materials, Product, Workshop
from edgepfl.bundle import Bundle
from edgepfl.bus.loopback import LoopbackBroker
from edgepfl.bus.mqtt import MqttBus, MqttSettings
from edgepfl.wire import Hello, Progress, Refused, Report, Task
from simulators.broker import BrokerHandle, open_broker

LONG = 6_000  # steps: seconds of work
SLOW = 60.0  # seconds until a process that was told to must have ended


@pytest.fixture
def ditto() -> Bundle:
    """Exported once for all tests."""
    return ditto_bundle()


class Process:
    """``edgepfl agent``, started and ended again and again."""

    def __init__(self, broker: BrokerHandle, folder: Path, checkpoint_seconds: float) -> None:
        data = examples()
        assert isinstance(data.train_x, np.ndarray)
        assert isinstance(data.test_x, np.ndarray)
        arrays = {"train_x": data.train_x, "train_y": data.train_y, "test_x": data.test_x, "test_y": data.test_y}
        np.savez(folder / "data.npz", **arrays)  # type: ignore[arg-type]  # numpy's stub mixes them with its own option
        self._settings = folder / "agent.toml"
        self._settings.write_text(
            f'device = "{DEVICE}"\nfleet = "{FLEET}"\n[broker]\nurl = "{broker.url}"\n[data]\nsource = "data.npz"\n'
            f"[work]\ncheckpoint_seconds = {checkpoint_seconds}\n",
            encoding="utf-8",
        )
        self._log = folder / "agent.log"

    @property
    def said(self) -> str:
        """Everything that it logged."""
        return self._log.read_text(encoding="utf-8")

    def start(self) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "edgepfl", "agent", "--config", str(self._settings)]
        with self._log.open("ab") as log:
            return subprocess.Popen(words, stderr=log, stdout=log)


async def ended(process: subprocess.Popen[bytes]) -> int:
    """Its exit status, when it has one; until then our own messages go out."""
    return await asyncio.to_thread(process.wait, SLOW)


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerHandle]:
    """One is enough: what is tested does not depend on it."""
    with open_broker() as handle:
        yield handle


@asynccontextmanager
async def coordinating(broker: BrokerHandle, folder: Path, bundle: Bundle) -> AsyncIterator[Hand]:
    one = Hand(LoopbackBroker(), folder / "coordinator", bundle)
    one.bus = MqttBus(MqttSettings(broker.url, "coordinator"))  # type: ignore[assignment]  # any bus will do
    await one.start()
    try:
        yield one
    finally:
        await one.bus.stop()


def undisturbed(coordinator: Hand, task: Task) -> Product:
    """What the task gives when nothing disturbs it."""
    offered = coordinator.offered
    materials = Materials(
        DEVICE, examples(), lambda: offered.read(task.bundle.sha256), lambda: offered.read(task.download.sha256), None
    )
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(Workshop(OnnxRunner).perform, task, materials, lambda _: None).result()


@pytest.mark.parametrize(
    ("how", "checkpoint_seconds"), [(signal.SIGKILL, 0.05), (signal.SIGTERM, 3600)], ids=["by force", "in order"]
)
def test_a_process_that_is_ended_in_the_middle_of_a_round_goes_on_there(
    tmp_path: Path, broker: BrokerHandle, ditto: Bundle, how: signal.Signals, checkpoint_seconds: float
) -> None:
    async def scenario() -> None:
        process = Process(broker, tmp_path, checkpoint_seconds)
        async with coordinating(broker, tmp_path, ditto) as coordinator:
            task = coordinator.task(steps=LONG, heartbeat=0.1, evaluate=True)
            expected = undisturbed(coordinator, task)
            first = process.start()
            await coordinator.hear(Hello)
            coordinator.say(task)
            while (before := (await coordinator.hear(Progress)).steps) < LONG // 50:
                pass
            first.send_signal(how)
            assert await ended(first) == (0 if how is signal.SIGTERM else -how)
            coordinator.backlog.clear()
            second = process.start()
            await coordinator.hear(Hello)
            coordinator.say(task)
            report = await coordinator.hear(Report)
            assert (report.steps, report.kept, report.metrics) == (LONG, expected.kept, dict(expected.metrics))
            assert report.upload is not None
            assert await coordinator.fetch(report.upload) == expected.upload
            [line] = [line for line in process.said.splitlines() if "going on at step" in line]
            step = int(line.partition("going on at step ")[2].split()[0])
            assert (step >= before) if how is signal.SIGTERM else (step > 0)
            second.terminate()
            assert await ended(second) == 0
            assert not (tmp_path / "state" / "checkpoint").exists()

    play(scenario())


def test_a_process_that_is_refused_ends_with_a_status_of_its_own(
    tmp_path: Path, broker: BrokerHandle, ditto: Bundle
) -> None:
    async def scenario() -> None:
        process = Process(broker, tmp_path, 0)
        async with coordinating(broker, tmp_path, ditto) as coordinator:
            agent = process.start()
            hello = await coordinator.hear(Hello)
            assert isinstance(hello.identity, int)
            assert isinstance(hello.incarnation, int)
            coordinator.say(Refused(DEVICE, hello.identity, hello.incarnation + 1, "the other one is meant"))
            coordinator.say(Refused(DEVICE, hello.identity, hello.incarnation, "two agents have this name"))
            assert await ended(agent) == 3
            assert "another agent with this name was told to end" in process.said
            last = process.said.splitlines()[-1]
            assert last.startswith(f"edgepfl agent: device {DEVICE}: two agents have this name. Give each device")

    play(scenario())
