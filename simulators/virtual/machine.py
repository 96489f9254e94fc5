"""A simulated device: the real agent with its real storage, on a machine whose power, network and disk come and go."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from device_agent.conditions_outlook import HOLD
from device_agent.conditions_watch import Uptime
from device_agent.place import Place
from device_agent.service import AgentService, will
from device_agent.work import Workshop
from edgepfl.bus import Traffic
from edgepfl.bus.loopback import LoopbackBroker
from edgepfl.eligibility import Readings
from edgepfl.errors import EdgepflError, IdentityError, StoreError
from edgepfl.seeds import derive, generator
from simulators.clock import Processor
from simulators.faults import Faults
from simulators.profiles import ALWAYS, Activity, Interval, Life, Situation, Spent, Trace, network, slowdown
from simulators.profiles.profile import Runtime
from simulators.virtual.energy import Supply
from simulators.virtual.link import LinkBus
from simulators.virtual.pace import Say
from simulators.virtual.records import Settings, VirtualDevice

AGAIN = 30.0
"""Seconds until whatever keeps an agent running starts one again that could not start."""

_STORED = 1e-3  # seconds in which a result is stored
_MARGIN = 1.0  # seconds: a change must have lasted
_INCARNATION = 40  # bits
_NO_ROOM = 1  # byte: what is there stays, and nothing more comes
_MEMORY = 1024  # MiB of a machine whose profile names no limit


@dataclass(frozen=True)
class World:
    """What all machines of a simulation share.

    Attributes:
        broker: whom they connect to.
        fleet: its name.
        seed: of everything random.
        folder: each machine's state is a directory of it.
        workshops: by runtime.
        settings: how they are simulated.
        say: the event log.
        fail: told of a fault that is not of the simulated world.
    """

    broker: LoopbackBroker
    fleet: str
    seed: int
    folder: Path
    workshops: Callable[[Runtime], Workshop]
    settings: Settings
    say: Say
    fail: Callable[[BaseException], None]


class Machine:
    """One device.

    Args:
        name: its name.
        device: what it is.
        world: around it.
        horizon: seconds for which a device without a trace is there.
    """

    def __init__(self, name: str, device: VirtualDevice, world: World, horizon: float) -> None:
        self.name = name
        self._device = device
        self._world = world
        self._loop = asyncio.get_running_loop()
        always = Trace.of([Interval(0.0, horizon, ALWAYS)], horizon)
        self.life = device.life or Life(device.profile, always, seed=world.seed, device=name)
        self._full = False
        self._struck: Counter[str] = Counter()  # incidents that go on, by kind
        self.network: Faults = network(device.profile)
        self._processor = Processor(slowdown(device.profile), world.settings.quantum, self._idle)
        self._supply = Supply(device.profile, self.life.trace, self._loop, self.settle)
        self._wanted = False  # that it runs
        self._plugged = False
        self._boots = 0
        self._booted_at = 0.0
        self._running: _Running | None = None
        self._busy: asyncio.Task[None] | None = None  # starting or stopping
        self._sensing: asyncio.TimerHandle | None = None
        self._outcome: tuple[int, str] | None = None
        self._before = Traffic()

    # What it is told.

    def live(self, now: Situation) -> None:
        """Be as its life says, except for what incidents that go on have taken away."""
        self.fill(full=now.full or self._struck["full"] > 0)
        self.connect(online=now.online and not self._struck["cut"])
        self.switch(on=now.running and not self._struck["kill"])

    def strike(self, kind: str) -> None:
        """Take its power ("kill"), its network ("cut") or its room ("full") away, whatever its life says meanwhile."""
        self._struck[kind] += 1
        self.live(self.life.at(self._loop.time()))

    def recover(self, kind: str) -> None:
        """One such incident is over."""
        self._struck[kind] -= 1
        self.live(self.life.at(self._loop.time()))

    def switch(self, *, on: bool) -> None:
        """Cut its power, or give it back."""
        self._wanted = on
        self.settle()

    def connect(self, *, online: bool, why: str = "no network") -> None:
        """Take its network away, or give it back."""
        if online == self._plugged:
            return
        self._plugged = online
        if self._running is not None:
            if online:
                self._running.bus.plug()
            else:
                self._running.bus.unplug(why)

    def fill(self, *, full: bool) -> None:
        """Let its disk be full, or have room again."""
        if full != self._full:
            self._full = full
            if self._running is not None:
                self._running.place.limit(_NO_ROOM if full else 0)

    def cut(self) -> None:
        """Lose its connection."""
        if self._running is not None:
            self._running.bus.cut("cut")

    def silence(self) -> None:
        """Let its connection die without a word."""
        if self._running is not None:
            self._running.bus.silence()

    def sense(self) -> None:
        """Something changed that its sensors tell: it looks now, and once more when the change has lasted."""
        if self._sensing is not None:
            self._sensing.cancel()
        if self._running is not None:
            self._running.service.sense()
            self._sensing = self._loop.call_later(HOLD + _MARGIN, self._again)

    def _again(self) -> None:
        if self._running is not None:
            self._running.service.sense()

    def settle(self) -> None:
        """Let it run exactly if it is wanted and has energy."""
        on = self._wanted and not self._supply.dead
        if on and self._running is None and self._busy is None:
            self._start()
        elif not on and self._running is not None:
            why = "its battery is empty" if self._supply.dead else "power cut"
            self._stop(self._running, why)

    async def close(self) -> None:
        """Switch it off for good."""
        self.switch(on=False)
        while self._busy is not None:
            await asyncio.wait({self._busy})
        self._supply.close()

    # What it is.

    @property
    def traffic(self) -> Traffic:
        """What crossed its socket, over all its starts."""
        now = Traffic() if self._running is None else self._running.bus.traffic
        return self._before + now

    @property
    def spent(self) -> Spent:
        """Joules until now."""
        return self._supply.spent

    def begins(self) -> None:
        """A task begins."""
        self._supply.work(Activity.TRAINING)

    def ends(self, round_: int, outcome: str) -> None:
        """A task is done, as soon as its time has passed."""
        self._outcome = (round_, outcome)

    def _idle(self) -> None:
        outcome, self._outcome = self._outcome, None
        if outcome is not None:
            self._world.say(self.name, "work ends", *outcome)
            self._loop.call_later(_STORED, self._again)  # it has taken part: perhaps too lately to do so again
        self._supply.work(Activity.IDLE)

    # How.

    def _start(self) -> None:
        self._boots += 1
        self._booted_at = self._loop.time()
        world, boot = self._world, self._boots
        place: Place | None = None
        try:
            place = self._place(world.folder / self.name)
            number = place.next_session()
            bus = self._bus(number, boot)
            service = self._service(place, number, bus, boot)
        except StoreError as error:
            if place is not None:
                place.store.close()
            world.say(self.name, "cannot start", 0, error.what)
            self._loop.call_later(AGAIN, self.settle)
            return
        task = self._loop.create_task(service.run(), name=self.name)
        self._running = running = _Running(place, bus, service, task)
        task.add_done_callback(lambda _: self._ended(running))

    def _place(self, state: Path) -> Place:
        new = not state.exists()
        place = Place.open(state)
        if new:  # it has drawn a number that nobody can repeat
            place.store.note("identity", derive(self._world.seed, "identity", self.name) >> (63 - _INCARNATION))
        place.limit(_NO_ROOM if self._full else 0)
        return place

    def _bus(self, number: int, boot: int) -> LinkBus:
        world = self._world
        waits = generator(world.seed, "reconnection", self.name, boot)
        return LinkBus(
            world.broker,
            self.name,
            will=will(world.fleet, self.name, number),
            network=self.network,
            seed=f"{world.seed}/{self.name}/{boot}",
            keepalive=world.settings.keepalive,
            back=lambda: float(waits.uniform(0.0, world.settings.back)),
            plugged=self._plugged,
        )

    def _service(self, place: Place, number: int, bus: LinkBus, boot: int) -> AgentService:
        world, profile = self._world, self._device.profile
        incarnation = derive(world.seed, "incarnation", self.name, boot) >> (63 - _INCARNATION)
        return AgentService(
            self.name,
            world.fleet,
            number,
            bus=bus,
            place=place,
            examples=self._device.examples,
            workshop=world.workshops(profile.runtime),
            pool=self._processor,
            sensors=self._readings,
            sense_every=world.settings.sense_every,
            hold=HOLD,
            checkpoint_seconds=world.settings.checkpoint_seconds,
            incarnation=incarnation | 1 << (_INCARNATION - 1),  # always as long on the wire
            clock=self._loop.time,
            uptime=lambda: Uptime(boot, self._loop.time() - self._booted_at),
            memory_mib=int(profile.memory_mib or _MEMORY),
        )

    def _readings(self) -> Readings:
        return self.life.readings(self._loop.time(), self._supply.battery())

    def _stop(self, running: _Running, why: str) -> None:
        """Take the power away: nothing more is done, sent or written."""
        self._world.say(self.name, "off", 0, why)
        running.off = True
        running.bus.vanish()
        self._processor.cut()
        running.task.cancel()
        self._leave(running)
        self._busy = self._loop.create_task(self._wait(running), name=f"{self.name} stops")

    async def _wait(self, running: _Running) -> None:
        await asyncio.wait({running.task})
        running.place.store.close()
        self._busy = None
        self.settle()

    def _leave(self, running: _Running) -> None:
        self._before += running.bus.traffic
        self._running = None
        self._supply.work(Activity.IDLE)

    def _ended(self, running: _Running) -> None:
        """The service has ended; by itself, unless its power was cut."""
        error = None if running.task.cancelled() else running.task.exception()
        if running.off:
            if error is not None:
                self._world.fail(error)
            return
        self._leave(running)
        running.bus.vanish()
        running.place.store.close()
        if not isinstance(error, EdgepflError):
            self._world.fail(error or RuntimeError(f"the agent of {self.name} has ended"))
            return
        self._world.say(self.name, "ended", 0, error.what)
        if isinstance(error, IdentityError):  # a person must come: nothing starts it again
            self._wanted = False
        self._loop.call_later(AGAIN, self.settle)


@dataclass
class _Running:
    """One start of the agent; ``off``: its power was cut."""

    place: Place
    bus: LinkBus
    service: AgentService
    task: asyncio.Task[None]
    off: bool = False
