"""Servers as processes that a test stops and kills where it wants, and real agents whose words it holds back.

What a server has done is read in its journal, and what it said on the broker: a phase is reached when either shows it,
and lasts because something that would end it is held back.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import msgspec
import psutil

from coordinator.journal import Result
from device_agent.data import Examples
from device_agent.runners.onnx import OnnxRunner
from device_agent.service import AgentService, Place, will
from device_agent.work import Workshop
from edgepfl import wire
from edgepfl.bus import Arrived
from edgepfl.bus.mqtt import MqttBus, MqttSettings
from edgepfl.topics import FromDevice, Topics
from edgepfl.wire import Gone, Hello, Message, Report

LOOK = 0.02  # seconds between two looks at what others do
NEVER, ALWAYS = 0, 1 << 30  # rounds


class Server:
    """A server and the processes that it started, for as long as the context lasts.

    Args:
        words: after ``python -m``.
        log: where its output goes.
    """

    def __init__(self, words: Iterable[str], log: Path) -> None:
        self._words = [sys.executable, "-m", *words]
        self._log = log
        self._process: psutil.Popen | None = None

    @classmethod
    def of(cls, command: str, settings: Path) -> Self:
        """``edgepfl COMMAND --config SETTINGS``."""
        return cls(("edgepfl", command, "--config", str(settings)), settings.with_suffix(".log"))

    @classmethod
    def torchrun(cls, command: str, settings: Path, ranks: int) -> Self:
        """The same in several ranks."""
        launcher = "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "--max-restarts=3", "-m"
        return cls((*launcher, "edgepfl", command, "--config", str(settings)), settings.with_suffix(".log"))

    def start(self) -> None:
        """Start it, or start it again."""
        with self._log.open("ab") as out:
            self._process = psutil.Popen(
                self._words, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "1"}
            )

    def suspend(self) -> None:
        """Stop all of it where it is, the process first that may start others."""
        if self._process is not None and self._process.poll() is None:
            self._process.suspend()
        for process in self._family():
            process.suspend()

    def resume(self) -> None:
        """Let it go on."""
        for process in self._family():
            process.resume()

    def kill(self) -> None:
        """End all of it as a power cut would, wherever it is."""
        self.suspend()
        family = self._family()
        for process in family:
            process.kill()
        psutil.wait_procs(family)

    def check(self) -> None:
        """Fail if it ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            raise AssertionError(f"{self._words} ended: {self._log.read_text()[-2000:]}")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _family(self) -> list[psutil.Process]:
        if self._process is None or self._process.poll() is not None:
            return []
        return [self._process, *self._process.children(recursive=True)]


@dataclass(frozen=True)
class Standing:
    """What a coordinator's or a hub's journal says of a run.

    Attributes:
        status: of the run.
        committed: its last committed round.
        open: the number of the open round, 0 for none.
        chosen: whether its cohort is.
        reports: how many of them count.
    """

    status: str
    committed: int
    open: int
    chosen: bool
    reports: int


_QUERIES = (
    "SELECT status FROM runs WHERE id = ?",
    "SELECT max(round) FROM checkpoints WHERE run = ?",
    "SELECT max(round) FROM rounds WHERE run = ?",
    "SELECT count(*) FROM events WHERE run = ? AND kind = 'Chosen'",
    "SELECT count(*) FROM events WHERE run = ? AND kind = 'Reported'",
)


@contextmanager
def _opened(state: Path) -> Iterator[sqlite3.Connection]:
    """The journal, of a server that runs or not, which this changes in no way."""
    with closing(sqlite3.connect(f"file:{state / 'journal.db'}?mode=ro", uri=True)) as journal:
        yield journal


def standing(state: Path, run: str) -> Standing | None:
    """What the journal under a directory says; None while it does not know the run."""
    if not (state / "journal.db").exists():
        return None
    with _opened(state) as journal:
        journal.execute("BEGIN")  # all of it at one moment
        if journal.execute("PRAGMA user_version").fetchone() == (0,):  # it is being made
            return None
        found = [journal.execute(query, (run,)).fetchone() for query in _QUERIES]
    if found[0] is None:
        return None
    status, committed, number, chosen, reports = (value for (value,) in found)
    return Standing(status, committed, number or 0, chosen=bool(chosen), reports=reports)


def states(state: Path, run: str) -> dict[int, str]:
    """The digest of a run's state after each round."""
    with _opened(state) as journal:
        return dict(journal.execute("SELECT round, state FROM checkpoints WHERE run = ?", (run,)))


def results(state: Path, run: str) -> list[Result]:
    """What the reports of a run said that count, without what took how long."""
    with _opened(state) as journal:
        rows = journal.execute("SELECT body FROM results WHERE run = ? ORDER BY round, device", (run,))
        found = [msgspec.json.decode(body, type=Result) for (body,) in rows]
    return [msgspec.structs.replace(result, seconds={}) for result in found]


