"""An emulation shared among processes or machines, which meet at one broker.

The first shard has the coordinator and the run.  It says once a second, and at each change, where the run stands; the
others host their part of the devices, say that they are ready, and at the end what their devices went through, again
and again until the first has it.  So no order of starts, and no lost message, matters.

::

    edgepfl-emulation/FLEET/state      of the first: State
    edgepfl-emulation/FLEET/ready      of the others: Ready
    edgepfl-emulation/FLEET/part       likewise, in pieces: Part
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import msgspec

from coordinator.status import RunStatus
from device_agent.footprint import pss
from device_agent.session import TaskId
from edgepfl.bus import Arrived, Traffic
from edgepfl.bus.mqtt import MqttBus, MqttSettings
from edgepfl.errors import ConfigError, RunError
from simulators.emulation.cast import Cast, call
from simulators.emulation.emulation import SETTLING, Emulation, Given, broker_of
from simulators.emulation.outcome import Fleetwide
from simulators.emulation.report import EmulationReport, Told
from simulators.emulation.scenario import Scenario
from simulators.emulation.work import data_of
from simulators.emulation.world import FLEET

ROOT = f"edgepfl-emulation/{FLEET}"
AGAIN = 1.0  # seconds until what was said is said again
PATIENCE = 600.0  # seconds without a word of the others, after which they are given up
_PIECE = 100  # devices whose stories go into one message


@dataclass(frozen=True)
class Shard:
    """Which part of the agents a process hosts; by default all of them.

    Attributes:
        number: of the part, from 1.
        shards: how many parts there are.
    """

    number: int = 1
    shards: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """``K/N``.

        Raises:
            ConfigError: it is something else.
        """
        found = re.fullmatch(r"([0-9]{1,4})/([0-9]{1,4})", text)
        number, shards = (int(found[1]), int(found[2])) if found else (0, 0)
        if not 1 <= number <= shards:
            raise ConfigError(f"{text!r} is no part", where="--shard", remedy="Write 1/2 and 2/2 for two processes")
        return cls(number, shards)

    def own(self, devices: tuple[str, ...]) -> tuple[str, ...]:
        """The devices of this part: neighbours, and as many as any other part has, give or take one."""
        begin, end = (len(devices) * place // self.shards for place in (self.number - 1, self.number))
        return devices[begin:end]


class State(msgspec.Struct, frozen=True):
    """Where the run stands, as the first shard says it.

    Attributes:
        run: its id; empty: not started.
        round: committed.
        ended: whether it is over.
        complete: shards whose parts are here.
    """

    run: str = ""
    round: int = 0
    ended: bool = False
    complete: tuple[int, ...] = ()


class Ready(msgspec.Struct, frozen=True):
    """That a shard's agents are switched on."""

    shard: int


class Part(msgspec.Struct, frozen=True):
    """A piece of what a shard's devices went through.

    Attributes:
        shard: whose.
        piece: its number, from 0.
        pieces: how many there are.
        sent: reports: device, round and attempt.
        cancelled: likewise.
        pending: devices that do not know what became of their last report.
        stories: by device.
        joules: likewise.
        happened: places of the scenario's faults that happened to them.
        traffic: bytes in, bytes out, messages in, messages out; all of it in the first piece.
        pss_mib: of the process.
    """

    shard: int
    piece: int
    pieces: int
    sent: tuple[tuple[str, int, int], ...]
    cancelled: tuple[tuple[str, int, int], ...]
    pending: tuple[str, ...]
    stories: dict[str, tuple[Told, ...]]
    joules: dict[str, float]
    happened: tuple[int, ...]
    traffic: tuple[int, int, int, int]
    pss_mib: float


