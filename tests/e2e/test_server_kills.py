"""Real processes over a real broker: every kind of server is killed at every phase of a round, to the same bits.

Each test trains one run in peace, then the same again on the same servers, one kill -9 a round.  A phase is held while
its victim dies: by devices that keep their reports back or are away, and by processes that are stopped (SIGSTOP).
"""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from pathlib import Path
from typing import ClassVar, TypeAlias

import pytest
from _servers import ALWAYS, LOOK, NEVER, Agents, Server, Standing, Tap, results, standing, states
from _shared import digits

from coordinator import asking
from coordinator.config import RunConfig
from coordinator.journal import Result
from edgepfl.bundle import pack
from edgepfl.errors import RunError
from edgepfl.topics import FromAggregator, FromDevice, ToAggregator, ToAll, Topics
from edgepfl.wire import Commit, Done, Gone, Hello, Here, Message, Order, Report
from simulators.broker import BrokerHandle
from simulators.experiment import bundle_for

pytestmark = [pytest.mark.broker, pytest.mark.parametrize("broker", ["mosquitto"], indirect=True)]

EVERY_PHASE = bool(os.environ.get("EDGEPFL_EVERY_PHASE"))
LIMIT = 1200 if EVERY_PHASE else 300  # seconds
SETTINGS: Mapping[str, Mapping[str, float]] = {"feddyn": {"lr": 0.1, "mu": 0.1}, "fpfc": {"lr": 0.1, "lam": 0.3}}
ROOT = "root"
EVERYBODY = "everybody"
DEVICES = ("device-0", "device-1", "device-2")
FIRST, SECOND, THIRD = DEVICES

Kill: TypeAlias = tuple[str, str]
"""At which phase, and whom."""

Phase: TypeAlias = Callable[[int, str], Awaitable[None]]
"""Reaches a phase of a round of that number, and kills somebody there."""


@cache
def bundle(algorithm: str) -> bytes:
    return pack(bundle_for(algorithm, SETTINGS[algorithm], digits(3), 0))


