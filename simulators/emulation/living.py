"""Letting devices live: each comes and goes as its life says, and dies when its battery is flat."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterator

from simulators.emulation.world import World
from simulators.profiles import Happening, Kind, Life

LOOK = 1.0  # seconds between two looks at the batteries
NO_ROOM = 1 / 1024  # MiB
LIFE, BATTERY = "life", "battery"  # what takes power away, beside faults


def is_calm(life: Life) -> bool:
    """Whether nothing ever happens to a device after it has joined at the start."""
    return life.joins == 0 and all(each.at == 0 for each in life.happenings())


class Living:
    """The lives of a world's devices, from the run's start on.

    Args:
        world: theirs.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._restless = {name: life for name, life in world.lives.items() if not is_calm(life)}
        self._flat: set[str] = set()
        self._running: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        """The run begins, and so do they."""
        loop = asyncio.get_running_loop()
        if self._restless:
            self._running.add(loop.create_task(self._live(), name="lives"))
        batteries = [name for name, life in self._world.lives.items() if life.profile.battery_wh]
        if batteries:
            self._running.add(loop.create_task(self._drain(batteries), name="batteries"))

    def check(self) -> None:
        """Raise what stopped them."""
        for task in self._running:
            if task.done():
                task.result()

    async def close(self) -> None:
        """Nothing more happens."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _live(self) -> None:
        for name, happening in _merged(self._restless):
            wait = (happening.at - self._world.now) / self._world.speedup
            if wait > 0:
                await asyncio.sleep(wait)
            await self._happens(name, happening)

    async def _happens(self, device: str, happening: Happening) -> None:
        world = self._world
        match happening.kind:
            case Kind.JOIN | Kind.UP:
                await world.power_on(device, LIFE)
            case Kind.DOWN:
                await world.power_off(device, LIFE)
            case Kind.LEAVE:
                await world.switch_off(device, LIFE)
            case Kind.OFFLINE:
                world.away(device)
            case Kind.ONLINE:
                world.back(device)
            case Kind.FULL:
                world.limit(device, NO_ROOM)
            case Kind.ROOM:
                world.limit(device, None)
            case _:
                pass  # its sensors tell

    async def _drain(self, devices: list[str]) -> None:
        """Cut the power of whoever's battery is flat, and give it back when it has charged."""
        while True:
            for device in devices:
                dead = self._world.senses[device].battery.dead
                if dead and device not in self._flat:
                    self._flat.add(device)
                    self._world.chronicle.tell(device, "battery flat")
                    await self._world.power_off(device, BATTERY)
                elif not dead and device in self._flat:
                    self._flat.discard(device)
                    await self._world.power_on(device, BATTERY)
            await asyncio.sleep(LOOK)


def _merged(lives: dict[str, Life]) -> Iterator[tuple[str, Happening]]:
    """What happens to all of them, in order of time; what holds at the start is known already."""
    each = (((h.at, number, name, h) for h in life.happenings()) for number, (name, life) in enumerate(lives.items()))
    for at, _, name, happening in heapq.merge(*each, key=lambda item: item[:2]):
        if at > 0 or happening.kind in {Kind.OFFLINE, Kind.FULL}:
            yield name, happening
