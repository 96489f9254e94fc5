"""One run at work: carries out what the round machine wants.

Nothing is done about an event before the journal has it.  Screening, folding and updating happen in one worker thread,
in order, so that the event loop never waits for arithmetic.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from coordinator import rounds, tasks, updater
from coordinator.cohort import choose
from coordinator.devices import Fleet
from coordinator.journal import Checkpoint, Journal, Result, RoundCost, RunRow, Status, specs_of
from coordinator.reduction import Reduction, Upload
from coordinator.rounds import Event, Phase, Policy, Round, State
from coordinator.screen import screen
from edgepfl import codec
from edgepfl.bundle import unpack
from edgepfl.bus import Traffic
from edgepfl.bus.blobs import BlobStore
from edgepfl.errors import EdgepflError
from edgepfl.plan import Role
from edgepfl.topics import Address, ToAll, ToDevice
from edgepfl.tree import Trees
from edgepfl.wire import BlobRef, Cancel, Commit, Message, Report, Task

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True)
class Desk:
    """What a run works with; all of it belongs to the service.

    Attributes:
        journal: the truth.
        offered: blobs that any device may have: bundles and downloads.
        private: blobs that none may: states and uploads.
        send: publishes a message.
        fleet: who is here.
        traffic: what crossed the bus so far.
        worker: one thread for arithmetic.
        clock: seconds that never go back.
        device: where uploads are folded.
        changed: called after every change that a watcher may want to see.
        broken: called with an error that no job expected.
    """

    journal: Journal
    offered: BlobStore
    private: BlobStore
    send: Callable[[Address, Message], None]
    fleet: Callable[[], Fleet]
    traffic: Callable[[], Traffic]
    worker: Executor
    clock: Callable[[], float]
    device: str
    changed: Callable[[], None]
    broken: Callable[[BaseException], None]


class ActiveRun:
    """A run that is going on.

    Raises:
        EdgepflError: its bundle or settings cannot be used.
    """

    def __init__(self, row: RunRow, desk: Desk) -> None:
        self.row = row
        self._desk = desk
        self._bundle_ref = desk.offered.put(desk.offered.read(row.bundle))
        bundle = unpack(desk.offered.read(row.bundle), where=f"bundle of {row.id}")
        self._plan = bundle.plan
        self._runtimes = frozenset(bundle.graphs)
        self._algorithm = updater.algorithm_of(self._plan, row.config.hyper)
        self._accepted = desk.journal.accepted(row.id)
        self._load(desk.journal.checkpoint(row.id))
        self._screening: set[str] = set()
        self._jobs: set[asyncio.Task[None]] = set()
        self._round = Round(0, 0, self._policy())
        self._reduction = self._new_reduction()

    @property
    def round(self) -> Round:
        """The round machine's state."""
        return self._round

    @property
    def ended(self) -> bool:
        """Whether the run is over."""
        return self.row.status != Status.RUNNING

    # The service tells.

    def resume(self) -> None:
        """Begin, or go on where the journal ends."""
        state = self._desk.journal.open_state(self.row.id)
        if state is None:
            self._open(self._checkpoint.round + 1, 0)
            return
        log.info("%s: going on with round %d, attempt %d", self.row.id, state.number, state.attempt)
        self._begin(state)
        if state.phase is Phase.ABANDONED:
            self._next_attempt(state.why)
        else:
            self.feed(rounds.Resumed(self._desk.clock()))

    def tick(self) -> None:
        """Time passed."""
        self.feed(rounds.Ticked(self._desk.clock()))

    def present(self, device: str) -> None:
        """A device said Hello."""
        if device in self._desk.fleet().present(self._runtimes):
            self.feed(rounds.Present(device, self._desk.clock()))

    def absent(self, device: str) -> None:
        """A device left."""
        self.feed(rounds.Absent(device, self._desk.clock()))

    def progressed(self, device: str, round_: int, attempt: int) -> None:
        """A device is at work."""
        if self._is_open(round_, attempt):
            self.feed(rounds.Progressed(device, self._desk.clock()))

    def failed(self, device: str, round_: int, attempt: int, why: str) -> None:
        """A device cannot do its task."""
        if self._is_open(round_, attempt):
            log.warning("%s: %s failed in round %d: %s", self.row.id, device, round_, why)
            self.feed(rounds.Failed(device, why, self._desk.clock()))

    def expects(self, report: Report) -> bool:
        """Whether a report is of the open attempt, from a member that has not reported yet."""
        seat = self._round.seats.get(report.device)
        return (
            self._is_open(report.round, report.attempt)
            and self._round.phase is Phase.REPORTING
            and seat is not None
            and seat.state in {State.WORKING, State.LOST}
            and report.device not in self._screening
        )

    def answer(self, report: Report) -> None:
        """Tell a device what became of a report of an earlier round."""
        if report.round <= self._checkpoint.round:
            counts = self._accepted.get(report.device) == report.round
            commit = Commit(self.row.id, report.round, (report.device,) if counts else ())
            self._desk.send(ToDevice(report.device, Commit.KIND), commit)

    def reported(self, report: Report) -> None:
        """Screen an expected report whose upload is here, then let the machine have it."""
        self._screening.add(report.device)
        self._spawn(self._screen(report), f"screen {report.device}")

    def stop(self) -> None:
        """End the run because a person said so."""
        self.feed(rounds.Stopped(self._desk.clock()))
        if not self.ended:
            self._end(Status.STOPPED, "stopped by a person")

    async def close(self) -> None:
        """Wait for what the worker is doing."""
        if self._jobs:
            await asyncio.wait(self._jobs)

    # The machine.

    def feed(self, event: Event, report: Report | None = None) -> None:
        """Journal an event, then act on it."""
        if self.ended:
            return
        state, effects = rounds.advance(self._round, event)
        if state == self._round and not effects:
            return
        if not isinstance(event, rounds.Stored):  # its journal entry is the commit itself
            self._desk.journal.append(self.row.id, event, report)
        self._round = state
        for effect in effects:
            self._carry_out(effect)
        self._desk.changed()

    def _carry_out(self, effect: rounds.Effect) -> None:
        match effect:
            case rounds.Choose(devices, count):
                chosen = choose(devices, count, self.row.config.seed, self._round.number)
                self.feed(rounds.Chosen(chosen, self._desk.clock()))
            case rounds.Announce(devices):
                self._reduction = self._new_reduction()
                self._desk.send(ToAll(Task.KIND), self._task(devices))
            case rounds.Resend(device):
                self._desk.send(ToDevice(device, Task.KIND), self._task((device,)))
            case rounds.Fold(device):
                self._fold(device)
            case rounds.Release(devices, why):
                for device in devices:
                    self._desk.send(ToDevice(device, Cancel.KIND), Cancel(self.row.id, self._round.number, why))
            case rounds.Reduce(devices):
                self._spawn(self._reduce(devices), f"reduce round {self._round.number}")
            case rounds.Commit(devices):
                self._desk.send(ToAll(Commit.KIND), Commit(self.row.id, self._round.number, devices))
                self._next_round()
            case rounds.Abandon(why):
                self._next_attempt(why)

    def _open(self, number: int, attempt: int) -> None:
        here = frozenset(self._desk.fleet().present(self._runtimes))
        first = Round(number, attempt, self._policy(), since=self._desk.clock(), present=here)
        self._desk.journal.open_round(self.row.id, first)
        self._begin(first)
        self.tick()

    def _begin(self, state: Round) -> None:
        self._round = state
        self._screening.clear()
        self._reduction = self._new_reduction()
        self._opened_at = self._desk.clock()
        self._opened_traffic = self._desk.traffic()

    def _next_round(self) -> None:
        if tasks.is_final(self.row.config, self._round.number):
            self._end(Status.DONE, "")
        else:
            self._open(self._round.number + 1, 0)

    def _next_attempt(self, why: str) -> None:
        attempt = self._round.attempt + 1
        log.warning("%s: round %d abandoned: %s", self.row.id, self._round.number, why)
        if attempt >= self.row.config.attempts:
            self._end(
                Status.FAILED, f"round {self._round.number} was abandoned {attempt} times, at last because: {why}"
            )
        elif not self.ended:
            self._open(self._round.number, attempt)

    def _end(self, status: str, why: str) -> None:
        self._desk.journal.set_status(self.row.id, status, why)
        self.row = msgspec.structs.replace(self.row, status=status, why=why)
        self._desk.changed()

    # What the effects do.

    def _task(self, devices: tuple[str, ...]) -> Task:
        return tasks.make(
            self.row.id,
            self.row.config,
            self._algorithm,
            self._plan,
            number=self._round.number,
            attempt=self._round.attempt,
            cohort=devices,
            accepted=self._accepted,
            bundle=self._bundle_ref,
            download=self._download,
        )

    def _fold(self, device: str) -> None:
        report = self._desk.journal.report(self.row.id, device)
        if report.upload is None:
            return
        sha256 = report.upload.sha256

        def load() -> Trees:
            return self._screened(device, sha256)

        offer = (device, Upload(report.examples, report.steps, load))
        self._desk.worker.submit(self._reduction.offer, *offer)

    def _screened(self, device: str, sha256: str) -> Trees:
        data = self._desk.private.read(sha256)
        return screen(data, self._plan, device=device, max_norm=self.row.config.max_norm)

    async def _screen(self, report: Report) -> None:
        attempt = (self._round.number, self._round.attempt)
        why = ""
        try:
            if report.upload is not None:
                await self._work(self._screened, report.device, report.upload.sha256)
            elif not tasks.is_final(self.row.config, report.round):
                why = "its report has no upload"
        except EdgepflError as error:
            why = str(error)
        if (self._round.number, self._round.attempt) != attempt:
            return
        self._screening.discard(report.device)
        if why:
            self.failed(report.device, report.round, report.attempt, why)
        else:
            self.feed(rounds.Reported(report.device, self._desk.clock()), _bare(report))

    async def _reduce(self, devices: tuple[str, ...]) -> None:
        number = self._round.number
        try:
            new = (
                self._checkpoint if tasks.is_final(self.row.config, number) else await self._work(self._update, devices)
            )
            new = Checkpoint(number, new.state, new.specs)
            self._commit(new, devices)
        except (EdgepflError, RuntimeError) as error:  # torch raises RuntimeError
            log.exception("%s: round %d cannot be reduced", self.row.id, number)
            self.feed(rounds.StoreFailed(str(error), self._desk.clock()))

    def _update(self, devices: tuple[str, ...]) -> Checkpoint:
        """In the worker: close the reduction, update the state and store it."""
        got = self._reduction.close(devices)
        state = updater.next_state(self._algorithm, self._state, got)
        ref = self._desk.private.put(codec.encode(state))
        return Checkpoint(self._round.number, ref.sha256, specs_of(state))

    def _commit(self, new: Checkpoint, devices: tuple[str, ...]) -> None:
        reports = self._desk.journal.reports(self.row.id)
        results = tuple(_result(reports[device]) for device in devices)
        spent = self._desk.traffic() - self._opened_traffic
        cost = RoundCost(spent.bytes_in, spent.bytes_out, self._desk.clock() - self._opened_at)
        self._desk.journal.commit(self.row.id, new, results, cost)
        self._accepted |= dict.fromkeys(devices, new.round)
        self._load(new)
        self._clean()
        self.feed(rounds.Stored(self._desk.clock()))

    def _clean(self) -> None:
        used = self._desk.journal.blobs()
        self._desk.private.keep_only(used)
        self._desk.offered.keep_only({self._download.sha256} | used)

    def _load(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._state = codec.decode(self._desk.private.read(checkpoint.state), checkpoint.specs, where="checkpoint")
        down = codec.encode(updater.downloads(self._algorithm, self._state, ""))
        self._download = self._desk.offered.ref_inline(self._desk.offered.put(down))

    def _new_reduction(self) -> Reduction:
        slots = self._plan.by_role(Role.UP)
        return Reduction(slots, self._round.seats, self._algorithm.weighting, self._desk.device)

    def _policy(self) -> Policy:
        config = self.row.config
        return Policy(config.goal, config.minimum, config.gather, config.deadline, config.lease)

    def _is_open(self, round_: int, attempt: int) -> bool:
        return (round_, attempt) == (self._round.number, self._round.attempt)

    async def _work(self, function: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._desk.worker, function, *arguments)

    def _spawn(self, job: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(job, name=f"{self.row.id}: {name}")
        self._jobs.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, job: asyncio.Task[None]) -> None:
        self._jobs.discard(job)
        if not job.cancelled() and (error := job.exception()) is not None:
            self._desk.broken(error)


def _bare(report: Report) -> Report:
    """The report as it is journalled: its upload is in the blob store."""
    if report.upload is None:
        return report
    upload = BlobRef(report.upload.sha256, report.upload.size)
    return msgspec.structs.replace(report, upload=upload)


def _result(report: Report) -> Result:
    return Result(
        report.round, report.device, report.examples, report.steps, report.metrics, report.seconds, report.kept
    )
