"""An emulation that is held open: broker, coordinator and agents for as long as the context lasts."""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from coordinator.journal import Status
from coordinator.status import RunStatus
from device_agent.footprint import pss
from edgepfl.bundle import Bundle, pack
from edgepfl.errors import BusError, ConfigError, RunError
from simulators.broker import BrokerHandle, open_broker
from simulators.coordination import Coordination
from simulators.datasets import FleetData
from simulators.emulation.cast import Call, Cast, call
from simulators.emulation.chronicle import Chronicle
from simulators.emulation.gear import runtimes_of
from simulators.emulation.inflicting import meant
from simulators.emulation.outcome import Fleetwide, Journalled, report_of, together
from simulators.emulation.report import EmulationReport, Told
from simulators.emulation.scenario import Fault, Scenario
from simulators.emulation.sightings import Sightings
from simulators.emulation.virtually import emulate_virtually
from simulators.emulation.work import bundle_of, config_of, data_of
from simulators.emulation.world import FLEET, World
from simulators.faults.proxy import endpoint

PATIENCE = 600.0
"""Seconds that :meth:`Emulation.wait_for` waits for another round, unless told otherwise."""
SETTLING = 15.0
"""Seconds in which devices have to learn, after the run's end, what became of their last reports."""
_ANSWER = 10.0  # seconds in which a broker answers
_LOOK = 0.05  # seconds between two looks at what the devices know


def _nothing(_: RunStatus) -> None:
    pass


@dataclass(frozen=True)
class Given:
    """What exists already and need not be made.

    Attributes:
        broker: running; None: as the scenario says.
        data: the fleet's; None: as the scenario says.
        bundle: likewise.
        speedup: by how much the emulation's time (lives, links, speeds) is faster than the wall's; the run's own
            deadlines are of the wall's.
        fleet: its name, which emulations that share a broker may not share; empty: one that no other has.
    """

    broker: BrokerHandle | None = None
    data: FleetData | None = None
    bundle: Bundle | None = None
    speedup: float = 1.0
    fleet: str = ""


