"""A whole system on one machine: broker, coordinator process, one agent process and a fleet of agents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from coordinator import asking
from coordinator.config import RunConfig
from coordinator.journal import Journal, Result, RoundCost, Status
from coordinator.status import RunStatus
from device_agent.data import Examples
from edgepfl.bus import Traffic
from edgepfl.errors import RunError
from simulators.broker import open_broker
from simulators.fleet import AgentFleet
from simulators.processes import Command

FLEET = "demo"
_AGAIN = 0.1  # seconds between attempts to reach a coordinator that is starting
_ATTEMPTS = 600


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
        self._state = folder / "coordinator"
        self.coordinator = Command(
            ["coordinator", "--config", str(folder / "coordinator.toml")], folder / "coordinator.log"
        )
        self.agent = Command(["agent", "--config", str(folder / "agent.toml")], folder / "agent.log")

    def __enter__(self) -> Self:
        broker = self._stack.enter_context(open_broker(self._given or None))
        self.broker = broker.name
        self._url = broker.url
        self._write_settings()
        self._stack.enter_context(self.coordinator)
        self._stack.enter_context(self.agent)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

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
        run = await self._start(bundle, config)
        traffic: dict[int, Traffic] = {}
        last: RunStatus | None = None
        async for status in self._follow(run):
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
        journal = Journal(self._state / "journal.db")
        try:
            return Trained(last, journal.results(run), journal.costs(run), traffic)
        finally:
            journal.close()

    async def _start(self, bundle: Path, config: RunConfig) -> str:
        request = asking.Request("start", bundle=str(bundle), config=config)
        for _ in range(_ATTEMPTS):
            self.coordinator.check()
            try:
                async for answer in asking.ask(self._state, request):
                    return str(answer.ok)
            except RunError as error:
                if not isinstance(error.__cause__, OSError):  # it answered, and said what is wrong
                    raise
            await asyncio.sleep(_AGAIN)
        raise RunError("the coordinator does not answer", where=str(self._state))

    async def _follow(self, run: str) -> AsyncIterator[RunStatus]:
        """Each status of the run until its end, over restarts of the coordinator."""
        while True:
            try:
                async for answer in asking.ask(self._state, asking.Request("watch", run=run)):
                    if isinstance(answer.ok, RunStatus):
                        yield answer.ok
                        if answer.ok.status != Status.RUNNING:
                            return
            except (RunError, ConnectionError) as error:
                if isinstance(error, RunError) and not isinstance(error.__cause__, OSError):
                    raise
            self.coordinator.check()
            await asyncio.sleep(_AGAIN)

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
        (self.folder / "coordinator.toml").write_text(
            f'fleet = "{FLEET}"\nstate = "coordinator"\n{broker}', encoding="utf-8"
        )
        (self.folder / "agent.toml").write_text(
            f'device = "{name}"\nfleet = "{FLEET}"\nstate = "agent"\n{broker}[data]\nsource = "agent.npz"\n',
            encoding="utf-8",
        )
        self._state.mkdir(parents=True, exist_ok=True)
