"""Coordinator's and agents' machines against each other, over a bus that loses, repeats and reorders, in virtual time.

Training is a hash: what a device keeps after a round follows from what it kept before, the round and the server's
state, so an update that is counted twice, lost, or trained from the wrong state changes every digest after it.

A message is lost only together with its connection, as over MQTT at QoS 1: the device then connects anew.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from coordinator import rounds
from coordinator.cohort import choose
from coordinator.config import RunConfig
from coordinator.devices import Fleet, doubt, farewell, welcome
from coordinator.events import (
    Abandon,
    Absent,
    Announce,
    Choose,
    Chosen,
    Commit,
    End,
    Event,
    Failed,
    Fold,
    Present,
    Progressed,
    Reconnected,
    Reduce,
    Release,
    Reported,
    Resend,
    Resumed,
    Stored,
    Suspect,
    Ticked,
)
from coordinator.journal import Checkpoint, Journal, Result, RoundCost, RunRow, Status
from coordinator.rounds import Phase, Policy, Round, State
from device_agent import session
from device_agent.session import Session, Standing, TaskId, task_id
from edgepfl import wire
from edgepfl.wire import BlobRef, Member, Message, Report, Task

RUNTIMES = frozenset({"onnx"})
NOTHING = RoundCost(0, 0, 0.0)


def sha(*parts: object) -> str:
    """A digest of some words."""
    return hashlib.sha256("|".join(map(str, parts)).encode()).hexdigest()


def ref(sha256: str) -> BlobRef:
    return BlobRef(sha256, 1 << 20)


@dataclass(frozen=True)
class Faults:
    """Probabilities, and seconds.

    Attributes:
        loss: of a message, and with it of the device's connection.
        repetition: of a message.
        delay: of a message, at most; what is sent later may come earlier.
        agent: seconds between power cuts of some agent; 0 for none.
        coordinator: likewise.
        cut: between a device's commit and its report.
        failure: of a task.
        stuck: of a blob, which then never comes.
    """

    loss: float = 0.0
    repetition: float = 0.0
    delay: float = 0.0
    agent: float = 0.0
    coordinator: float = 0.0
    cut: float = 0.0
    failure: float = 0.0
    stuck: float = 0.0


CALM = Faults()


class World:
    """Virtual time, and the bus."""

    def __init__(self, faults: Faults, seed: int) -> None:
        self.faults = faults
        self.random = Random(seed)
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + seconds, next(self._order), what))

    def send(self, deliver: Callable[[], None], lost: Callable[[], None]) -> None:
        """A message goes its way, or two of it, or none."""
        if self.chance(self.faults.loss):
            lost()
            return
        for _ in range(1 + self.chance(self.faults.repetition)):
            self.after(self.random.uniform(0.0, self.faults.delay), deliver)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def run(self, until: Callable[[], bool], limit: float) -> None:
        """Let time pass until something is true; it must be true before the limit."""
        while not until():
            assert self._queue
            self.now, _, what = heapq.heappop(self._queue)
            assert self.now < limit, "it never ends"
            what()


@dataclass
class Kept:
    """One run's rows in a device's store."""

    settled: int = -1
    keep: str = ""
    pending: tuple[int, int] | None = None
    next_keep: str = ""
    report: Report | None = None

    def drop(self) -> None:
        self.pending, self.next_keep, self.report = None, "", None

    def promote(self) -> None:
        if self.pending is not None:
            self.settled, self.keep = self.pending[0], self.next_keep
        self.drop()


class Agent:
    """A device: its machine, and a store that survives it."""

    def __init__(self, world: World, name: str, send: Callable[[str, Message], None]) -> None:
        self.world = world
        self.name = name
        self.send = send
        self.store: dict[str, Kept] = {}
        self.starts = 0
        self.away = False
        self.s: Session
        self.start()

    def start(self) -> None:
        """Power on: all that is known is in the store."""
        self.starts += 1
        self.s = Session(self.name, {run: Standing(kept.settled, kept.pending) for run, kept in self.store.items()})
        self.feed(session.Connected())

    def feed(self, event: session.Event) -> None:
        self.s, effects = session.advance(self.s, event)
        for effect in effects:
            self.carry_out(effect)
        for run, here in self.s.runs.items():
            kept = self.store.get(run, Kept())
            assert here == Standing(kept.settled, kept.pending)

    def receive(self, message: Task | wire.Commit | wire.Cancel | wire.RollCall) -> None:
        self.feed(session.Received(message, self.world.now))

    def tick(self) -> None:
        self.feed(session.Ticked(self.world.now))

    def disconnect(self) -> None:
        """The connection is lost, and some seconds later there is another."""
        if not self.away:
            self.away = True
            self.world.after(self.world.random.uniform(0.1, 5.0), self.connect)

    def connect(self) -> None:
        self.away = False
        self.feed(session.Connected())

    def carry_out(self, effect: session.Effect) -> None:
        match effect:
            case session.SayHello(pending):
                told = (pending.run, pending.round) if pending else ("", -1)
                self.send(self.name, wire.Hello(self.name, self.starts, ("onnx",), 10, 512, "0", told))
            case session.SendReports():
                for _, kept in sorted(self.store.items()):
                    if kept.report is not None:
                        self.send(self.name, kept.report)
            case session.Fetch(blob):
                seconds = 1e9 if self.world.chance(self.world.faults.stuck) else self.world.random.uniform(0.1, 2.0)
                self.later(seconds, lambda: self.feed(session.Fetched(blob.sha256)))
            case session.Work(task):
                self.later(self.world.random.uniform(0.5, 3.0), lambda: self.work(task))
            case session.Settle(this, accepted):
                self.settle(this, accepted)
            case session.Close(this, accepted):
                kept = self.store[this.run]
                kept.promote() if accepted else kept.drop()
            case session.SendProgress(this):
                self.send(self.name, wire.Progress(self.name, self.starts, this.run, this.round, this.attempt, 1))
            case session.SendFailed(this, code, detail):
                self.send(
                    self.name, wire.Failed(self.name, self.starts, this.run, this.round, this.attempt, code, detail)
                )

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        """Do something unless the power fails before."""
        start = self.starts
        self.world.after(seconds, lambda: what() if self.starts == start else None)

    def settle(self, this: TaskId, accepted: int) -> None:
        kept = self.store.setdefault(this.run, Kept())
        if kept.pending is None or accepted < kept.settled:
            return
        if kept.pending[0] == accepted:
            kept.promote()
        elif kept.pending[0] < accepted or kept.pending < (this.round, this.attempt):
            kept.drop()

    def work(self, task: Task) -> None:
        this = task_id(task)
        if self.s.phase is not session.Phase.WORKING or self.s.task is None or task_id(self.s.task) != this:
            return
        if self.world.chance(self.world.faults.failure):
            self.feed(session.WorkFailed(this, "GraphFailed", "bad luck"))
            return
        kept = self.store.setdefault(task.run, Kept())
        kept.next_keep = trained(kept.keep, self.name, task.round, task.download.sha256)
        kept.pending = (task.round, task.attempt)
        upload = ref(sha("upload", kept.next_keep))
        kept.report = Report(
            self.name, self.starts, task.run, task.round, task.attempt, 10, 1, upload, {}, {}, kept.next_keep
        )
        if self.world.chance(self.world.faults.cut):
            self.start()
        else:
            self.feed(session.Worked(this))


def trained(keep: str, device: str, round_: int, download: str) -> str:
    """What a device keeps after training a round."""
    return sha("keep", keep, device, round_, download)


def updated(state: str, uploads: list[str]) -> str:
    """The server's state after a round."""
    return sha("state", state, *uploads)