class Emulation:
    """A scenario, held open: entering it starts broker, coordinator and agents; leaving it ends them all.

    Args:
        scenario: what to emulate; its ``time`` must be "real".
        folder: an empty directory for settings, logs and state.
        given: what exists already.
        see: told of every change of the run.
        chosen: the devices that this process hosts, of all; other processes have the rest.
    """

    def __init__(
        self,
        scenario: Scenario,
        folder: Path,
        *,
        given: Given = Given(),
        see: Callable[[RunStatus], None] = _nothing,
        chosen: Callable[[tuple[str, ...]], tuple[str, ...]] = lambda names: names,
    ) -> None:
        if scenario.time != "real":
            raise ConfigError("it is of virtual time", where=scenario.name, remedy="Use emulate(), or time = 'real'")
        self.scenario = scenario
        self.folder = folder
        self._given = given
        self._see = see
        self._chosen = chosen
        self._seen = Sightings()
        self._stack = AsyncExitStack()
        self._run = ""
        self._changed = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self._pss: dict[str, float] = {}
        self._devices: tuple[str, ...] = ()
        self.others: tuple[Fleetwide, ...] = ()
        """What the devices of other processes give to the report."""
        self._bundle: Bundle
        self._cast: Cast
        self._coordination: Coordination

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices' names, in their order."""
        return self._devices

    @property
    def url(self) -> str:
        """The broker's."""
        return self._world.broker.url

    @property
    def run(self) -> str:
        """The run's id, once it is started."""
        return self._run

    @property
    def status(self) -> RunStatus | None:
        """The last that was heard of the run."""
        return self._seen.last

    @property
    def ended(self) -> bool:
        """Whether the run is over."""
        return self._seen.last is not None and self._seen.last.status != Status.RUNNING

    async def start(self) -> str:
        """Start the run, and the clock of the faults; its id.

        Raises:
            RunError: it runs already, or the coordinator says why it cannot.
        """
        if self._run:
            raise RunError("it is started already", where=f"run {self._run}")
        await self._world.fleet.arrived()
        file = self.folder / "emulation.bundle"
        file.write_bytes(pack(self._bundle))
        self._run = await self._coordination.start(file, config_of(self.scenario))
        self._following = asyncio.get_running_loop().create_task(self._follow(), name=f"follow {self._run}")
        self._cast.begin()
        return self._run

    async def wait_for(self, round_: int, patience: float = PATIENCE) -> RunStatus:
        """Wait until a round is committed, or the run has ended.

        Args:
            round_: its number; the run's training rounds and one more are all.
            patience: seconds in which another round must be committed each time.

        Raises:
            RunError: nothing was committed for so long, or one of our processes ended by itself.
        """
        return await self._until(lambda: self._committed >= round_ or self.ended, patience)

    async def finish(self, patience: float = PATIENCE) -> EmulationReport:
        """Wait until the run has ended and every device knows what became of its last report; what came of it.

        Raises:
            RunError: as :meth:`wait_for`.
        """
        if not self._run:
            await self.start()
        await self._until(lambda: self.ended, patience)
        deadline = time.monotonic() + SETTLING
        while self._cast.pending(self._run) and time.monotonic() < deadline:  # noqa: ASYNC110  many machines' states: no event
            await asyncio.sleep(_LOOK)
        self._measure()
        return self.report()

    async def stop(self) -> None:
        """End the run before its time."""
        await self._coordination.stop(self._run)
        await self._until(lambda: self.ended, PATIENCE)

    def report(self) -> EmulationReport:
        """What came of it so far."""
        journalled = Journalled()
        if self._run:
            with self._coordination.journal() as journal:
                journalled = Journalled.of(journal, self._run)
        return report_of(
            self.scenario,
            self._seen,
            journalled,
            together(self._cast.share(self._run), *self.others),
            parameters=sum(each.nbytes for each in self._bundle.model.values()),
            broker=self._world.broker.name,
            pss_mib=self._pss,
            model=self._bundle.plan.title or self.scenario.work.model,
        )

    def story(self, device: str) -> tuple[Told, ...]:
        """What a device went through so far."""
        return self._chronicle.story(device)

    async def kill(self, device: str) -> None:
        """Cut a device's power: nothing of it is said or written any more."""
        await self._world.power_off(device)

    async def revive(self, device: str) -> None:
        """Give a device its power back: it starts from what its storage holds."""
        await self._world.power_on(device)

    async def cut(self, device: str) -> None:
        """Cut a device's connection, once."""
        self._world.cut(device)

    async def inflict(self, fault: Fault) -> None:
        """Carry out a fault now, whatever it says of its time.

        Raises:
            ConfigError: it names a device that there is not, or one whose link cannot be tampered with.
        """
        self._cast.faults.inflict(fault, meant(fault, self._devices, self.scenario.seed, len(self.scenario.faults)))
        await asyncio.sleep(0)
        self._cast.faults.check()

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    # Inside.

    async def _open(self) -> None:
        scenario, given = self.scenario, self._given
        data = await asyncio.to_thread(data_of, scenario) if given.data is None else given.data
        whom = call(scenario, data, self._chosen, given.speedup)
        self._devices = whom.devices
        self._bundle = await self._made(data, whom) if given.bundle is None else given.bundle
        broker = given.broker or self._stack.enter_context(broker_of(scenario.broker))
        self.folder.mkdir(parents=True, exist_ok=True)
        self._coordination = Coordination(broker.url, given.fleet or fleet_on(scenario.broker), self.folder)
        self._cast = Cast(scenario, whom, broker, self._coordination, self.folder, given.speedup)
        await self._cast.open(self._stack)
        self._stack.push_async_callback(self._close)

    async def _made(self, data: FleetData, whom: Call) -> Bundle:
        return await asyncio.to_thread(bundle_of, self.scenario, data, runtimes_of(whom.lives))

    async def _close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait({self._following})

    @property
    def _world(self) -> World:
        return self._cast.world

    @property
    def _chronicle(self) -> Chronicle:
        return self._world.chronicle

    @property
    def _committed(self) -> int:
        return self._seen.last.round if self._seen.last is not None else 0

    async def _follow(self) -> None:
        async for status in self._coordination.follow(self._run):
            before = self._committed
            self._seen.see(status)
            if status.round != before:
                self._cast.faults.committed(before, status.round)
                self._measure()
            self._see(status)
            self._changed.set()

    async def _until(self, reached: Callable[[], bool], patience: float) -> RunStatus:
        """Wait for a state of the run, as long as it goes on."""
        committed, deadline = self._committed, time.monotonic() + patience
        while True:
            if reached() and self._seen.last is not None:
                return self._seen.last
            self._check()
            if self._committed != committed:
                committed, deadline = self._committed, time.monotonic() + patience
            if time.monotonic() > deadline:
                waits = self._seen.last.waiting if self._seen.last is not None else "nothing was heard of it"
                raise RunError(f"no round was committed for {patience:.0f} s: {waits}", where=f"run {self._run}")
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), 1.0)

    def _check(self) -> None:
        """Look whether something ended that should not."""
        if self._following is None:
            raise RunError("it is not started", where=self.scenario.name, remedy="Call start() first")
        if self._following.done() and not self.ended:
            self._following.result()
        self._cast.check()

    def _measure(self) -> None:
        """Note what each process would give back if it ended."""
        process = self._coordination.process
        numbers = {"fleet": os.getpid(), "coordinator": process.process, "broker": self._world.broker.process}
        if self.ended:
            gc.collect()
        for name, number in numbers.items():
            if number is not None and (found := pss(number)) is not None:
                self._pss[name] = max(self._pss.get(name, 0.0), found / 2**20)


