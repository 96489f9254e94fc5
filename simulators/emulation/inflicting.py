"""Carrying out a scenario's faults by real means: to whom, when, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any

from device_agent.session import TaskId
from edgepfl.errors import ConfigError
from edgepfl.seeds import generator
from simulators.emulation.scenario import OF_NO_DEVICE, Fault
from simulators.emulation.world import CLONE, World, link_faults


def meant(fault: Fault, devices: Sequence[str], seed: int, number: int) -> tuple[str, ...]:
    """The devices that a fault happens to, in the order of their names.

    Args:
        fault: any.
        devices: of the whole fleet.
        seed: of the scenario.
        number: of the fault in the scenario: where it names no devices but how many, each fault has draws of its own.

    Raises:
        ConfigError: it names a device that there is not.
    """
    if isinstance(fault.devices, int):
        drawn = generator(seed, "fault", number).permutation(len(devices))[: fault.devices]
        return tuple(devices[place] for place in sorted(drawn))
    found: dict[str, None] = {}
    for pattern in fault.devices:
        matching = [name for name in devices if fnmatchcase(name, pattern)]
        if not matching:
            raise ConfigError(
                f"no device is called {pattern!r}",
                where=f"faults, {fault.kind}",
                remedy=f"The devices are {devices[0]} to {devices[-1]}",
            )
        found |= dict.fromkeys(matching)
    return tuple(name for name in devices if name in found)


class Inflicting:
    """The faults of a scenario, from the run's start on.

    Args:
        world: what they happen to.
        faults: each with the devices that it happens to, as far as they are of this process.
    """

    def __init__(self, world: World, faults: Sequence[tuple[Fault, tuple[str, ...]]]) -> None:
        self._world = world
        self._waiting = list(faults)
        self._done: set[tuple[int, str]] = set()  # faults of a task that happened, by their place and device
        self.happened: set[int] = set()
        """Places of the scenario's faults that happened, to anybody of this process at least."""
        self._running: set[asyncio.Task[None]] = set()
        self._timers: list[asyncio.TimerHandle] = []
        self._committed = 0  # the last round that was
        self._rounds: dict[int, asyncio.Event] = {}  # of those that a fault lasts through: it is committed
        world.took = self._took

    def from_the_start(self) -> None:
        """What is wrong before the run begins."""
        for place, (fault, _) in enumerate(self._waiting):
            if fault.at is None and fault.after is None and fault.during is None and fault.kind != "late":
                self._happen(place)

    def begin(self) -> None:
        """The run begins: so does the time of the faults."""
        loop = asyncio.get_running_loop()
        for place, (fault, _) in enumerate(self._waiting):
            if fault.at is not None:
                wait = fault.at / self._world.speedup
                self._timers.append(loop.call_later(wait, self._happen, place))

    def committed(self, before: int, now: int) -> None:
        """Rounds after ``before``, up to ``now``, were committed."""
        self._committed = now
        for number, event in self._rounds.items():
            if number <= now:
                event.set()
        for place, (fault, _) in enumerate(self._waiting):
            if fault.after is not None and before < fault.after <= now:
                self._happen(place)

    def _took(self, device: str, task: TaskId) -> None:
        """A device has its task."""
        for place, (fault, devices) in enumerate(self._waiting):
            if fault.during != task.round:
                continue
            whose = "" if fault.kind in OF_NO_DEVICE else device
            if (whose and whose not in devices) or (place, whose) in self._done:
                continue
            self._done.add((place, whose))
            self.happened.add(place)
            self.inflict(fault, (whose,) if whose else ())

    def _happen(self, place: int) -> None:
        """A fault of the scenario happens to all its devices."""
        fault, devices = self._waiting[place]
        if devices or fault.kind in OF_NO_DEVICE:
            self.happened.add(place)
        self.inflict(fault, devices)

    def inflict(self, fault: Fault, devices: Iterable[str]) -> None:
        """Carry out a fault now, and let it be over when its time is."""
        for each in _deeds(self._world, fault, tuple(devices), lambda: self._over(fault)):
            task = asyncio.get_running_loop().create_task(each, name=f"fault: {fault.kind}")
            self._running.add(task)

    async def _over(self, fault: Fault) -> None:
        """Wait until a fault that has begun is over."""
        if fault.through is not None:
            if fault.through <= self._committed:  # one that began by the clock, too late
                return
            await self._rounds.setdefault(fault.through, asyncio.Event()).wait()
        else:
            await asyncio.sleep(fault.until / self._world.speedup)

    def check(self) -> None:
        """Raise what stopped a fault from happening."""
        for task in tuple(self._running):
            if task.done():
                self._running.discard(task)
                task.result()

    async def close(self) -> None:
        """Nothing more happens."""
        self._world.took = lambda _, __: None
        for timer in self._timers:
            timer.cancel()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)