def pieces(shard: int, share: Fleetwide, pss_mib: float) -> Iterator[Part]:
    """A shard's part in pieces that messages can carry."""
    names_of_all = sorted(share.stories)
    groups = [names_of_all[at : at + _PIECE] for at in range(0, len(names_of_all), _PIECE)] or [[]]
    for piece, names in enumerate(groups):
        inside = frozenset(names)
        traffic = share.traffic
        yield Part(
            shard,
            piece,
            len(groups),
            tuple((device, task.round, task.attempt) for device, task in share.sent if device in inside),
            tuple((device, task.round, task.attempt) for device, task in share.cancelled if device in inside),
            tuple(device for device in share.pending if device in inside),
            {device: share.stories[device] for device in names},
            {device: spent for device, spent in share.joules.items() if device in inside},
            tuple(sorted(share.happened)),
            (0, 0, 0, 0) if piece else (traffic.bytes_in, traffic.bytes_out, traffic.messages_in, traffic.messages_out),
            pss_mib,
        )


def share_of(part: Part, run: str) -> Fleetwide:
    """A piece as the report takes it."""
    return Fleetwide(
        frozenset((device, TaskId(run, number, attempt)) for device, number, attempt in part.sent),
        frozenset((device, TaskId(run, number, attempt)) for device, number, attempt in part.cancelled),
        part.pending,
        part.stories,
        Traffic(*part.traffic),
        part.joules,
        frozenset(part.happened),
    )


class _Line:
    """A connection to the broker of one's own, for what shards say to each other."""

    def __init__(self, url: str, name: str, hears: str) -> None:
        self._bus = MqttBus(MqttSettings(url, f"shard-{name}-{os.getpid()}", max_queued=4096, max_queued_bytes=1 << 28))
        self._hears = f"{ROOT}/{hears}"

    async def __aenter__(self) -> Self:
        self._bus.subscribe(self._hears)
        await self._bus.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._bus.stop()

    def say(self, kind: str, message: msgspec.Struct) -> None:
        self._bus.publish(f"{ROOT}/{kind}", msgspec.msgpack.encode(message))

    async def hear(self) -> tuple[str, bytes]:
        """The next message: its kind and its bytes."""
        while True:
            event = await self._bus.receive()
            if isinstance(event, Arrived):
                return event.topic.removeprefix(f"{ROOT}/"), event.payload


def lead(
    scenario: Scenario, folder: Path, shard: Shard, given: Given, see: Callable[[RunStatus], None]
) -> EmulationReport:
    """The first shard's part: coordinator, run and report.

    Raises:
        ConfigError, BusError, RunError: as :func:`~simulators.emulation.emulate`; another shard stays away.
    """
    return asyncio.run(_Lead(scenario, folder, shard, given, see).run())