@dataclass
class Coordinator:
    """The round machine with what its service does, on a real journal; only the journal survives a restart."""

    world: World
    journal: Journal
    send: Callable[[str, Message], None]
    devices: tuple[str, ...]
    policy: Policy
    row: RunRow | None = None
    fleet: Fleet = field(default_factory=Fleet)
    round: Round = field(default_factory=lambda: Round(0, 0, Policy(1, 1)))
    up: bool = True

    def begin(self, run: str, config: RunConfig) -> None:
        """Start a run."""
        self.journal.create(RunRow(run, config, sha("bundle", run), Status.RUNNING, ""), Checkpoint(0, sha(run), {}))
        self.restart()

    def restart(self) -> None:
        """Power off and on: everything but the journal is forgotten."""
        self.fleet = Fleet()
        self.row = self.journal.running()
        if self.row is not None:
            state = self.journal.open_state(self.row.id)
            if state is None:
                self.next_round()
            else:
                self.round = state
                self.feed(Resumed(self.world.now)) if state.phase is not Phase.ABANDONED else self.next_attempt()
        self.connected()

    def connected(self) -> None:
        self.fleet = doubt(self.fleet, tuple(self.fleet.devices))
        self.feed(Reconnected(self.world.now))
        self.to_all(wire.RollCall(0))

    def to_all(self, message: Message) -> None:
        for device in self.devices:
            self.send(device, message)

    def tick(self) -> None:
        self.feed(Ticked(self.world.now))

    def receive(self, device: str, message: Message) -> None:
        match message:
            case wire.Hello():
                self.fleet = welcome(self.fleet, message)
                here = self.fleet.can(device, RUNTIMES)
                self.feed((Present if here else Absent)(device, self.world.now))
            case wire.Gone():
                self.fleet = farewell(self.fleet, message)
            case wire.Progress() if self.is_open(message):
                self.feed(Progressed(device, self.world.now))
            case wire.Failed() if self.is_open(message):
                self.feed(Failed(device, message.code, self.world.now))
            case Report():
                self.report(message)

    def is_open(self, message: wire.Progress | wire.Failed | Report) -> bool:
        now = (self.row and self.row.id, self.round.number, self.round.attempt)
        return (message.run, message.round, message.attempt) == now

    def report(self, report: Report) -> None:
        seat = self.round.seats.get(report.device)
        expected = seat is not None and seat.state in {State.WORKING, State.LOST}
        if self.is_open(report) and self.round.phase is Phase.REPORTING and expected:
            self.feed(Reported(report.device, self.world.now), report)
        elif report.round <= self.journal.checkpoint(report.run).round or self.row is None or self.row.id != report.run:
            counts = self.journal.accepted(report.run).get(report.device) == report.round
            self.send(report.device, wire.Commit(report.run, report.round, (report.device,) if counts else ()))

    def feed(self, event: Event, report: Report | None = None) -> None:
        if self.row is None:
            return
        state, effects = rounds.advance(self.round, event)
        if state == self.round and not effects:
            return
        if not isinstance(event, Stored):
            self.journal.append(self.row.id, event, report)
            assert self.journal.open_state(self.row.id) == state
        self.round = state
        for effect in effects:
            self.carry_out(effect, self.row)

    def carry_out(self, effect: object, row: RunRow) -> None:
        match effect:
            case Choose(devices, count):
                self.feed(Chosen(choose(devices, count, row.config.seed, self.round.number), self.world.now))
            case Announce(devices):
                self.to_all(self.task(row, devices))
            case Resend(device):
                self.send(device, self.task(row, (device,)))
            case Fold(device):
                assert self.journal.report(row.id, device).round == self.round.number
            case Release(devices, why):
                for device in devices:
                    self.send(device, wire.Cancel(row.id, self.round.number, self.round.attempt, why))
            case Suspect(devices):
                self.fleet = doubt(self.fleet, devices)
                for device in devices:
                    self.send(device, wire.RollCall(0))
            case Reduce(devices):
                this = self.round
                self.world.after(0.5, lambda: self.commit(row, devices) if self.up and self.round is this else None)
            case Commit(devices):
                self.to_all(wire.Commit(row.id, self.round.number, devices))
                self.next_round()
            case Abandon():
                self.next_attempt()
            case End():
                self.end(row, Status.STOPPED)

    def commit(self, row: RunRow, devices: tuple[str, ...]) -> None:
        before, reports = self.journal.checkpoint(row.id), self.journal.reports(row.id)
        uploads = [blob.sha256 for device in devices if (blob := reports[device].upload) is not None]
        results = tuple(Result(self.round.number, d, 10, 1, {}, {}, reports[d].kept) for d in devices)
        after = Checkpoint(self.round.number, updated(before.state, uploads), {})
        self.journal.commit(row.id, after, results, NOTHING)
        self.feed(Stored(self.world.now))

    def next_round(self) -> None:
        if self.row is None:
            return
        number = self.journal.checkpoint(self.row.id).round
        if number >= self.row.config.rounds:
            self.end(self.row, Status.DONE)
        else:
            self.open(self.row, number + 1, 0)

    def next_attempt(self) -> None:
        if self.row is None:
            return
        if self.round.attempt + 1 >= self.row.config.attempts:
            self.end(self.row, Status.FAILED)
        else:
            self.open(self.row, self.round.number, self.round.attempt + 1)

    def open(self, row: RunRow, number: int, attempt: int) -> None:
        here = frozenset(self.fleet.present(RUNTIMES))
        self.round = Round(number, attempt, self.policy, since=self.world.now, present=here)
        self.journal.open_round(row.id, self.round)
        self.tick()

    def end(self, row: RunRow, status: str) -> None:
        self.journal.end(row.id, status)
        self.row = None
        if self.round.number > self.journal.checkpoint(row.id).round:
            self.to_all(wire.Commit(row.id, self.round.number, ()))

    def task(self, row: RunRow, devices: tuple[str, ...]) -> Task:
        accepted, state = self.journal.accepted(row.id), self.journal.checkpoint(row.id).state
        return Task(
            run=row.id,
            round=self.round.number,
            attempt=self.round.attempt,
            cohort=tuple(Member(device, accepted.get(device, -1)) for device in devices),
            bundle=ref(row.bundle),
            download=ref(state),
            hyper={},
            steps=1,
            seed=1,
            evaluate=False,
            tune_steps=0,
            final=False,
            deadline=self.policy.deadline,
            heartbeat=self.policy.lease / 4,
        )


