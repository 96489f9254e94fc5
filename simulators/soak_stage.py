"""What a soak needs: a broker, a fault proxy before the coordinator, its process, and the fleet in this process."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import psutil

from coordinator.config import RunConfig
from coordinator.status import RunStatus
from device_agent.data import Examples
from device_agent.footprint import pss
from edgepfl.algorithms.fedavg import FedAvg
from edgepfl.bundle import pack
from exporters import zoo
from exporters.build import build
from simulators.broker import BrokerHandle
from simulators.coordination import Coordination
from simulators.faults import FaultProxy
from simulators.fleet import AgentFleet
from simulators.open_files import enough_files
from simulators.soak_measures import MB, Sample

FLEET = "soak"
INPUTS, HIDDEN, CLASSES, BATCH = 64, 256, 10, 8
"""The model: 19,210 parameters, 77 KB, so that every upload goes as a blob."""
_LOOK = 0.1  # seconds between two looks at what the devices know


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
        self._began = time.monotonic()
        self.run = ""

    async def __aenter__(self) -> Self:
        await self.proxy.__aenter__()
        self.coordination = Coordination(self.proxy.url, FLEET, self.folder)
        self.coordination.process.start()
        await self.fleet.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.fleet.__aexit__(kind, error, trace)
        await asyncio.to_thread(self.coordination.__exit__, kind, error, trace)
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
        self.run = await self.coordination.start(bundle, config)
        self._began = time.monotonic()

    async def status(self) -> RunStatus:
        """Where the run stands.

        Raises:
            RunError: the coordinator ended by itself, or does not answer.
        """
        self.fleet.check()
        return await self.coordination.status(self.run)

    async def stop(self, patience: float) -> int:
        """End the run; how many devices do not know after ``patience`` seconds what became of their last report."""
        await self.coordination.stop(self.run)
        deadline = time.monotonic() + patience
        while (behind := self._behind()) and time.monotonic() < deadline:  # noqa: ASYNC110  a machine's state: no event
            await asyncio.sleep(_LOOK)
        return behind

    def counted(self) -> dict[int, int]:
        """How many reports count in each committed round."""
        with self.coordination.journal() as journal:
            return journal.counted(self.run)

    def abandoned(self) -> int:
        """How many attempts came to nothing, by the coordinator's log."""
        log = (self.folder / "coordinator.log").read_text("utf-8", errors="replace")
        return log.count(" abandoned: ")

    def measure(self) -> dict[str, Sample]:
        """The memory of each process that runs."""
        coordinator = self.coordination.process
        numbers = {"coordinator": coordinator.process, "fleet": os.getpid(), "broker": self.broker.process}
        found: dict[str, Sample] = {}
        for name, number in numbers.items():
            proportional = None if number is None else pss(number)
            if number is not None and proportional is not None:
                resident = psutil.Process(number).memory_info().rss
                found[name] = Sample(time.monotonic() - self._began, number, resident / MB, proportional / MB)
        return found

    def _behind(self) -> int:
        return len(self.fleet.pending(self.run))

    def _data(self, seed: int) -> Iterator[tuple[str, Examples]]:
        for number, device in enumerate(self.devices):
            source = np.random.default_rng((seed, number))
            x = source.standard_normal((2 * BATCH, INPUTS), dtype=np.float32)
            yield device, Examples(x, source.integers(0, CLASSES, len(x)), x[:0], np.zeros(0, np.int64))
