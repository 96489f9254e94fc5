"""The coordinator's round machine, with what its service does around it; only the journal survives a restart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from _faulty import World, ref, sha

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
from edgepfl import wire
from edgepfl.wire import Member, Message, Report, Task

RUNTIMES = frozenset({"onnx"})
NOTHING = RoundCost(0, 0, 0.0)


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
        self.journal.create(RunRow(run, config, sha("bundle", run), Status.RUNNING, ""), Checkpoint(0, sha(run), ()))
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
        after = Checkpoint(self.round.number, updated(before.state, uploads), ())
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
