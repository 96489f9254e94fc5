"""One run at work: carries out what the round machine wants.

Nothing is done about an event before the journal has it.  Screening, folding and updating happen in one worker thread,
in order, so that the event loop never waits for arithmetic.  A fault of the algorithm or of an upload costs an attempt;
a fault of the storage ends the service, because nothing may be promised any more: it goes on where it was when it is
started again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import msgspec

from coordinator import events, members, participation, robust, rounds, sums, tasks, updater
from coordinator.arithmetic import Sitting
from coordinator.checkpoint import Saved
from coordinator.cohort import choose
from coordinator.desk import Desk
from coordinator.events import Event
from coordinator.exact import Grid
from coordinator.journal import Checkpoint, RoundCost, RunRow, Status
from coordinator.reports import bare, verdict, wording
from coordinator.rounds import Phase, Policy, Round, State
from coordinator.screen import screen
from coordinator.sums import Form
from edgepfl.algorithms import Algorithm
from edgepfl.bundle import unpack
from edgepfl.errors import CodecError, ConfigError, EdgepflError, StoreError
from edgepfl.topics import Address, ToAll, ToDevice
from edgepfl.wire import BlobRef, Cancel, Commit, Report, Task

log = logging.getLogger(__name__)
T = TypeVar("T")
COMPACT_AFTER = 1000  # journalled events
TOGETHER = 16  # downloads to make at a time, where each device gets its own


class ActiveRun:
    """A run that is going on.

    Args:
        row: what the journal has, or will have before :meth:`resume`.
        checkpoint: its last one.
        desk: the service's.

    Raises:
        EdgepflError: its bundle or settings cannot be used.
    """

    def __init__(self, row: RunRow, checkpoint: Checkpoint, desk: Desk) -> None:
        self.row = row
        self._desk = desk
        data = desk.vault.offered.read(row.bundle)
        bundle = unpack(data, where=f"bundle of {row.id}", golden=False)
        self._bundle_ref = desk.vault.offered.put(data)
        self._plan = bundle.plan
        self._runtimes = frozenset(bundle.graphs)
        self._algorithm = updater.algorithm_of(self._plan, row.config.hyper)
        self._accepted = desk.journal.accepted(row.id)
        self._rule = robust.rule_of(row.config.robust)
        self._server = updater.server_of(self._algorithm, self._plan, row.config.server_optimizer)
        self._arithmetic = desk.arithmetic(row, self._plan)
        self._saved = self._arithmetic.restore(self._algorithm, checkpoint)
        self._check()
        self._round: Round
        self._begin(Round(0, 0, self._policy()))
        tasks.check_size(self._task((), tasks.blank_download(self._plan)), row.config.goal)

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
            self._next_round()
            return
        log.info("%s: going on with round %d, attempt %d", self.row.id, state.number, state.attempt)
        self._begin(state)
        match state.phase:
            case Phase.ABANDONED:
                self._next_attempt(state.why)
            case Phase.STOPPED:
                self._end(Status.STOPPED, rounds.waiting(state))
            case _:
                self.feed(events.Resumed(self._desk.clock()))

    def tick(self) -> None:
        """Time passed, and we were connected."""
        self.feed(events.Ticked(self._desk.clock()))

    def reconnected(self) -> None:
        """The broker was reached (again); everyone is asked for a Hello."""
        self.feed(events.Reconnected(self._desk.clock()))

    def hello(self, device: str) -> None:
        """A device said Hello."""
        usable = self._usable(device)
        self.feed((events.Present if usable else events.Absent)(device, self._desk.clock()))

    def absent(self, device: str) -> None:
        """A device left."""
        self.feed(events.Absent(device, self._desk.clock()))

    def progressed(self, device: str, round_: int, attempt: int) -> None:
        """A device is at work."""
        if self._is_open(round_, attempt):
            self.feed(events.Progressed(device, self._desk.clock()))

    def failed(self, device: str, round_: int, attempt: int, why: str) -> None:
        """A device cannot do its task, or its upload cannot be used."""
        if self._is_open(round_, attempt):
            log.warning("%s: %s failed in round %d: %s", self.row.id, device, round_, wording(why))
            self.feed(events.Failed(device, wording(why), self._desk.clock()))

    def expects(self, report: Report) -> bool:
        """Whether a report is of the open attempt, from a member that has not reported yet."""
        return (
            not self.ended
            and report.run == self.row.id
            and self._is_open(report.round, report.attempt)
            and self._awaited(report.device)
            and report.device not in self._screening
        )

    def refusal(self, report: Report) -> str:
        """Why the upload of an expected report is not worth fetching; empty if it is."""
        try:
            members.check(
                report,
                self._plan,
                hubs=self._desk.hubs,
                steps=self._steps,
                max_examples=self.row.config.max_examples,
                most_bytes=self._form.most_bytes if report.members else 0,
            )
        except CodecError as error:
            return str(error)
        return ""

    def answer(self, report: Report) -> None:
        """Tell a device what became of a report of an earlier round."""
        if report.round <= self._saved.checkpoint.round:
            self._desk.send(ToDevice(report.device, Commit.KIND), verdict(report, self._accepted))

    def reported(self, report: Report) -> None:
        """Screen an expected report whose upload is here, then let the machine have it."""
        self._screening.add(report.device)
        self._desk.spawn(self._screen(report), f"{self.row.id}: screen {report.device}")

    def stop(self) -> None:
        """End the run because a person said so."""
        self.feed(events.Stopped(self._desk.clock()))

    # The machine.

    def feed(self, event: Event, report: Report | None = None) -> None:
        """Journal an event, then act on it.

        Raises:
            StoreError: it could not be written; nothing was done about it.
        """
        if self.ended:
            return
        state, effects = rounds.advance(self._round, event)
        if state == self._round and not effects:
            return
        if not isinstance(event, events.Stored):  # its journal entry is the commit itself
            self._journal(event, report, state)
        self._round = state
        for effect in effects:
            self._carry_out(effect)
        self._desk.changed()

    def _journal(self, event: Event, report: Report | None, after: Round) -> None:
        self._desk.journal.append(self.row.id, event, report)
        self._journalled += 1
        if self._journalled % COMPACT_AFTER == 0:
            self._desk.journal.compact(self.row.id, after)

    def _carry_out(self, effect: events.Effect) -> None:
        match effect:
            case events.Choose(devices, count):
                chosen = choose(devices, count, self.row.config.seed, self._round.number, self._round.attempt)
                known = members.named(devices, self._desk.fleet())
                joined = tuple(device for device in known if device not in self._accepted)
                if not self._is_final:
                    left_out = {members.owner(device) for device in (*devices, *self._accepted)} - set(chosen)
                    participation.warn(self._algorithm, self.row.id, self._round.number, left_out)
                self.feed(events.Chosen(chosen, self._desk.clock(), joined))
            case events.Announce(devices):
                self._sit()
                self._send_task(ToAll(Task.KIND), devices)
            case events.Resend(device):
                self._send_task(ToDevice(device, Task.KIND), (device,))
            case events.Fold(device):
                self._arithmetic.fold(device, self._desk.journal.report(self.row.id, device))
            case events.Release(devices, why):
                cancel = Cancel(self.row.id, self._round.number, self._round.attempt, why)
                for device in devices:
                    self._desk.send(ToDevice(device, Cancel.KIND), cancel)
            case events.Suspect(devices):
                self._desk.suspect(devices)
            case events.Reduce(devices):
                self._desk.spawn(
                    self._reduce(self._round, devices), f"{self.row.id}: reduce round {self._round.number}"
                )
            case events.Commit(devices):
                self._desk.send(ToAll(Commit.KIND), Commit(self.row.id, self._round.number, devices))
                self._next_round()
            case events.Abandon(why):
                self._next_attempt(why)
            case events.End():
                self._end(Status.STOPPED, rounds.waiting(self._round))

    def _send_task(self, address: Address, devices: tuple[str, ...]) -> None:
        """One task for these members, or one for each where each gets a download of its own."""
        if self._saved.download is not None:
            self._desk.send(address, self._task(devices, self._saved.download))
        else:
            self._desk.spawn(self._hand_out(devices), f"{self.row.id}: hand out round {self._round.number}")

    async def _hand_out(self, devices: tuple[str, ...]) -> None:
        """Make the members' own downloads and tell them the task, some at a time: the first need not wait."""
        sitting = self._sitting
        for start in range(0, len(devices), TOGETHER):
            made = await self._downloads(devices[start : start + TOGETHER])
            if sitting is not self._sitting or self.ended:
                return
            for device in filter(self._awaited, made):
                self._desk.send(ToDevice(device, Task.KIND), self._task((device,), made[device]))

    async def _downloads(self, devices: tuple[str, ...]) -> dict[str, BlobRef]:
        """What can be made; whoever gets none has failed."""
        number, attempt = self._round.number, self._round.attempt
        try:
            return dict(await self._arithmetic.downloads(devices))
        except StoreError:
            raise
        except Exception as error:  # an algorithm's fault must not end the service
            if len(devices) > 1:  # it may be the fault of one
                parts = [await self._downloads((device,)) for device in devices]
                return {device: ref for part in parts for device, ref in part.items()}
            log.exception("%s: no download for %s", self.row.id, devices[0])
            self.failed(devices[0], number, attempt, f"{type(error).__name__}: {error}")
            return {}

    def _open(self, number: int, attempt: int, avoid: tuple[str, ...] = ()) -> None:
        """Begin an attempt, without the devices that failed in the last one as long as there are enough others."""
        here = frozenset(filter(self._usable, self._desk.fleet().present(self._runtimes)))
        spare = here - set(avoid)
        here = spare if len(spare) >= self.row.config.minimum else here
        first = Round(number, attempt, self._policy(), since=self._desk.clock(), present=here)
        self._desk.journal.open_round(self.row.id, first)
        self._begin(first)
        self._clean()
        self.tick()

    def _begin(self, state: Round) -> None:
        self._round = state
        self._journalled = 0
        self._screening: set[str] = set()
        self._tuned = self._of_round(state.number)
        self._sit()
        self._opened_at = self._desk.clock()
        self._opened_traffic = self._desk.traffic()

    def _next_round(self) -> None:
        number = self._saved.checkpoint.round
        if tasks.is_final(self.row.config, number):
            self._end(Status.DONE, "")
        else:
            self._open(number + 1, 0)

    def _next_attempt(self, why: str) -> None:
        attempt = self._round.attempt + 1
        log.warning("%s: round %d abandoned: %s", self.row.id, self._round.number, why)
        if attempt >= self.row.config.attempts:
            self._end(
                Status.FAILED, f"round {self._round.number} was abandoned {attempt} times, at last because: {why}"
            )
        else:
            self._open(self._round.number, attempt, avoid=self._round.devices(State.FAILED))

    def _end(self, status: str, why: str) -> None:
        """End the run, and with it whatever the devices still do for its open round."""
        self._desk.journal.end(self.row.id, status, why)
        self.row = msgspec.structs.replace(self.row, status=status, why=why)
        self._clean()
        if self._round.number > self._saved.checkpoint.round:
            self._desk.send(ToAll(Commit.KIND), Commit(self.row.id, self._round.number, ()))
        self._desk.changed()

    # What the effects do.

    @property
    def _is_final(self) -> bool:
        return tasks.is_final(self.row.config, self._round.number)

    @property
    def _steps(self) -> int:
        """Minibatch steps of the open round; 0 where it trains nothing."""
        return tasks.steps_of(self.row.config, self._tuned, self._round.number)

    def _check(self) -> None:
        """Refuse settings that the algorithm cannot run with.

        Raises:
            ConfigError: with the reason.
        """
        participation.check(self._algorithm, self.row.config)
        updater.check_decay(self._algorithm, self._plan, self.row.config.rounds, self.row.config.decay)
        robust.check(self._algorithm, self._plan, self._rule, self.row.config.minimum)
        if self._rule is not None and self.row.config.exact:
            raise ConfigError("exact sums know no robust rule", where="robust", remedy="Give one of the two")
        if self._desk.hubs:
            hubs = " and ".join(sorted(self._desk.hubs))
            members.check_summable(self._algorithm, self._plan, hubs, self.row.config.robust)

    def _usable(self, device: str) -> bool:
        """Whether a device may be chosen; a hub that nobody named, or one without devices, may not."""
        fleet = self._desk.fleet()
        return fleet.can(device, self._runtimes) and members.speaks_for_itself(
            fleet.devices[device].hello, self._desk.hubs
        )

    def _task(self, devices: tuple[str, ...], download: BlobRef) -> Task:
        return tasks.make(
            self.row.id,
            self.row.config,
            self._tuned,
            self._plan,
            number=self._round.number,
            attempt=self._round.attempt,
            cohort=devices,
            accepted=self._accepted,
            bundle=self._bundle_ref,
            download=download,
            settings=members.settings(self._plan, self.row.config.hyper) if self._desk.hubs else {},
            grid=self._grid.top if self._desk.hubs else 0,
        )

    def _of_round(self, number: int) -> Algorithm:
        config, number = self.row.config, max(number, 1)  # before the first round nothing is open
        return updater.of_round(self._algorithm, self._plan, number=number, seed=config.seed, decay=config.decay)

    def _screened(self, report: Report, sha256: str) -> None:
        device, max_norm = report.device, self.row.config.max_norm
        try:
            data = self._desk.vault.private.read(sha256)
        except StoreError as error:  # its loss costs an attempt, not the service
            raise CodecError(str(error), where=f"upload of {device}") from error
        if report.members:
            sums.screen(data, self._form, report, max_norm=max_norm)
        else:
            screen(data, self._plan, device=device, max_norm=max_norm)

    async def _screen(self, report: Report) -> None:
        why = ""
        try:
            if report.upload is not None:
                await self._work(self._screened, report, report.upload.sha256)
        except EdgepflError as error:
            why = str(error)
        except Exception as error:  # whatever a device sends, it must not end the service
            log.exception("%s: the upload of %s cannot be screened", self.row.id, report.device)
            why = f"{type(error).__name__}: {error}"
        if report.upload is not None and not why:
            await self._work(self._desk.vault.private.share, report.upload.sha256)
        if not self._is_open(report.round, report.attempt):
            return
        self._screening.discard(report.device)
        if why:
            self.failed(report.device, report.round, report.attempt, why)
        else:
            self.feed(events.Reported(report.device, self._desk.clock()), bare(report))

    async def _reduce(self, this: Round, devices: tuple[str, ...]) -> None:
        fleet = members.training({*self._accepted, *this.joined}, self._desk.hubs)
        try:
            saved = self._unchanged() if self._is_final else await self._arithmetic.update(devices, fleet)
        except StoreError:
            raise
        except Exception as error:  # an algorithm's fault must not end the service
            log.exception("%s: round %d cannot be reduced", self.row.id, this.number)
            await self._restore()
            if self._round is this:
                self.feed(events.StoreFailed(wording(f"{type(error).__name__}: {error}"), self._desk.clock()))
            return
        if self._round is this:  # nobody stopped the run meanwhile
            self._commit(saved, devices)

    async def _restore(self) -> None:
        """Take the state from the disk again: an update that failed may have changed it in place."""
        self._saved = await self._work(self._arithmetic.restore, self._algorithm, self._saved.checkpoint)

    def _unchanged(self) -> Saved:
        """The state after a round that only evaluates."""
        return replace(
            self._saved, checkpoint=msgspec.structs.replace(self._saved.checkpoint, round=self._round.number)
        )

    def _commit(self, saved: Saved, devices: tuple[str, ...]) -> None:
        reports = self._desk.journal.reports(self.row.id)
        results = tuple(result for device in devices for result in members.results_of(reports[device]))
        spent = self._desk.traffic() - self._opened_traffic
        cost = RoundCost(spent.bytes_in, spent.bytes_out, self._desk.clock() - self._opened_at)
        joined = self._round.joined
        self._desk.journal.commit(self.row.id, saved.checkpoint, results, cost, joined)
        self._accepted = {
            **dict.fromkeys(joined, -1),
            **self._accepted,
            **{result.device: saved.checkpoint.round for result in results},
        }
        self._saved = saved
        log.info(
            "%s: %s is committed, %d reports, %.1f s",
            self.row.id,
            "the final evaluation" if self._is_final else f"round {saved.checkpoint.round}",
            len(results),
            cost.seconds,
        )
        self.feed(events.Stored(self._desk.clock()))

    def _clean(self) -> None:
        """Delete every blob that nothing needs any more; a new attempt expects no upload yet."""
        self._desk.forget()
        used, offered = self._desk.journal.blobs(), self._offered
        self._desk.vault.keep_only(used, offered)
        self._desk.worker.submit(self._desk.vault.collect, used | offered)

    @property
    def _offered(self) -> set[str]:
        """The digests of what devices may still fetch, beside what the journal needs."""
        return set() if self.ended else self._arithmetic.offered

    def _sit(self) -> None:
        """Begin the mathematics of the attempt anew: nothing is folded."""
        number = self._round.number
        last = number == self.row.config.rounds
        grid = self._grid if self.row.config.exact or self._desk.hubs else None
        self._sitting = Sitting(
            number,
            self._round.attempt,
            self._tuned,
            self._saved,
            tuple(sorted(self._round.seats)),
            last,
            grid,
            self._rule,
            self._server,
        )
        self._arithmetic.begin(self._sitting)

    @property
    def _grid(self) -> Grid:
        """Where exact sums lie."""
        return Grid.of(self.row.config.max_norm, self.row.config.max_examples)

    @property
    def _form(self) -> Form:
        """What a hub's sums look like."""
        return Form(self._plan, self._tuned, self._grid)

    def _policy(self) -> Policy:
        config = self.row.config
        return Policy(config.goal, config.minimum, config.gather, config.deadline, config.lease)

    def _awaited(self, device: str) -> bool:
        """Whether the device is a member that may still report."""
        seat = self._round.seats.get(device)
        reporting = self._round.phase is Phase.REPORTING
        return reporting and seat is not None and seat.state in {State.WORKING, State.LOST}

    def _is_open(self, round_: int, attempt: int) -> bool:
        return (round_, attempt) == (self._round.number, self._round.attempt)

    async def _work(self, function: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._desk.worker, function, *arguments)
