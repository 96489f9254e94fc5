"""Everything that an emulation consists of: broker, coordinator, network and devices, and what may be done to them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from device_agent.session import Effect, Event, Fetch, StopWork, TaskId, Work, Worked, WorkFailed
from edgepfl.bus import Disconnected
from edgepfl.errors import ConfigError, IdentityError, StoreError
from simulators.broker import BrokerHandle, PrivateBroker
from simulators.coordination import Coordination
from simulators.datasets import FleetData
from simulators.emulated import KEEPALIVE, Outfit
from simulators.emulation.chronicle import Chronicle
from simulators.emulation.gear import Gear
from simulators.emulation.senses import Senses
from simulators.emulation.spoiling import Spoiling
from simulators.faults import CALM, FaultProxy, Faults, Way
from simulators.fleet import AgentFleet
from simulators.profiles import Activity, Life

FLEET = "emulation"
CLONE = "#2"
"""What the key of a device's clone ends with."""
MIB = 1 << 20


class World:
    """What an emulation consists of, for as long as the context lasts; its devices are switched on with it.

    Args:
        broker: running.
        coordination: the coordinator; None: somebody else's.
        folder: for the devices' storage.
        data: of the devices of this process.
        lives: likewise.
        proxied: devices whose connection can be tampered with.
        late: devices that are switched off at first.
        seed: of the network's faults.
        speedup: by how much the emulation's time is faster than the wall's.
        keepalive: of the agents' connections, in seconds.
    """

    def __init__(
        self,
        broker: BrokerHandle,
        coordination: Coordination | None,
        folder: Path,
        data: FleetData,
        lives: dict[str, Life],
        *,
        proxied: frozenset[str],
        late: frozenset[str],
        seed: int,
        speedup: float,
        keepalive: int = KEEPALIVE,
    ) -> None:
        self.broker = broker
        self.coordination = coordination
        self.chronicle = Chronicle(took=self._took)
        self.fleet = AgentFleet(
            broker.url,
            coordination.fleet if coordination else FLEET,
            {},
            folder / "fleet",
            threads=os.cpu_count() or 1,
            listener=self._hear,
        )
        self.speedup = speedup
        self.proxy = FaultProxy(broker.url, seed=seed)
        self.took: Callable[[str, TaskId], None] = lambda _, __: None
        self.spoiling: dict[str, Spoiling] = {}
        self._ended: set[str] = set()  # agents that ended by themselves
        self._without: dict[str, set[str]] = {}  # by device, what keeps its power away
        self._data, self.lives = data, lives
        self._proxied, self._late, self._keepalive = proxied, late, keepalive
        self._gear = Gear(self.fleet.pool, speedup)
        self._links = {name: self._gear.link(life.profile) for name, life in lives.items()}
        self.senses = {name: Senses(life, lambda: self.now) for name, life in lives.items()}

    @property
    def now(self) -> float:
        """Seconds of the emulation since the run began; it is in a hurry where there is a speedup."""
        return self.chronicle.now * self.speedup

    async def __aenter__(self) -> Self:
        await self.proxy.__aenter__()
        for name in self.lives:
            if self._links[name] is not CALM:
                self.proxy.own[name] = self._links[name]
            self.fleet.add(name, self._outfit(name), late=name in self._late)
        if self.coordination is not None:
            self.coordination.process.start()
        await self.fleet.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.fleet.__aexit__(kind, error, trace)
        if self.coordination is not None:
            await asyncio.to_thread(self.coordination.__exit__, kind, error, trace)
        await self.proxy.__aexit__(kind, error, trace)

    def _outfit(self, name: str) -> Outfit:
        profile = self.lives[name].profile
        pool = self._gear.pool(profile)
        through = name in self._proxied or self._links[name] is not CALM
        if through:
            pool = self.spoiling[name] = Spoiling(pool)
        return Outfit(
            self.proxy.url if through else self.broker.url,
            self._data.devices[name],
            self._gear.workshop(profile),
            pool,
            sensors=self.senses[name],
            keepalive=self._keepalive,
        )

    def check(self) -> None:
        """Look whether something ended that should not; an agent that had to end says so in its story.

        Raises:
            RunError: the coordinator's process ended by itself.
            EdgepflError: an agent did, for another reason than that its name is taken or its storage failed.
        """
        if self.coordination is not None:
            self.coordination.process.check()
        self.fleet.check_arrival()
        for key, agent in self.fleet.agents.items():
            error = agent.failure()
            if error is None or key in self._ended:
                continue
            if not isinstance(error, IdentityError | StoreError):
                raise error
            self._ended.add(key)
            self.chronicle.lost_power(key)
            self.chronicle.tell(key, "ended", detail=str(error))

    # What the devices tell.

    def _hear(self, device: str, event: Event | Disconnected, effects: tuple[Effect, ...]) -> None:
        self.chronicle.hear(device, event, effects)
        senses = self.senses.get(device)
        if senses is None:
            return
        for effect in effects:
            match effect:
                case Fetch():
                    senses.does(Activity.TRANSMITTING)
                case Work():
                    senses.does(Activity.TRAINING)
                case StopWork():
                    senses.does(Activity.IDLE)
                case _:
                    pass
        if isinstance(event, Worked | WorkFailed):
            senses.does(Activity.IDLE)

    def _took(self, device: str, task: TaskId) -> None:
        self.took(device, task)

    # What may be done to them.

    async def power_off(self, device: str, why: str = "fault") -> None:
        """Cut a device's power; it has none until all that took it away are over: a fault, its life, its battery."""
        self._without.setdefault(device, set()).add(why)
        await self.fleet[device].kill()
        self.chronicle.lost_power(device)
        self.chronicle.tell(device, "power cut")

    async def switch_off(self, device: str, why: str = "fault") -> None:
        """Switch a device off in order; see :meth:`power_off`."""
        self._without.setdefault(device, set()).add(why)
        await self.fleet[device].stop()
        self.chronicle.lost_power(device)
        self.chronicle.tell(device, "switched off")

    async def power_on(self, device: str, why: str = "fault") -> None:
        """Give a device power, as far as ``why`` took it away.

        One whose disk is so full that it cannot start stays off, and its story says so.
        """
        self._without.get(device, set()).discard(why)
        agent = self.fleet[device]
        if agent.running or self._without.get(device):
            return
        try:
            agent.start()
        except StoreError as error:
            self.chronicle.tell(device, "does not start", detail=str(error))
        else:
            self._ended.discard(device)
            self.chronicle.tell(device, "power on")

    def cut(self, device: str) -> None:
        """Cut a device's connection, once."""
        self.fleet[device].drop()

    def away(self, device: str) -> None:
        """Take a device's network away."""
        self._tampered(device)
        self.proxy.away.add(device)
        self.fleet[device].drop()
        self.chronicle.tell(device, "offline")

    def back(self, device: str) -> None:
        """Give a device's network back."""
        self.proxy.away.discard(device)
        self.chronicle.tell(device, "online")

    def silence(self, device: str) -> None:
        """Let a device's connection go half-open; a new one works."""
        self._tampered(device)
        self.proxy.silence(device)
        self.chronicle.tell(device, "silence")

    def link(self, device: str, faults: Faults | None) -> None:
        """Give a device another link, or its own again."""
        self._tampered(device)
        self.proxy.own[device] = self._links[device] if faults is None else faults
        self.chronicle.tell(device, "link", detail="its own again" if faults is None else "slow or lossy")

    def swallow(self, device: str, *, swallowed: bool) -> None:
        """Let nothing through of a device's, old connection or new, or everything again."""
        self._tampered(device)
        way = Way(swallow=True)
        self.proxy.own[device] = Faults(way, way) if swallowed else self._links[device]
        self.chronicle.tell(device, "silence" if swallowed else "online")

    def limit(self, device: str, mib: float | None) -> None:
        """Leave a device so much room on its disk, or all that it has."""
        self.fleet[device].limit(0 if mib is None else max(1, int(mib * MIB)))
        self.senses[device].disk_mib = mib
        self.chronicle.tell(device, "disk", detail="has room again" if mib is None else f"{mib:g} MiB are left")

    def clock(self, device: str, skew: float, stuck: float | None) -> None:
        """Set a device's clock wrong: by some seconds, or to stand at a Unix time; or right again."""
        senses = self.senses[device]
        senses.skew, senses.stuck = skew, stuck
        wrong = f"wrong by {skew:g} s" if stuck is None else f"stands at {time.asctime(time.gmtime(stuck))}"
        self.chronicle.tell(device, "clock", detail=wrong if skew or stuck is not None else "right again")

    def spoil(self, device: str, *, wrong: bool) -> None:
        """Let a device's updates be NaN, or right again."""
        self._tampered(device)
        self.spoiling[device].wrong = wrong
        self.chronicle.tell(device, "updates", detail="hold NaN" if wrong else "are right again")

    def clone(self, device: str) -> None:
        """Switch on a second agent with a device's name, on a storage of its own."""
        key = device + CLONE
        if key not in self.fleet.agents:
            self.fleet.add(device, self._outfit(device), key=key, late=True)
        self.fleet[key].start()
        self.chronicle.tell(device, "clone", detail="another agent with its name was switched on")

    async def restart_broker(self, pause: float) -> None:
        """Kill the broker, and start it again, empty, after some seconds.

        Raises:
            ConfigError: it is somebody else's.
        """
        broker = self.broker
        if not isinstance(broker, PrivateBroker):
            raise ConfigError("only a broker of our own can be killed", where=broker.url, remedy="Leave out --broker")
        broker.kill()
        await asyncio.sleep(pause)
        await asyncio.to_thread(broker.start)

    async def restart_coordinator(self, pause: float) -> None:
        """Kill the coordinator, and start it again after some seconds."""
        if self.coordination is None:
            return
        process = self.coordination.process
        process.kill()
        await asyncio.sleep(pause)
        process.start()

    def _tampered(self, device: str) -> None:
        """See that a device's connection can be tampered with.

        Raises:
            ConfigError: it goes straight to the broker.
        """
        if device not in self.spoiling:
            raise ConfigError(
                "its connection goes straight to the broker",
                where=device,
                remedy="Name it in a fault of the scenario, so that it gets a link of its own",
            )


def link_faults(rate: float, delay: float, loss: float, speedup: float) -> Faults:
    """A bad link in both directions.

    Args:
        rate: bytes a second; 0 for no limit.
        delay: seconds of every packet.
        loss: probability that a message of QoS 0 is lost.
        speedup: by how much the emulation's time is faster than the wall's.
    """
    way = replace(Way(), rate=rate * speedup, delay=(delay / speedup, delay / speedup), drop=loss)
    return Faults(way, way)
