"""Everything that takes part in a simulation, and the order in which it is begun, told and ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from coordinator.config import RunConfig
from device_agent.config import RuntimeSettings
from device_agent.runners.choice import choose
from device_agent.work import Workshop
from edgepfl.bundle import Bundle, pack
from edgepfl.bus.loopback import LoopbackBroker
from simulators.clock import ahead
from simulators.profiles import Happening, Kind
from simulators.profiles.profile import Runtime
from simulators.virtual.log import EventLog
from simulators.virtual.machine import Machine, World
from simulators.virtual.pace import PacedWorkshop
from simulators.virtual.records import Incident, Settings, Simulated, VirtualDevice
from simulators.virtual.server import Server
from simulators.virtual.tap import COORDINATOR, Tap

FLEET = "virtual"
_QUIET = frozenset({Kind.USE})  # far too often to tell
_SENSED = frozenset({Kind.CHARGING, Kind.LINK, Kind.ONLINE, Kind.CLOCK, Kind.ROOM, Kind.FULL})


class Scene:
    """A fleet and its coordinator.

    Args:
        devices: by name.
        seed: of everything random.
        until: virtual seconds at which it ends at the latest.
        settings: how it is simulated.
        folder: of the state directories.
        see: told of each committed round: virtual seconds, and its number.
    """

    def __init__(
        self,
        devices: Mapping[str, VirtualDevice],
        seed: int,
        until: float,
        settings: Settings,
        folder: Path,
        see: Callable[[float, int], None] | None = None,
    ) -> None:
        self._devices = devices
        self._seed, self._until, self._settings = seed, until, settings
        self._folder = folder
        self._see = see
        self._machines: dict[str, Machine] = {}
        self._incidents: set[asyncio.Task[None]] = set()
        self._broker = LoopbackBroker()
        self._begun = False  # the run
        self._loop: asyncio.AbstractEventLoop
        self._log: EventLog
        self._server: Server
        self._over: asyncio.Future[float]

    async def play(
        self, bundle: Bundle, config: RunConfig, incidents: Sequence[Incident], log: Path | None
    ) -> Simulated:
        """From the start to the end; in the event loop of a virtual clock."""
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(lambda _, context: self._fail(_error_in(context)))
        self._log = EventLog(self._loop.time, log, self._folder)
        self._over = self._loop.create_future()
        world = World(
            self._broker,
            FLEET,
            self._seed,
            self._folder / "devices",
            cache(self._workshop),
            self._settings,
            self._say,
            self._fail,
        )
        self._server = Server(world, self._folder / "coordinator")
        tap = Tap(self._broker, FLEET, self._say, lambda: self._loop.call_soon(self._look))
        await tap.start()
        try:
            self._begin(world, incidents)
            run = await self._server.begin(config, pack(bundle))
            self._begun = True
            seconds = await self._over
            await asyncio.sleep(self._settings.after)
            return self._told(run, seconds)
        finally:
            await self._end()

    def _begin(self, world: World, incidents: Sequence[Incident]) -> None:
        self._say(COORDINATOR, "start", 0, f"seed {self._seed}, {len(self._devices)} devices")
        self._server.start()
        for name, device in sorted(self._devices.items()):
            machine = self._machines[name] = Machine(name, device, world, self._until)
            self._live(machine, machine.life.happenings(0.0, self._until))
        for each in sorted(incidents, key=lambda one: one.at):
            self._loop.call_at(each.at, self._strike, each)
        self._loop.call_at(self._until, self._finish)

    def _told(self, run: str, seconds: float) -> Simulated:
        self._server.start()  # it may have been killed
        results, costs = self._server.results(run)
        return Simulated(
            run=run,
            seconds=seconds,
            status=self._server.status(run),
            results=results,
            costs=costs,
            traffic={name: machine.traffic for name, machine in self._machines.items()},
            joules={name: machine.spent.total for name, machine in self._machines.items()},
            state=self._server.state(run),
            log=tuple(self._log.entries),
            quarantined=self._server.quarantined(run),
        )

    async def _end(self) -> None:
        for each in self._incidents:
            each.cancel()
        self._log.mute()
        await self._server.kill()
        for machine in self._machines.values():
            await machine.close()
        self._log.close()

    # What happens.

    def _live(self, machine: Machine, life: Iterator[Happening]) -> None:
        """Wait for what happens to a device next."""
        happening = next(life, None)
        if happening is not None:
            self._loop.call_at(happening.at, self._happen, machine, happening, life)

    def _happen(self, machine: Machine, happening: Happening, life: Iterator[Happening]) -> None:
        now = happening.now
        if happening.kind not in _QUIET:
            self._say(machine.name, happening.kind.value, 0, "")
        machine.live(now)
        if happening.kind in _SENSED:
            machine.sense()
        self._live(machine, life)

    def _strike(self, incident: Incident) -> None:
        work = self._loop.create_task(self._struck(incident), name=f"incident {incident.kind}")
        self._incidents.add(work)
        work.add_done_callback(self._recovered)

    def _recovered(self, work: asyncio.Task[None]) -> None:
        self._incidents.discard(work)
        if not work.cancelled() and (error := work.exception()) is not None:
            self._fail(error)

    async def _struck(self, incident: Incident) -> None:
        """Let something go wrong, and after a while go right again."""
        machine = self._machines.get(incident.device)
        self._say(incident.device or incident.kind, f"incident: {incident.kind}", 0, "")
        if machine is not None:
            await _befall(machine, incident)
        elif incident.kind == "broker":
            self._broker.stop()
            await asyncio.sleep(incident.seconds)
            self._broker.start()
        else:
            await self._server.kill()
            await asyncio.sleep(incident.seconds)
            self._server.start()
        self._say(incident.device or incident.kind, f"incident over: {incident.kind}", 0, "")

    # What comes of it.

    def _say(self, who: str, what: str, round_: int, detail: str) -> None:
        """Log an event; work says so in threads, while the event loop stands still."""
        self._log.say(who, what, round_, detail)
        if what == "work":
            self._machines[who].begins()
        elif what == "committed" and self._see is not None:
            self._see(self._loop.time(), round_)

    def _look(self) -> None:
        """See whether the run has ended."""
        if self._begun and self._server.up and not self._server.running():
            self._finish()

    def _finish(self) -> None:
        if not self._over.done():
            self._say(COORDINATOR, "end", 0, "")
            self._over.set_result(self._loop.time())

    def _fail(self, error: BaseException) -> None:
        if not self._over.done():
            self._over.set_exception(error)

    def _workshop(self, runtime: Runtime) -> Workshop:
        choice = choose(RuntimeSettings(kind=runtime))
        return PacedWorkshop(
            choice.runner,
            runtime=choice.runtime,
            cost=self._settings.cost,
            clock=lambda: self._loop.time() + ahead(),
            say=self._say,
            outcome=lambda device, *what: self._machines[device].ends(*what),
            steps=self._settings.steps,
        )


def _error_in(context: Mapping[str, Any]) -> BaseException:
    """What a callback of the event loop raised: it has no caller."""
    error = context.get("exception")
    return error if isinstance(error, BaseException) else RuntimeError(str(context.get("message")))


async def _befall(machine: Machine, incident: Incident) -> None:
    """Something goes wrong with one device, and is over after a while."""
    kind = incident.kind
    if kind == "silence" or (kind == "cut" and not incident.seconds):
        (machine.silence if kind == "silence" else machine.cut)()
        await asyncio.sleep(incident.seconds)
        return
    machine.strike(kind)
    await asyncio.sleep(incident.seconds)
    machine.recover(kind)
