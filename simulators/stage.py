"""A whole system on one machine: broker, coordinator process, one agent process and a fleet of agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from coordinator.config import RunConfig
from coordinator.journal import Result, RoundCost, Status
from coordinator.status import RunStatus
from device_agent.data import Examples
from edgepfl.bus import Traffic
from edgepfl.errors import RunError
from simulators.broker import open_broker
from simulators.coordination import Coordination
from simulators.fleet import AgentFleet
from simulators.processes import Command

FLEET = "demo"


@dataclass(frozen=True)
class Trained:
    """A run that ended.

    Attributes:
        status: the last one.
        results: what every accepted report said.
        costs: of each committed round, at the coordinator.
        traffic: at the sockets of the agents in the fleet, after each committed round, as far as it was seen.
    """

    status: RunStatus
    results: tuple[Result, ...]
    costs: Mapping[int, RoundCost]
    traffic: Mapping[int, Traffic]


class Stage:
    """Everything that a run needs, for as long as the context lasts.

    The first device's agent is a process of its own, so that its memory can be measured; the others share this one.

    Args:
        devices: each device's data.
        folder: for settings, logs and state.
        broker: URL of a broker to use; empty starts a private one.
        threads: tasks that the fleet works on at once.
    """

    def __init__(self, devices: Mapping[str, Examples], folder: Path, *, broker: str = "", threads: int = 2) -> None:
        self._devices = dict(devices)
        self.folder = folder
        self._stack = ExitStack()
        self._given = broker
        self._threads = threads
        self._coordination: Coordination  # once there is a broker
        self.agent = Command(["agent", "--config", str(folder / "agent.toml")], folder / "agent.log")

    def __enter__(self) -> Self:
        broker = self._stack.enter_context(open_broker(self._given or None))
        self.broker = broker.name
        self._url = broker.url
        self._write_settings()
        self._coordination = self._stack.enter_context(Coordination(broker.url, FLEET, self.folder))
        self._stack.enter_context(self.agent)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    @property
    def coordinator(self) -> Command:
        """The coordinator's process, once this is entered."""
        return self._coordination.process

    def fleet(self) -> AgentFleet:
        """The agents of all devices but the first, to be entered in the event loop."""
        others = dict(list(self._devices.items())[1:])
        return AgentFleet(self._url, FLEET, others, self.folder / "fleet", threads=self._threads)

    async def train(
        self, fleet: AgentFleet, bundle: Path, config: RunConfig, see: Callable[[RunStatus], None]
    ) -> Trained:
        """Run to the end; ``see`` is told of every change.

        Raises:
            RunError: the run failed, or one of our processes ended by itself.
        """
        run = await self._coordination.start(bundle, config)
        traffic: dict[int, Traffic] = {}
        last: RunStatus | None = None
        async for status in self._coordination.follow(run):
            fleet.check()
            self.agent.check()
            if last is None or status.round != last.round:
                traffic[status.round] = fleet.traffic
                self.coordinator.measure()
                self.agent.measure()
            last = status
            see(status)
        if last is None or last.status != Status.DONE:
            raise RunError(f"it ended as {last and last.status}: {last and last.why}", where=f"run {run}")
        with self._coordination.journal() as journal:
            return Trained(last, journal.results(run), journal.costs(run), traffic)

    def _write_settings(self) -> None:
        name, examples = next(iter(self._devices.items()))
        np.savez(
            self.folder / "agent.npz",
            train_x=examples.train_x,
            train_y=examples.train_y,
            test_x=examples.test_x,
            test_y=examples.test_y,
        )
        broker = f'[broker]\nurl = "{self._url}"\n'
        (self.folder / "agent.toml").write_text(
            f'device = "{name}"\nfleet = "{FLEET}"\nstate = "agent"\n{broker}[data]\nsource = "agent.npz"\n',
            encoding="utf-8",
        )