@asynccontextmanager
async def listening(bus: MqttBus, hear: Callable[[Arrived], None]) -> AsyncIterator[None]:
    """A bus that nobody else listens to, and whatever arrives on it."""

    async def listen() -> None:
        while True:
            event = await bus.receive()
            if isinstance(event, Arrived):
                hear(event)

    await bus.start()
    task = asyncio.ensure_future(listen())
    try:
        yield
    finally:
        task.cancel()
        await bus.stop()


class Tap:
    """Hears what servers and devices say to each other."""

    def __init__(self, url: str, *fleets: str) -> None:
        self._bus = MqttBus(MqttSettings(url, "tap"))
        self._heard: list[tuple[str, Message]] = []
        for topics in map(Topics, fleets):
            for_all = topics.for_device("any")[1]
            devices, _ = topics.for_coordinator()
            for topic_filter in (devices, for_all, topics.for_aggregator(), topics.from_aggregator()):
                self._bus.subscribe(topic_filter)

    @property
    def now(self) -> int:
        """How much was heard."""
        return len(self._heard)

    def heard(self, topic: str, since: int, such: Callable[[Message], bool] = lambda _: True) -> bool:
        """Whether something was said under a topic, after so much was heard."""
        return any(where == topic and such(message) for where, message in self._heard[since:])

    @property
    def attempts(self) -> set[int]:
        """At which attempts at rounds reports were made."""
        return {said.attempt for _, said in self._heard if isinstance(said, Report)}

    def listening(self) -> AbstractAsyncContextManager[None]:
        """Hear."""
        return listening(self._bus, lambda arrived: self._heard.append((arrived.topic, wire.decode(arrived.payload))))


class Valve(MqttBus):
    """A device's connection, which holds its reports back until they are allowed, and can make it look away."""

    def __init__(self, url: str, fleet: str, device: str, session: int) -> None:
        super().__init__(MqttSettings(url, device), will=will(fleet, device, session))
        self._gone = Gone(device, session)
        self._gone_topic = Topics(fleet).build(FromDevice(device, Gone.KIND))
        self._allowed = ALWAYS
        self._away = False
        self._held: dict[str, bytes] = {}  # by topic, the last

    @property
    def holds(self) -> bool:
        """Whether a report is held back."""
        return any(topic.endswith(f"/{Report.KIND}") for topic in self._held)

    def allow(self, round_: int) -> None:
        """Let the reports of the rounds up to this one pass, and hold others back."""
        self._allowed = round_
        self._let_go()

    def leave(self) -> None:
        """Say that the device is gone, and let it say that it is here no more."""
        self._away = True
        super().publish(self._gone_topic, wire.encode(self._gone))

    def come_back(self) -> None:
        """Let the device say that it is here."""
        if self._away:
            self._away = False
            self._held.setdefault(self._gone_topic.removesuffix(Gone.KIND) + Hello.KIND, self._hello)
            self._let_go()

    def publish(self, topic: str, payload: bytes, *, qos: Literal[0, 1] = 1) -> bool:
        """See :class:`~edgepfl.bus.Bus`."""
        if topic.endswith(f"/{Hello.KIND}"):
            self._hello = payload
        if self._passes(topic, payload):
            return super().publish(topic, payload, qos=qos)
        self._held[topic] = payload
        return True

    def _passes(self, topic: str, payload: bytes) -> bool:
        if topic.endswith(f"/{Hello.KIND}"):
            return not self._away
        if not topic.endswith(f"/{Report.KIND}"):
            return True
        report = wire.decode(payload)
        return isinstance(report, Report) and report.round <= self._allowed

    def _let_go(self) -> None:
        held, self._held = self._held, {}
        for topic, payload in held.items():
            self.publish(topic, payload)


class Agents:
    """Real agents, each behind a valve; places say whose fleet they are in."""

    def __init__(self, url: str, places: Mapping[str, str], data: Mapping[str, Examples], folder: Path) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="work")
        self._url, self._data, self._folder = url, data, folder
        self._workshop = Workshop(OnnxRunner)
        self._serving: dict[str, asyncio.Task[None]] = {}
        self.fleet_of = dict(places)
        self.valves: dict[str, Valve] = {}

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Have them serve."""
        places = {name: Place.open(self._folder / name) for name in self.fleet_of}
        for name, place in places.items():
            self._serving[name] = asyncio.ensure_future(self._service(name, place).run())
        try:
            yield
        finally:
            for task in self._serving.values():
                task.cancel()
            await asyncio.gather(*self._serving.values(), return_exceptions=True)
            self._pool.shutdown()
            for place in places.values():
                place.store.close()

    def check(self) -> None:
        """Raise what ended one of them."""
        for task in self._serving.values():
            if task.done():
                task.result()

    def valve(self, fleet: str, device: str, session: int) -> Valve:
        """A device's connection."""
        return Valve(self._url, fleet, device, session)

    def _service(self, name: str, place: Place) -> AgentService:
        number, fleet = place.store.next_session(), self.fleet_of[name]
        self.valves[name] = self.valve(fleet, name, number)
        return AgentService(
            name,
            fleet,
            number,
            bus=self.valves[name],
            place=place,
            examples=self._data[name],
            workshop=self._workshop,
            pool=self._pool,
        )
