"""One real run after another: a broker, a coordinator process, agents, and one process that is ended at an fsync.

A round is quiet while devices hold their reports back.  Then an fsync to come is chosen, the reports are let go, and
the victim dies somewhere between this round's last reports and the next round's quiet, is started again, and nothing
may be different from the same round of a run in peace.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np
import psutil
from _disk import LEFT
from _interposer import Watch
from _matrix import Row
from _once import once
from _points import named
from _servers import ALWAYS, LOOK, NEVER, Agents, Server, Standing, listening, results, standing, states
from _shared import digits

from coordinator import asking
from coordinator.config import RunConfig
from coordinator.journal import Result
from device_agent.data import Examples
from edgepfl import wire
from edgepfl.bundle import pack
from edgepfl.bus import Arrived
from edgepfl.bus.mqtt import MqttBus, MqttSettings
from edgepfl.errors import RunError
from edgepfl.topics import FromDevice, ToAll, ToDevice, Topics
from edgepfl.wire import Commit, Hello, Message, Need, Progress, Report, Task
from simulators.experiment import bundle_for

FLEET = "crash"
TOPICS = Topics(FLEET)
DEVICES = ("device-0", "device-1", "device-2")
STEPS = 4
PATIENCE = 60.0  # seconds, far more than anything here takes
SETTINGS: Mapping[str, Mapping[str, float]] = {
    "apfl": {"lr": 0.1},
    "ditto": {"lr": 0.1},
    "feddc": {"lr": 0.1},
    "feddyn": {"lr": 0.1, "mu": 0.1},
    "fpfc": {"lr": 0.1, "lam": 0.3},
    "scaffold": {"lr": 0.1},
}


@cache
def bundle(algorithm: str) -> bytes:
    """An algorithm on the digits' model, made once for all processes of a session."""
    return once(f"crash {algorithm}", lambda: pack(bundle_for(algorithm, SETTINGS[algorithm], digits(3), 0)))


Opening: TypeAlias = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Cut:
    """One kill.

    Attributes:
        sync: at which fsync after the quiet.
        after: whether that is done.
        left: what is left of what was not synced: a key of :data:`_disk.LEFT`.
    """

    sync: int
    after: bool
    left: str = "everything"