class Scene(ABC):
    """Servers, agents and whoever listens to them.

    Attributes:
        absent: who is away when a phase begins.
        early: phases before every cohort is chosen.
        coordinators: servers with a journal.
        goal: devices in the cohort of the first of them.
    """

    absent: ClassVar[Mapping[str, tuple[str, ...]]]
    early: ClassVar[frozenset[str]]
    coordinators: ClassVar[tuple[str, ...]]
    goal: ClassVar[int]

    def __init__(self, folder: Path, url: str, places: Mapping[str, str]) -> None:
        self.folder = folder
        self.url = url
        self.tap = Tap(url, *{ROOT, *places.values()})
        data = dict(zip(DEVICES, digits(3).devices.values(), strict=True))
        self.agents = Agents(url, places, data, folder / "agents")
        self.servers: dict[str, Server] = {}
        self.run = ""

    @property
    @abstractmethod
    def phases(self) -> Mapping[str, Phase]:
        """By name."""

    @asynccontextmanager
    async def playing(self) -> AsyncIterator[None]:
        """Start everything, and end it."""
        async with AsyncExitStack() as stack:
            for server in self.servers.values():
                stack.enter_context(server)
            await stack.enter_async_context(self.tap.listening())
            await stack.enter_async_context(self.agents.serving())
            for name, fleet in self.agents.fleet_of.items():
                await self.said(Topics(fleet).build(FromDevice(name, Hello.KIND)), 0)
            yield

    def written(self, name: str, text: str) -> Path:
        """Settings, with the broker's."""
        path = self.folder / f"{name}.toml"
        path.write_text(f'{text}[broker]\nurl = "{self.url}"\n', encoding="utf-8")
        return path

    # Runs.

    async def train(self, algorithm: str, kills: tuple[Kill | None, ...]) -> tuple[dict[int, str], list[Result]]:
        """A run with a round for each kill, the first without: whoever is away in a round leaves in the one before.

        Returns:
            its state after each round, and what the reports that count said.
        """
        path = self.folder / f"{algorithm}.bundle"
        path.write_bytes(bundle(algorithm))
        rounds, goal = len(kills), self.goal
        config = RunConfig(
            rounds=rounds, steps=4, goal=goal, minimum=goal, lease=1e4, seed=5, evaluate_every=2, canary=0.0
        )
        self.allow(NEVER, *DEVICES)
        self.run = await self.started(path, config)
        for number, kill in enumerate(kills, 1):
            await self.round(number, kill, kills[number] if number < rounds else None)
        self.allow(ALWAYS, *DEVICES)
        await self.until(lambda: self.at(ROOT).status != "running")
        assert self.at(ROOT).status == "done"
        return states(self.folder / ROOT, self.run), results(self.folder / ROOT, self.run)

    async def round(self, number: int, kill: Kill | None, following: Kill | None) -> None:
        """One round, with a kill or in peace."""
        phase, victim = kill or ("", "")
        if phase in self.early:
            await self.phases[phase](number, victim)
        await self.until(lambda: all(self.chosen(who, number) for who in self.coordinators))
        await self.until(lambda: all(valve.holds for valve in self.agents.valves.values()))
        await self.leave(following)
        if phase and phase not in self.early:
            await self.phases[phase](number, victim)
        self.allow(number, *DEVICES)
        await self.until(lambda: self.at(ROOT).committed == number)

    async def started(self, path: Path, config: RunConfig) -> str:
        """The run's id, once the coordinator is up."""
        while True:
            try:
                async for answer in asking.ask(
                    self.folder / ROOT, asking.Request("start", bundle=str(path), config=config)
                ):
                    return str(answer.ok)
            except RunError as error:
                if not isinstance(error.__cause__, OSError):
                    raise
            await asyncio.sleep(LOOK)

    async def leave(self, following: Kill | None) -> None:
        """Who is to be away in the next round leaves in time."""
        since = self.tap.now
        for name in self.absent.get(following[0], ()) if following else ():
            self.agents.valves[name].leave()
            await self.said(Topics(self.agents.fleet_of[name]).build(FromDevice(name, Gone.KIND)), since)

    # What holds and shows phases.

    async def until(self, condition: Callable[[], bool]) -> None:
        """Look until something holds, and whether everybody lives."""
        while not condition():
            for server in self.servers.values():
                server.check()
            self.agents.check()
            await asyncio.sleep(LOOK)

    def at(self, who: str) -> Standing:
        """How far a coordinator or hub is."""
        return standing(self.folder / who, self.run) or Standing("running", 0, 0, chosen=False, reports=0)

    def chosen(self, who: str, number: int) -> bool:
        """Whether the cohort of a round is chosen."""
        found = self.at(who)
        return found.open == number and found.chosen

    def allow(self, round_: int, *devices: str) -> None:
        """Let devices report on the rounds up to this one."""
        for device in devices:
            self.agents.valves[device].allow(round_)

    def come_back(self) -> None:
        """Nobody is away any more."""
        for valve in self.agents.valves.values():
            valve.come_back()

    def strike(self, who: str, **expected: int) -> None:
        """Kill somebody, see that its journal is where it should be, and start it again."""
        victims = self.servers if who == EVERYBODY else {who: self.servers[who]}
        for victim in victims.values():
            victim.kill()
        if who in self.coordinators:
            found = self.at(who)
            assert {name: getattr(found, name) for name in expected} == expected
        for victim in victims.values():
            victim.start()

    async def said(self, topic: str, since: int, such: Callable[[Message], bool] = lambda _: True) -> None:
        """Until something is heard."""
        await self.until(lambda: self.tap.heard(topic, since, such))

    async def over(self, fleet: str, number: int, since: int) -> None:
        """Until a coordinator says whose reports of a round count."""
        topic = Topics(fleet).build(ToAll(Commit.KIND))
        await self.said(topic, since, lambda said: isinstance(said, Commit) and said.round == number)


AGGREGATOR = "aggregator"
ORDER = Topics(ROOT).build(ToAggregator(Order.KIND))
DONE = Topics(ROOT).build(FromAggregator(Done.KIND))
HERE = Topics(ROOT).build(FromAggregator(Here.KIND))