def fleet_on(broker: str) -> str:
    """A fleet's name, by what a scenario says of its broker: where others may be, it is one that no other has."""
    return f"{FLEET}-{secrets.token_hex(4)}" if "://" in broker else FLEET


def broker_of(words: str) -> BrokerHandle:
    """The broker that a scenario names.

    Raises:
        ConfigError: it names none.
        BusError: nobody answers there, or none can be started.
    """
    if "://" in words:
        _call(words)
        return open_broker(words)
    match words:
        case "auto" | "mosquitto" | "iotcore":
            return open_broker(kind=words)
        case _:
            raise ConfigError(
                f"there is no broker {words!r}", where="broker", remedy="Say auto, mosquitto, iotcore or mqtt://HOST"
            )


def _call(url: str) -> None:
    """See that somebody answers: agents would try again for ever."""
    try:
        socket.create_connection(endpoint(url), timeout=_ANSWER).close()
    except OSError as error:
        raise BusError(f"no broker answers ({error})", where=url, remedy="Start it, or leave out --broker") from error


def emulate(
    scenario: Scenario,
    folder: Path,
    *,
    given: Given = Given(),
    see: Callable[[RunStatus], None] = _nothing,
) -> EmulationReport:
    """Carry a scenario out from beginning to end, in real or in virtual time as it says.

    Raises:
        ConfigError: the scenario asks for what does not exist.
        BusError: there is no broker.
        RunError: one of our processes ended by itself.
    """
    if scenario.time == "virtual":
        return emulate_virtually(scenario, folder, given.data, given.bundle, see)
    return asyncio.run(_emulated(scenario, folder, given, see))


async def _emulated(
    scenario: Scenario, folder: Path, given: Given, see: Callable[[RunStatus], None]
) -> EmulationReport:
    async with Emulation(scenario, folder, given=given, see=see) as emulation:
        return await emulation.finish()