class Watched(Server):
    """A process that the interposer watches."""

    def __init__(self, words: tuple[str, ...], log: Path, watch: Watch) -> None:
        super().__init__(words, log)
        self.watch = watch
        self.doom: Cut | None = None  # of the next start

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it, or start it again; with a doom, to die at an fsync counted from its start."""
        environment = self.watch.environment()
        if self.doom is not None:
            self.watch.arm(self.doom.sync, after=self.doom.after)
        with self._log.open("ab") as out:
            self._process = psutil.Popen(self._words, stdout=out, stderr=subprocess.STDOUT, env=environment)


class Ear:
    """Hears what coordinator and devices say."""

    def __init__(self, url: str) -> None:
        self._bus = MqttBus(MqttSettings(url, "ear"))
        self.heard: list[tuple[float, str, Message]] = []  # when, who said it, and what
        for topic_filter in (TOPICS.for_coordinator()[0], *(t for name in DEVICES for t in TOPICS.for_device(name))):
            self._bus.subscribe(topic_filter)

    def listening(self) -> AbstractAsyncContextManager[None]:
        return listening(self._bus, self._hear)

    def _hear(self, arrived: Arrived) -> None:
        match TOPICS.parse(arrived.topic):
            case FromDevice(device, _):
                self.heard.append((time.monotonic(), device, wire.decode(arrived.payload)))
            case ToAll() | ToDevice():
                self.heard.append((time.monotonic(), "coordinator", wire.decode(arrived.payload)))


@dataclass
class Peace:
    """What a run without kills gives.

    Attributes:
        states: the digest of the server's state after each round.
        results: what the reports said that count.
        syncs: how many fsyncs the victim makes from one quiet to the next.
    """

    states: dict[int, str]
    results: list[Result]
    syncs: list[int] = field(default_factory=list)


class Theatre(ABC):
    """Everything that a run needs, and its victim.

    Args:
        folder: for everything.
        url: the broker's.
    """

    who: str  # the victim speaks as
    role: str
    inside: tuple[str, ...]  # devices whose agents are in this process

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.state = folder / "coordinator"
        self.ear = Ear(url)
        self.data = dict(zip(DEVICES, digits(3).devices.values(), strict=True))
        self.agents = Agents(url, dict.fromkeys(self.inside, FLEET), self.data, folder / "agents")
        self.run = ""
        self.victim: Watched
        self.others: tuple[Server, ...] = ()

    @abstractmethod
    def is_quiet(self, number: int) -> bool:
        """Whether nothing happens in this round until reports are let go."""

    @abstractmethod
    def is_a_sign(self, message: Message) -> bool:
        """Whether what the victim says is about the round."""

    def settings(self, name: str, text: str) -> Path:
        path = self.folder / f"{name}.toml"
        path.write_text(f'fleet = "{FLEET}"\nstate = "{name}"\n{text}[broker]\nurl = "{self.url}"\n', encoding="utf-8")
        return path

    @asynccontextmanager
    async def playing(self) -> AsyncIterator[None]:
        """Start everything, and end it."""
        async with AsyncExitStack() as stack:
            for server in (*self.others, self.victim):
                stack.enter_context(server)
            await stack.enter_async_context(self.ear.listening())
            await stack.enter_async_context(self.agents.serving())
            yield

    async def train(
        self, algorithm: str, cuts: tuple[Cut, ...], peace: Peace | None = None, opening: Opening | None = None
    ) -> tuple[Peace, list[Row]]:
        """A run with a round for each cut, and one without; or, without a run to compare with, one in peace.

        Args:
            algorithm: of the run.
            cuts: of its rounds.
            peace: what the run gives without them.
            opening: what happens before the first round is quiet.
        """
        path = self.folder / f"{algorithm}.bundle"
        path.write_bytes(bundle(algorithm))
        rounds, goal, rows = len(cuts) + 1, len(DEVICES), []
        whole = RunConfig(rounds=rounds, steps=STEPS, goal=goal, minimum=goal, seed=5)
        config = msgspec.structs.replace(whole, lease=1e4, evaluate_every=0, canary=0.0)  # all get the task at once
        self.allow(NEVER)
        self.run = await self.started(path, config)
        if opening is not None:
            await opening()
        syncs = []
        for number in range(1, rounds + 1):
            await self.until(lambda n=number: self.is_quiet(n))  # type: ignore[misc]
            before = self.victim.watch.syncs
            cut = cuts[number - 1] if number <= len(cuts) and peace is not None else None
            rows += [await self.killed(algorithm, number, cut, peace)] if cut is not None and peace is not None else []
            self.allow(number)
            await self.until(lambda n=number: self.at.committed >= n)  # type: ignore[misc]
            if number < rounds:
                await self.until(lambda n=number: self.is_quiet(n + 1))  # type: ignore[misc]
            syncs.append(self.victim.watch.syncs - before)
        self.allow(ALWAYS)
        await self.until(lambda: self.at.status != "running")
        assert self.at.status == "done"
        return Peace(states(self.state, self.run), results(self.state, self.run), syncs[:-1]), rows

    async def killed(self, algorithm: str, number: int, cut: Cut, peace: Peace) -> Row:
        """A round in which the victim is ended, up to the quiet of the next."""
        watch = self.victim.watch
        watch.arm(watch.syncs + cut.sync, after=cut.after)
        self.allow(number)
        await self.until(lambda: not self.victim.is_alive or self.is_quiet(number + 1), even_dead=True)
        watch.disarm()
        if self.victim.is_alive:
            return self.row(cut, algorithm, "nowhere", 0.0, same=True)
        point = named(watch, len(DEVICES))
        if cut.left != "everything":
            watch.cut(LEFT[cut.left](watch.disk(), cut.sync))
        seconds = await self.resumed()
        await self.until(lambda: self.is_quiet(number + 1))
        same = states(self.state, self.run)[number] == peace.states[number]
        same = same and self.kept(number) == _kept(peace.results, number)
        return self.row(cut, algorithm, point, seconds, same=same)

    def row(self, cut: Cut, algorithm: str, point: str, seconds: float | None, *, same: bool) -> Row:
        """How a cut went."""
        return Row(self.role, point, "after" if cut.after else "before", cut.left, algorithm, seconds, same)

    async def resumed(self) -> float:
        """Start the victim again; seconds until it says something about the round."""
        since, start = len(self.ear.heard), time.monotonic()
        self.victim.start()

        def signs() -> list[float]:
            return [at for at, who, said in self.ear.heard[since:] if who == self.who and self.is_a_sign(said)]

        await self.until(lambda: bool(signs()))
        return signs()[0] - start

    def kept(self, number: int) -> dict[str, str]:
        """The digest of what each device keeps after a round."""
        return _kept(results(self.state, self.run), number)

    async def started(self, path: Path, config: RunConfig) -> str:
        """The run's id, once the coordinator is up."""
        while True:
            try:
                request = asking.Request("start", bundle=str(path), config=config)
                async for answer in asking.ask(self.state, request):
                    return str(answer.ok)
            except RunError as error:
                if not isinstance(error.__cause__, OSError):
                    raise
            await asyncio.sleep(LOOK)

    async def until(self, condition: Callable[[], bool], *, even_dead: bool = False) -> None:
        """Look until something holds, and whether everybody lives."""
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, f"nothing happens: {self.at}, the last words: {self.ear.heard[-5:]}"
            for server in self.others:
                server.check()
            if not even_dead:
                self.victim.check()
            self.agents.check()
            await asyncio.sleep(LOOK)

    @property
    def at(self) -> Standing:
        """How far the coordinator is."""
        return standing(self.state, self.run) or Standing("running", 0, 0, chosen=False, reports=0)

    def allow(self, number: int) -> None:
        """Let the devices in this process report on the rounds up to this one."""
        for valve in self.agents.valves.values():
            valve.allow(number)

    def chosen(self, number: int) -> bool:
        """Whether the cohort of a round is chosen, and every device in this process holds a report back."""
        found, valves = self.at, self.agents.valves.values()
        return found.open == number and found.chosen and all(valve.holds for valve in valves)