class Sharded(Scene):
    """A coordinator, and an aggregator of two ranks."""

    absent: ClassVar = dict.fromkeys(("selecting", "handing", "handed"), (FIRST,))
    early = frozenset(absent)
    coordinators = (ROOT,)
    goal = 3

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder, url, dict.fromkeys(DEVICES, ROOT))
        self.started_at = 0  # when the aggregator was started, in what the tap heard
        common = f'fleet = "{ROOT}"\nstore = "store"\n'
        self.servers = {
            ROOT: Server.of("coordinator", self.written(ROOT, f'{common}state = "{ROOT}"\n[aggregator]\n')),
            AGGREGATOR: Server.torchrun(AGGREGATOR, self.written(AGGREGATOR, common), ranks=2),
        }

    @property
    def phases(self) -> Mapping[str, Phase]:
        """See :class:`Scene`."""
        return {
            "selecting": self.selecting,
            "handing": self.handing,
            "handed": self.handed,
            "reporting": self.reporting,
            "ordered": self.ordered,
            "done": self.done,
            "committed": self.committed,
        }

    async def selecting(self, number: int, who: str) -> None:
        """The coordinator waits for devices."""
        await self.until(lambda: self.at(ROOT).open == number)
        self.strike(who, open=number, chosen=False)
        self.come_back()

    async def handing(self, number: int, who: str) -> None:
        """The devices' own downloads are ordered, and the ranks are at work."""
        await self.until(lambda: self.at(ROOT).open == number)
        await self.under_order(self.come_back)
        self.strike(who, open=number, chosen=True, reports=0)
        self.servers[AGGREGATOR].resume()

    async def handed(self, number: int, who: str) -> None:
        """They are made, and the coordinator has not heard so."""
        await self.until(lambda: self.at(ROOT).open == number)
        await self.unheard(self.come_back)
        self.strike(who, open=number, chosen=True, reports=0)
        self.servers[ROOT].resume()

    async def reporting(self, number: int, who: str) -> None:
        """Two of three reports count."""
        self.allow(number, SECOND, THIRD)
        await self.until(lambda: self.at(ROOT).reports == 2)
        self.strike(who, open=number, reports=2)

    async def ordered(self, number: int, who: str) -> None:
        """The new state is ordered, and the ranks are at work."""
        await self.all_but_one(number)
        await self.under_order(lambda: self.allow(number, FIRST))
        self.strike(who, open=number, reports=3)
        self.servers[AGGREGATOR].resume()

    async def done(self, number: int, who: str) -> None:
        """The new state is made, and the coordinator has not heard so."""
        await self.all_but_one(number)
        await self.unheard(lambda: self.allow(number, FIRST))
        self.strike(who, open=number, reports=3, committed=number - 1)
        self.servers[ROOT].resume()

    async def committed(self, number: int, who: str) -> None:
        """The coordinator has just said whose reports count."""
        since = self.tap.now
        self.allow(number, *DEVICES)
        await self.over(ROOT, number, since)
        self.strike(who, committed=number)

    def strike(self, who: str, **expected: int) -> None:
        """See :class:`Scene`; what the aggregator says before it is started again is old."""
        if who != ROOT:
            self.started_at = self.tap.now
        super().strike(who, **expected)

    async def all_but_one(self, number: int) -> None:
        self.allow(number, SECOND, THIRD)
        await self.until(lambda: self.at(ROOT).reports == 2)

    async def under_order(self, place: Callable[[], None]) -> None:
        """Have something ordered of ranks that are stopped."""
        await self.said(HERE, self.started_at)
        since = self.tap.now
        self.servers[AGGREGATOR].suspend()
        place()
        await self.said(ORDER, since)

    async def unheard(self, place: Callable[[], None]) -> None:
        """Have something ordered and done, and the coordinator stopped before it hears so."""
        await self.under_order(place)
        since = self.tap.now
        self.servers[ROOT].suspend()
        self.servers[AGGREGATOR].resume()
        await self.said(DONE, since)


NORTH, SOUTH = "north", "south"


