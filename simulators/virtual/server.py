"""The real coordinator in a simulation, which can be killed and started again on its state directory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from coordinator.checkpoint import state_in
from coordinator.config import RunConfig
from coordinator.journal import Result, RoundCost
from coordinator.service import Coordinator
from coordinator.status import RunStatus
from coordinator.updater import numpy_of
from edgepfl.bus.loopback import LoopbackBus
from edgepfl.errors import EdgepflError
from edgepfl.seeds import generator
from edgepfl.tree import Trees
from simulators.clock import Inline
from simulators.virtual.machine import World

_READY = 0.01  # seconds between looks whether it is connected


class Server:
    """The coordinator of a simulation.

    Args:
        world: around it.
        state: its directory.
    """

    def __init__(self, world: World, state: Path) -> None:
        self._world = world
        self._state = state
        self._loop = asyncio.get_running_loop()
        self._starts = 0
        self._service: Coordinator
        self._bus: LoopbackBus
        self._serving: asyncio.Task[None] | None = None
        self.refused: dict[str, int] = {}

    @property
    def up(self) -> bool:
        """Whether it runs."""
        return self._serving is not None

    def start(self) -> None:
        """Start it on what its directory has."""
        if self._serving is not None:
            return
        self._starts += 1
        draws = generator(self._world.seed, "coordinator", self._starts)
        self._bus = LoopbackBus(self._world.broker, "coordinator")
        self._service = Coordinator(
            self._world.fleet,
            self._bus,
            self._state,
            clock=self._loop.time,
            worker=Inline(),
            tick=self._world.settings.tick,
            draw=lambda bits: int(draws.integers(1 << (bits - 1), 1 << bits)),  # always as long on the wire
        )
        self._serving = self._loop.create_task(self._service.run(), name="coordinator")
        self._serving.add_done_callback(self._ended)

    async def kill(self) -> None:
        """End it without a goodbye."""
        serving, self._serving = self._serving, None
        if serving is None:
            return
        self._world.broker.detach(self._bus, None)
        serving.cancel()
        await asyncio.wait({serving})

    async def begin(self, config: RunConfig, bundle: bytes) -> str:
        """Begin a run; its id."""
        await asyncio.sleep(_READY)  # it connects at once
        return self._service.start_run(config, bundle)

    def running(self) -> bool:
        """Whether a run goes on; asked only while it is :attr:`up`."""
        return self._service.journal.running() is not None

    def status(self, run: str) -> RunStatus:
        """Where a run stands."""
        return self._service.status(run, detailed=False)

    def results(self, run: str) -> tuple[tuple[Result, ...], Mapping[int, RoundCost]]:
        """What every accepted report said, and what each committed round cost."""
        return self._service.journal.results(run), self._service.journal.costs(run)

    def quarantined(self, run: str) -> tuple[str, ...]:
        """Devices that were left out after failures."""
        return tuple(device for device, each in self._service.journal.conduct(run).items() if each.times)

    def state(self, run: str) -> Trees:
        """The server's state as NumPy trees."""
        checkpoint = self._service.journal.checkpoint(run)
        return numpy_of(state_in(self._service.vault.private, checkpoint))

    def _ended(self, serving: asyncio.Task[None]) -> None:
        if serving.cancelled():
            return
        error = serving.exception()
        if serving is self._serving or not isinstance(error, EdgepflError):
            self._world.fail(error or RuntimeError("the coordinator has ended"))