class _Lead:
    def __init__(
        self, scenario: Scenario, folder: Path, shard: Shard, given: Given, see: Callable[[RunStatus], None]
    ) -> None:
        self._scenario, self._folder, self._shard, self._given, self._see = scenario, folder, shard, given, see
        self._others = frozenset(range(2, shard.shards + 1))
        self._ready: set[int] = set()
        self._parts: dict[tuple[int, int], Part] = {}
        self._counts: dict[int, int] = {}  # pieces of each shard's part
        self._heard = asyncio.Event()

    async def run(self) -> EmulationReport:
        given = replace(self._given, fleet=FLEET)  # which the other shards know
        emulation = Emulation(self._scenario, self._folder, given=given, see=self._see, chosen=self._shard.own)
        async with emulation, _Line(emulation.url, "1", "+") as line, asyncio.TaskGroup() as group:
            tasks = {group.create_task(self._hear(line)), group.create_task(self._say(line, emulation))}
            await self._until("ready", lambda: self._ready >= self._others)
            await emulation.start()
            await emulation.finish()
            await self._until("done", lambda: set(self._complete) >= self._others)
            line.say("state", self._state(emulation))
            for task in tasks:
                task.cancel()
            emulation.others = tuple(share_of(part, emulation.run) for part in self._parts.values())
            report = emulation.report()
        memory = {f"fleet {number}": part.pss_mib for (number, _), part in self._parts.items()}
        return msgspec.structs.replace(report, pss_mib={**report.pss_mib, **memory})

    @property
    def _complete(self) -> tuple[int, ...]:
        """The shards whose parts are here."""
        here = dict.fromkeys(self._counts, 0)
        for number, _ in self._parts:
            here[number] += 1
        return tuple(sorted(number for number, count in here.items() if count == self._counts[number]))

    async def _hear(self, line: _Line) -> None:
        while True:
            kind, data = await line.hear()
            if kind == "ready":
                self._ready.add(msgspec.msgpack.decode(data, type=Ready).shard)
            elif kind == "part":
                part = msgspec.msgpack.decode(data, type=Part)
                self._parts[part.shard, part.piece] = part
                self._counts[part.shard] = part.pieces
            self._heard.set()

    async def _say(self, line: _Line, emulation: Emulation) -> None:
        said = State()
        due = 0.0
        while True:
            state = self._state(emulation)
            if state != said or time.monotonic() >= due:
                line.say("state", state)
                said, due = state, time.monotonic() + AGAIN
            await asyncio.sleep(AGAIN / 20)

    def _state(self, emulation: Emulation) -> State:
        status = emulation.status
        return State(emulation.run, 0 if status is None else status.round, emulation.ended, self._complete)

    async def _until(self, what: str, reached: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                while not reached():
                    self._heard.clear()
                    await self._heard.wait()
        except TimeoutError:
            missing = sorted(self._others - (self._ready if what == "ready" else set(self._complete)))
            raise RunError(
                f"not {what} after {PATIENCE:.0f} s: {', '.join(map(str, missing))} of {self._shard.shards}",
                where="--shard",
                remedy="Start every shard with the same options, --broker and --seed among them",
            ) from None


def follow(scenario: Scenario, folder: Path, shard: Shard, given: Given) -> None:
    """Another shard's part: its devices, until the first says that all is done.

    Raises:
        ConfigError, BusError: as :func:`~simulators.emulation.emulate`.
        RunError: the first shard is not heard of.
    """
    asyncio.run(_follow(scenario, folder, shard, given))


async def _follow(scenario: Scenario, folder: Path, shard: Shard, given: Given) -> None:
    data = await asyncio.to_thread(data_of, scenario) if given.data is None else given.data
    whom = call(scenario, data, shard.own, given.speedup)
    async with AsyncExitStack() as stack:
        broker = given.broker or stack.enter_context(broker_of(scenario.broker))
        cast = Cast(scenario, whom, broker, None, folder, given.speedup)
        await cast.open(stack)
        await cast.world.fleet.arrived()
        line = await stack.enter_async_context(_Line(broker.url, str(shard.number), "state"))
        await _Follower(cast, line, shard).run()


class _Follower:
    """What a shard does that has no coordinator."""

    def __init__(self, cast: Cast, line: _Line, shard: Shard) -> None:
        self._cast, self._line, self._shard = cast, line, shard
        self._state = State()
        self._ended_at: float | None = None
        self._said_at = 0.0

    async def run(self) -> None:
        """Until the first shard has all that these devices told."""
        heard = time.monotonic()
        while self._shard.number not in self._state.complete:
            self._cast.check()
            self._speak()
            try:
                async with asyncio.timeout(AGAIN / 2):
                    _, data = await self._line.hear()
            except TimeoutError:
                if time.monotonic() > heard + PATIENCE:
                    raise RunError(
                        "the first shard is not heard of",
                        where="--shard",
                        remedy="Start it with --shard 1/N and the same --broker",
                    ) from None
                continue
            heard = time.monotonic()
            self._take(msgspec.msgpack.decode(data, type=State))

    def _take(self, state: State) -> None:
        before, self._state = self._state, state
        if state.run and not before.run:
            self._cast.begin()
        if state.round > before.round:
            self._cast.faults.committed(before.round, state.round)
        if state.ended and self._ended_at is None:
            self._ended_at = time.monotonic()

    def _speak(self) -> None:
        if time.monotonic() < self._said_at + AGAIN:
            return
        self._said_at = time.monotonic()
        run = self._state.run
        if self._ended_at is None:
            self._line.say("ready", Ready(self._shard.number))
        elif not self._cast.pending(run) or time.monotonic() > self._ended_at + SETTLING:
            for part in pieces(self._shard.number, self._cast.share(run), (pss() or 0) / 2**20):
                self._line.say("part", part)