class Levels(Scene):
    """A coordinator with two hubs."""

    absent: ClassVar = {"selecting": (FIRST, SECOND), "gathering": (FIRST,)}
    early = frozenset(absent)
    coordinators = (ROOT, NORTH, SOUTH)
    goal = 2

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder, url, {FIRST: NORTH, SECOND: NORTH, THIRD: SOUTH})
        root = f'fleet = "{ROOT}"\nstate = "{ROOT}"\nhubs = {{{NORTH} = 2, {SOUTH} = 2}}\n'
        self.servers = {
            ROOT: Server.of("coordinator", self.written(ROOT, root)),
            NORTH: self.hub(NORTH, 2),
            SOUTH: self.hub(SOUTH, 1),
        }

    def hub(self, name: str, devices: int) -> Server:
        text = f'fleet = "{name}"\nstate = "{name}"\nminimum = {devices}\nlease = 1e4\n'
        parent = f'[parent]\nfleet = "{ROOT}"\ndevice = "{name}"\n[parent.broker]\nurl = "{self.url}"\n'
        return Server.of("hub", self.written(name, text + parent))

    @property
    def phases(self) -> Mapping[str, Phase]:
        """See :class:`Scene`."""
        return {
            "selecting": self.selecting,
            "gathering": self.gathering,
            "reporting": self.reporting,
            "summed": self.summed,
            "unheard": self.unheard,
            "committed": self.committed,
            "settled": self.settled,
        }

    async def leave(self, following: Kill | None) -> None:
        """See :class:`Scene`; a hub without devices says so."""
        since = self.tap.now
        await super().leave(following)
        if following is not None and following[0] == "selecting":
            hello = Topics(ROOT).build(FromDevice(NORTH, Hello.KIND))
            await self.said(hello, since, lambda said: isinstance(said, Hello) and not said.members)

    async def selecting(self, number: int, who: str) -> None:
        """The coordinator waits for a hub, which has no devices."""
        await self.until(lambda: self.at(ROOT).open == number and self.at(NORTH).committed == number - 1)
        self.strike(who, open=number if who == ROOT else 0, chosen=False)
        self.come_back()

    async def gathering(self, number: int, who: str) -> None:
        """The hub waits for its devices."""
        await self.until(lambda: self.at(NORTH).open == number)
        self.strike(who, open=number, chosen=who == ROOT)
        self.come_back()

    async def reporting(self, number: int, who: str) -> None:
        """One of the hub's two reports counts."""
        self.allow(number, SECOND)
        await self.until(lambda: self.at(NORTH).reports == 1)
        self.strike(who, open=number, reports=int(who == NORTH))

    async def summed(self, number: int, who: str) -> None:
        """The hub's sums are made, and count at the coordinator, which waits for the other hub."""
        self.allow(number, FIRST, SECOND)
        await self.until(lambda: self.at(ROOT).reports == 1)
        self.strike(who, open=number, reports=1 if who == ROOT else 2)

    async def unheard(self, number: int, who: str) -> None:
        """The hub's sums are made, and the coordinator has not heard so."""
        since = self.tap.now
        self.servers[ROOT].suspend()
        self.allow(number, FIRST, SECOND)
        report = Topics(ROOT).build(FromDevice(NORTH, Report.KIND))
        await self.said(report, since, lambda said: isinstance(said, Report) and said.round == number)
        self.strike(who, open=number, reports=0 if who == ROOT else 2)
        self.servers[ROOT].resume()

    async def committed(self, number: int, who: str) -> None:
        """The coordinator has said whose reports count, and the hub has not heard so."""
        self.allow(number, FIRST, SECOND)
        await self.until(lambda: self.at(ROOT).reports == 1)
        since = self.tap.now
        self.servers[NORTH].suspend()
        self.allow(number, THIRD)
        await self.over(ROOT, number, since)
        self.strike(who, committed=number if who == ROOT else number - 1)
        self.servers[NORTH].resume()

    async def settled(self, number: int, who: str) -> None:
        """The hub has just said so to its devices."""
        since = self.tap.now
        self.allow(number, *DEVICES)
        await self.over(NORTH, number, since)
        self.strike(who, committed=number)


async def same_whoever_is_killed(scene: Scene, plans: Mapping[str, tuple[Kill, ...]]) -> None:
    """For each algorithm, a run in peace, and one with its kills."""
    async with scene.playing():
        for algorithm, kills in plans.items():
            expected, said = await scene.train(algorithm, (None,) * (len(kills) + 1))
            found, told = await scene.train(algorithm, (None, *kills))
            for number, kill in enumerate(kills, 2):
                assert (number, kill, found[number]) == (number, kill, expected[number])
            assert found == expected
            assert told == said
            assert scene.tap.attempts == {0}  # no kill cost any device its work
            assert len(set(expected.values())) == len(kills) + 2  # each round but the evaluation changed it


def each(victims: tuple[str, ...], *phases: str) -> tuple[Kill, ...]:
    return tuple((phase, who) for phase in phases for who in victims)


@pytest.mark.timeout(LIMIT)
def test_a_coordinator_and_its_aggregator_are_killed(tmp_path: Path, broker: BrokerHandle) -> None:
    whole = "selecting", "reporting", "ordered", "done", "committed"
    plans: Mapping[str, tuple[Kill, ...]] = {
        "feddyn": (("ordered", AGGREGATOR), ("done", ROOT), ("done", AGGREGATOR), ("committed", ROOT)),
        "fpfc": (("handing", AGGREGATOR), ("reporting", ROOT)),
    }
    if EVERY_PHASE:
        every = each((ROOT, AGGREGATOR, EVERYBODY), *whole)
        plans = {"feddyn": every, "fpfc": (*each((ROOT, AGGREGATOR, EVERYBODY), "handing", "handed"), *every)}
    asyncio.run(same_whoever_is_killed(Sharded(tmp_path, broker.url), plans))


@pytest.mark.timeout(LIMIT)
def test_a_coordinator_and_a_hub_are_killed(tmp_path: Path, broker: BrokerHandle) -> None:
    phases = "selecting", "gathering", "reporting", "summed", "unheard", "committed", "settled"
    kills: tuple[Kill, ...] = (
        ("gathering", NORTH),
        ("summed", ROOT),
        ("unheard", NORTH),
        ("committed", NORTH),
        ("committed", ROOT),
    )
    if EVERY_PHASE:
        kills = each((ROOT, NORTH, EVERYBODY), *phases)
    asyncio.run(same_whoever_is_killed(Levels(tmp_path, broker.url), {"feddyn": kills}))