class Scene:
    """One coordinator and its devices among faults."""

    def __init__(self, faults: Faults, seed: int, *, devices: int = 4, goal: int = 3, minimum: int = 2) -> None:
        self.world = World(faults, seed)
        names = tuple(f"pi-{number}" for number in range(devices))
        policy = Policy(goal, minimum, gather=4.0, deadline=60.0, lease=8.0)
        self.coordinator = Coordinator(self.world, Journal(Path(":memory:")), self._down, names, policy)
        self.agents: dict[str, Agent] = {}
        for name in names:
            self.agents[name] = Agent(self.world, name, self._up)
        self._every(0.5, self._tick)
        if faults.agent:
            self._every(faults.agent, lambda: self.world.random.choice(list(self.agents.values())).start())
        if faults.coordinator:
            self._every(faults.coordinator, self._power_cut)

    def train(self, run: str, rounds_: int) -> str:
        """One run to its end; its status."""
        config = RunConfig(name=run, rounds=rounds_, seed=self.world.random.getrandbits(32), attempts=6)
        self.coordinator.begin(run, config)
        self.world.run(lambda: self.coordinator.up and self.coordinator.row is None, limit=self.world.now + 1e5)
        row = self.coordinator.journal.run(run)
        assert row is not None
        return row.status

    def heal(self) -> None:
        """The network is whole again, and everyone connects anew."""
        self.world.faults = CALM
        for agent in self.agents.values():
            agent.feed(session.Connected())
        end = self.world.now + 300.0
        self.world.run(lambda: self.world.now >= end, limit=end + 10.0)

    def _tick(self) -> None:
        for agent in self.agents.values():
            agent.tick()
        if self.coordinator.up:
            self.coordinator.tick()

    def _power_cut(self) -> None:
        """The coordinator is away for some seconds."""
        if self.world.faults is not CALM and self.coordinator.up:
            self.coordinator.up = False
            self.world.after(self.world.random.uniform(0.0, 5.0), self._power_on)

    def _power_on(self) -> None:
        self.coordinator.up = True
        self.coordinator.restart()

    def _every(self, seconds: float, what: Callable[[], object]) -> None:
        def again() -> None:
            what()
            self.world.after(seconds, again)

        self.world.after(seconds, again)

    def _down(self, device: str, message: Message) -> None:
        """What a coordinator sends: a device that is being started when it comes does not get it."""
        if isinstance(message, Task | wire.Commit | wire.Cancel | wire.RollCall):
            agent = self.agents[device]
            self.world.send(lambda: agent.receive(message), agent.disconnect)

    def _up(self, device: str, message: Message) -> None:
        def deliver() -> None:
            if self.coordinator.up:
                self.coordinator.receive(device, message)

        self.world.send(deliver, lambda: self.agents[device].disconnect() if device in self.agents else None)