class KilledCoordinator(Theatre):
    """The coordinator is the victim; all devices are in this process."""

    who = role = "coordinator"
    inside = DEVICES

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder, url)
        words = "edgepfl", "coordinator", "--config", str(self.settings("coordinator", ""))
        self.victim = Watched(words, folder / "coordinator.log", Watch(self.state, folder))

    def is_quiet(self, number: int) -> bool:
        """See :class:`Theatre`."""
        return self.chosen(number)

    def is_a_sign(self, message: Message) -> bool:
        """See :class:`Theatre`."""
        return isinstance(message, Task | Commit | Need)


class KilledAgent(Theatre):
    """One of the devices is the victim."""

    who, role = DEVICES[0], "agent"
    inside = DEVICES[1:]

    def __init__(self, folder: Path, url: str, *, sends: bool = False) -> None:
        super().__init__(folder, url)
        coordinator = self.settings("coordinator", "")
        self.others = (Server.of("coordinator", coordinator),)
        data = _saved(folder, self.data[self.who])
        settings = self.settings("agent", f'device = "{self.who}"\n[data]\nsource = "{data}"\n')
        words = "edgepfl", "agent", "--config", str(settings)
        self.victim = Watched(words, folder / "agent.log", Watch(folder / "agent", folder, sends=sends))

    def is_quiet(self, number: int) -> bool:
        """See :class:`Theatre`."""
        return self.chosen(number) and self.at.reports == 1

    def is_a_sign(self, message: Message) -> bool:
        """See :class:`Theatre`."""
        return isinstance(message, Report | Progress | Need | Hello)


def _kept(found: list[Result], number: int) -> dict[str, str]:
    return {result.device: result.kept for result in found if result.round == number}


def _saved(folder: Path, examples: Examples) -> Path:
    """A device's data as a file."""
    path = folder / "data.npz"
    names = "train_x", "train_y", "test_x", "test_y"
    np.savez(path, **{name: getattr(examples, name) for name in names})
    return path
