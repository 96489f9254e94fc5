"""The devices of one process with all that befalls them: they live, suffer faults, and tell."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from simulators.broker import BrokerHandle
from simulators.coordination import Coordination
from simulators.datasets import FleetData
from simulators.emulation.gear import horizon_of, lives_of
from simulators.emulation.inflicting import Inflicting, meant
from simulators.emulation.living import Living, is_calm
from simulators.emulation.outcome import Fleetwide
from simulators.emulation.scenario import Scenario
from simulators.emulation.world import CLONE, World
from simulators.open_files import enough_files
from simulators.profiles import HOST, Life

FEW = 64
"""Agents up to which each has a link that can be tampered with at any time; of more only those that faults name."""


@dataclass(frozen=True)
class Call:
    """Whom a process hosts.

    Attributes:
        devices: of the whole fleet, in their order.
        own: of this process.
        lives: of the whole fleet.
        data: likewise.
    """

    devices: tuple[str, ...]
    own: tuple[str, ...]
    lives: dict[str, Life]
    data: FleetData


def call(
    scenario: Scenario,
    data: FleetData,
    chosen: Callable[[tuple[str, ...]], tuple[str, ...]] = lambda names: names,
    speedup: float = 1.0,
) -> Call:
    """The devices of a scenario, and those of this process.

    Args:
        scenario: to emulate.
        data: the fleet's.
        chosen: the names of this process's devices, of all of them.
        speedup: by how much the emulation's time is faster than the wall's.

    Raises:
        ConfigError: there is no such profile, trace or setting.
        RunError: this process may not open so many files.
    """
    devices = tuple(data.devices)
    own = chosen(devices)
    enough_files(len(own))
    return Call(devices, own, lives_of(scenario.fleet, devices, scenario.seed, horizon_of(speedup)), data)


class Cast:
    """The devices of this process, for as long as the context lasts.

    Args:
        scenario: to emulate.
        whom: it hosts.
        broker: running.
        coordination: the coordinator; None: another process has it.
        folder: for the devices' storage.
        speedup: by how much the emulation's time is faster than the wall's.
    """

    def __init__(
        self,
        scenario: Scenario,
        whom: Call,
        broker: BrokerHandle,
        coordination: Coordination | None,
        folder: Path,
        speedup: float,
    ) -> None:
        own = set(whom.own)
        meaning = [
            (fault, meant(fault, whom.devices, scenario.seed, number)) for number, fault in enumerate(scenario.faults)
        ]
        faults = [(fault, tuple(name for name in devices if name in own)) for fault, devices in meaning]
        lives = {name: whom.lives[name] for name in whom.own}
        restless = frozenset(name for name, life in lives.items() if not is_calm(life))
        named = frozenset(device for _, devices in faults for device in devices)
        away = frozenset(name for name in restless if not lives[name].at(0.0).running)
        late = frozenset(device for fault, devices in faults if fault.kind == "late" for device in devices)
        proxied = frozenset(own) if len(own) <= FEW else named | restless
        linked = {name for name, life in lives.items() if life.profile.kind != HOST}
        enough_files(len(own), len(linked | proxied))
        self.world = World(
            broker,
            coordination,
            folder,
            whom.data,
            lives,
            proxied=proxied,
            late=late | away,
            seed=scenario.seed,
            speedup=speedup,
            keepalive=scenario.fleet.keepalive,
        )
        self.faults = Inflicting(self.world, faults)
        self.living = Living(self.world)

    async def open(self, stack: AsyncExitStack) -> None:
        """Switch everything on, until the stack is closed."""
        await stack.enter_async_context(self.world)
        stack.push_async_callback(self.faults.close)
        stack.push_async_callback(self.living.close)
        self.faults.from_the_start()

    def begin(self) -> None:
        """The run begins, and with it the time of lives and faults."""
        self.world.chronicle.begin()
        self.faults.begin()
        self.living.begin()

    def check(self) -> None:
        """Raise what ended that should not."""
        self.faults.check()
        self.living.check()
        self.world.check()

    def pending(self, run: str) -> tuple[str, ...]:
        """Devices that are on, and do not know what became of their last report."""
        fleet = self.world.fleet
        return tuple(name for name in fleet.pending(run) if fleet[name].running and not name.endswith(CLONE))

    def share(self, run: str) -> Fleetwide:
        """What these devices give to the report."""
        world, chronicle = self.world, self.world.chronicle
        joules = {name: spent for name, each in world.senses.items() if (spent := each.joules) is not None}
        return Fleetwide(
            sent=frozenset(each for each in chronicle.sent_in(run) if not each[0].endswith(CLONE)),
            cancelled=frozenset(chronicle.cancelled),
            pending=self.pending(run),
            stories=chronicle.stories(),
            traffic=world.fleet.traffic,
            joules=joules,
            happened=frozenset(self.faults.happened),
        )