Deed = Callable[[], Coroutine[Any, Any, None]]


def _deeds(world: World, fault: Fault, devices: tuple[str, ...], over: Deed) -> Iterable[Coroutine[Any, Any, None]]:
    """What is to be done, at the same time."""
    pause = fault.until / world.speedup
    match fault.kind:
        case "broker":
            return (world.restart_broker(pause),)
        case "coordinator":
            return (world.restart_coordinator(pause),)
        case _:
            return tuple(_happens(world, fault, device, over) for device in devices)


async def _happens(world: World, fault: Fault, device: str, over: Deed) -> None:
    """A fault of a device, from its begin to its end."""
    begin, end = _begin_and_end(world, fault, device)
    await begin()
    if fault.lasts:
        await over()
        await end()


def _begin_and_end(world: World, fault: Fault, device: str) -> tuple[Deed, Deed]:
    """How a fault begins, and how it is over."""
    match fault.kind:
        case "kill":
            return (lambda: world.power_off(device)), (lambda: world.power_on(device))
        case "leave":
            return (lambda: world.switch_off(device)), (lambda: world.power_on(device))
        case "late":
            return (lambda: world.power_on(device)), (lambda: world.switch_off(device))
        case "clone":
            return _now(world.clone, device), (lambda: world.switch_off(device + CLONE))
        case "cut" | "silence" | "link":
            return _of_the_network(world, fault, device)
        case _:
            return _of_the_device(world, fault, device)


def _of_the_network(world: World, fault: Fault, device: str) -> tuple[Deed, Deed]:
    match fault.kind:
        case "cut" if fault.until:
            return _now(world.away, device), _now(world.back, device)
        case "cut":
            return _now(world.cut, device), _nothing
        case "silence" if fault.until:
            return _now(_void, world, device), _now(_through, world, device)
        case "silence":
            return _now(world.silence, device), _nothing
        case _:
            rate, delay, loss = (float(fault.values.get(name, 0.0)) for name in ("rate", "delay", "loss"))
            faults = link_faults(rate, delay, loss, world.speedup)
            return _now(world.link, device, faults), _now(world.link, device, None)


def _of_the_device(world: World, fault: Fault, device: str) -> tuple[Deed, Deed]:
    values = fault.values
    match fault.kind:
        case "quota":
            return _now(world.limit, device, float(values["mib"])), _now(world.limit, device, None)
        case "nan":
            return _now(_spoil, world, device, True), _now(_spoil, world, device, False)  # noqa: FBT003  as it says
        case "clock":
            stuck = _unix(str(values["stuck"])) if "stuck" in values else None
            skew = float(values.get("skew", 0.0))
            return _now(world.clock, device, skew, stuck), _now(world.clock, device, 0.0, None)
        case _:
            raise ConfigError(f"it cannot happen to {device!r}", where=f"faults, {fault.kind}")


def _now(function: Callable[..., object], *arguments: object) -> Deed:
    async def deed() -> None:
        function(*arguments)

    return deed


async def _nothing() -> None:
    pass


def _void(world: World, device: str) -> None:
    world.swallow(device, swallowed=True)


def _through(world: World, device: str) -> None:
    world.swallow(device, swallowed=False)


def _spoil(world: World, device: str, wrong: bool) -> None:  # noqa: FBT001  as the deed says
    world.spoil(device, wrong=wrong)


def _unix(text: str) -> float:
    """An ISO time as Unix time; without a zone it is UTC."""
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
