"""What a soak needs: a broker, a fault proxy before the coordinator, its process, and the fleet in this process."""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import psutil

from coordinator import asking
from coordinator.config import RunConfig
from coordinator.journal import Journal
from coordinator.status import RunStatus
from device_agent.data import Examples
from device_agent.footprint import pss
from edgepfl.algorithms.fedavg import FedAvg
from edgepfl.bundle import pack
from edgepfl.errors import RunError
from exporters import zoo
from exporters.build import build
from simulators.broker import BrokerHandle
from simulators.faults import FaultProxy
from simulators.fleet import AgentFleet
from simulators.processes import Command
from simulators.soak_measures import MB, Sample

FLEET = "soak"
FILES = 12  # that one emulated device keeps open, at most
INPUTS, HIDDEN, CLASSES, BATCH = 64, 128, 10, 8
"""The model: 9,610 parameters, 38 KB, so that every upload goes as a blob."""
_PATIENCE = 60.0  # seconds until a coordinator has to answer
_AGAIN = 0.1  # seconds between two attempts to reach it


class SoakStage:
    """Everything that a soak needs, for as long as the context lasts.

    Args:
        broker: running.
        folder: for settings, logs and state.
        devices: how many.
        seed: of the proxy and the data.
    """

    def __init__(self, broker: BrokerHandle, folder: Path, *, devices: int, seed: int) -> None:
        enough_files(devices)
        self.broker, self.folder = broker, folder
        self.devices = tuple(f"pi-{number:04d}" for number in range(devices))
        self.proxy = FaultProxy(broker.url, seed=seed)
        self.fleet = AgentFleet(broker.url, FLEET, dict(self._data(seed)), folder / "fleet")
        self.coordinator = Command(
            ["coordinator", "--config", str(folder / "coordinator.toml")], folder / "coordinator.log"
        )
        self._began = time.monotonic()
        self.run = ""

    async def __aenter__(self) -> Self:
        await self.proxy.__aenter__()
        settings = f'fleet = "{FLEET}"\nstate = "coordinator"\n[broker]\nurl = "{self.proxy.url}"\n'
        (self.folder / "coordinator.toml").write_text(settings, encoding="utf-8")
        self._state.mkdir(parents=True, exist_ok=True)
        self.coordinator.start()
        await self.fleet.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.fleet.__aexit__(kind, error, trace)
        await asyncio.to_thread(self.coordinator.__exit__, kind, error, trace)
        await self.proxy.__aexit__(kind, error, trace)

    async def start(self, seed: int) -> None:
        """Begin a run that lasts longer than any soak.

        Raises:
            RunError: the coordinator does not answer.
        """
        bundle = self.folder / "soak.bundle"
        model = zoo.mlp(inputs=INPUTS, hidden=HIDDEN, classes=CLASSES, batch=BATCH)
        bundle.write_bytes(await asyncio.to_thread(lambda: pack(build(FedAvg(), model))))
        everyone = len(self.devices)
        config = RunConfig(
            name="soak", rounds=1 << 30, steps=5, goal=everyone, minimum=everyone, evaluate_every=0, seed=seed
        )
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                answer = await self._ask(asking.Request("start", bundle=str(bundle), config=config))
            except RunError as error:
                if not isinstance(error.__cause__, OSError) or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(_AGAIN)
            else:
                self.run = str(answer.ok)
                self._began = time.monotonic()
                return

    async def status(self) -> RunStatus:
        """Where the run stands.

        Raises:
            RunError: the coordinator ended by itself, or does not answer.
        """
        self.coordinator.check()
        self.fleet.check()
        answer = await self._ask(asking.Request("status", run=self.run))
        if not isinstance(answer.ok, RunStatus):
            raise RunError("it does not say how it is", where=self.run)
        return answer.ok

    async def stop(self, patience: float) -> int:
        """End the run; how many devices do not know after ``patience`` seconds what became of their last report."""
        await self._ask(asking.Request("stop", run=self.run))
        deadline = time.monotonic() + patience
        while (behind := self._behind()) and time.monotonic() < deadline:  # noqa: ASYNC110  a machine's state: no event
            await asyncio.sleep(_AGAIN)
        return behind

    def counted(self) -> dict[int, int]:
        """How many reports count in each committed round."""
        with closing(Journal(self._state / "journal.db")) as journal:
            return journal.counted(self.run)

    def abandoned(self) -> int:
        """How many attempts came to nothing, by the coordinator's log."""
        log = (self.folder / "coordinator.log").read_text("utf-8", errors="replace")
        return log.count(" abandoned: ")

    def measure(self) -> dict[str, Sample]:
        """The memory of each process that runs."""
        numbers = {"coordinator": self.coordinator.process, "fleet": os.getpid(), "broker": self.broker.process}
        found: dict[str, Sample] = {}
        for name, number in numbers.items():
            proportional = None if number is None else pss(number)
            if number is not None and proportional is not None:
                resident = psutil.Process(number).memory_info().rss
                found[name] = Sample(time.monotonic() - self._began, number, resident / MB, proportional / MB)
        return found

    @property
    def _state(self) -> Path:
        return self.folder / "coordinator"

    def _behind(self) -> int:
        return len(self.fleet.pending(self.run))

    async def _ask(self, request: asking.Request) -> asking.Answer:
        async for answer in asking.ask(self._state, request):
            return answer
        raise RunError("the coordinator hung up", where=str(self._state))

    def _data(self, seed: int) -> Iterator[tuple[str, Examples]]:
        for number, device in enumerate(self.devices):
            source = np.random.default_rng((seed, number))
            x = source.standard_normal((2 * BATCH, INPUTS), dtype=np.float32)
            yield device, Examples(x, source.integers(0, CLASSES, len(x)), x[:0], np.zeros(0, np.int64))


def enough_files(devices: int) -> None:
    """Let this process open as many files as its devices need.

    Raises:
        RunError: the system does not allow it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 512 + FILES * devices
    if soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            raise RunError(
                f"{devices} devices need {wanted} open files, and the limit is {hard}",
                where="soak",
                remedy="Raise it (ulimit -Hn), or emulate fewer --devices",
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
