"""One run at work: carries out what the round machine wants.

Nothing is done about an event before the journal has it.  Screening, folding and updating happen in one worker thread,
in order, so that the event loop never waits for arithmetic.  A fault of the algorithm or of an upload costs an attempt;
a fault of the storage ends the service, because nothing may be promised any more: it goes on where it was when it is
started again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeVar

import msgspec

from coordinator import buffered, events, members, orphans, participation, quarantine, rounds, tasks
from coordinator.arithmetic import Sitting
from coordinator.attendance import Attendance
from coordinator.blame import DOWNLOAD
from coordinator.busy import Busy
from coordinator.checkpoint import Saved
from coordinator.cohort import choose
from coordinator.conditions import obstacles, roll_call
from coordinator.desk import Desk
from coordinator.events import Event
from coordinator.handout import Handout
from coordinator.intake import Downloads, Intake
from coordinator.journal import Checkpoint, RunRow, Status, cost_of
from coordinator.privacy.accounting import Accounting
from coordinator.quarantine import Conduct
from coordinator.reports import accepted_after, bare, is_accepted, verdict, wording
from coordinator.roster import Background
from coordinator.rounds import Phase, Policy, Round, State
from coordinator.screening import Screening
from coordinator.secagg.exchange import Exchange
from coordinator.terms import Terms
from edgepfl.bundle import unpack
from edgepfl.errors import StoreError
from edgepfl.topics import Address, ToAll, ToDevice
from edgepfl.wire import BlobRef, Cancel, Commit, Failed, Progress, Report, RollCall, Stopped, Task

log = logging.getLogger(__name__)
T = TypeVar("T")
COMPACT_AFTER = 1000  # journalled events


class ActiveRun:
    """A run that is going on.

    Args:
        row: what the journal has, or will have before :meth:`resume`.
        checkpoint: its last one.
        desk: the service's.
        agreed: the terms of this kind of run, from a coordinator's.

    Raises:
        EdgepflError: its bundle or settings cannot be used.
    """

    def __init__(
        self, row: RunRow, checkpoint: Checkpoint, desk: Desk, agreed: Callable[[Terms], Terms] = lambda terms: terms
    ) -> None:
        self.row = row
        self._desk = desk
        data = desk.vault.offered.read(row.bundle)
        bundle = unpack(data, where=f"bundle of {row.id}", golden=False)
        self._terms = agreed(Terms.of(row.id, row.config, bundle, desk.vault.offered.put(data), desk.hubs))
        self._accepted = desk.journal.accepted(row.id)
        self._conduct = desk.journal.conduct(row.id)
        self._attendance = Attendance(row.id, row.config.lease, desk.send, desk.clock)
        self._arithmetic = desk.arithmetic(row, bundle.plan)
        self._saved = self._arithmetic.restore(self._terms.algorithm, checkpoint)
        self._terms.check()
        self._exchange = Exchange(row.id, row.config, desk, self.failed, self._attendance.stop)
        self._private = Accounting.of(row.id, row.config, desk.journal, desk.draw)
        self._intake = Intake()
        self._feeding = False  # whether an event is being acted on: one may lead to another
        self._downloads = Downloads(desk.vault.offered)
        self._round: Round
        self._begin(Round(0, 0, self._policy_of(0)))
        tasks.check_size(self._task((), tasks.blank_download(bundle.plan)), row.config.selected)

    @property
    def round(self) -> Round:
        """The round machine's state."""
        return self._round

    @property
    def exchange(self) -> Exchange:
        """The secure aggregation of the open attempt, if the run has any."""
        return self._exchange

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
            case Phase.HALTED:
                self._end(Status.FAILED, state.why)
            case Phase.STOPPED:
                self._end(Status.STOPPED, rounds.waiting(state))
            case _:
                self.feed(events.Resumed(self._desk.clock()))

    def tick(self) -> None:
        """Time passed, and we were connected."""
        for device in self._attendance.look():
            self.hello(device)
        self._exchange.tick()
        self.feed(events.Ticked(self._desk.clock()))

    def reconnected(self) -> None:
        """The broker was reached (again); everyone is asked for a Hello."""
        self._attendance.reconnected()
        self._exchange.reconnected()
        self.feed(events.Reconnected(self._desk.clock()))

    def hello(self, device: str) -> None:
        """A device said Hello, or is free again."""
        self._attendance.again(device)
        usable = self._usable(device)
        self.feed((events.Present if usable else events.Absent)(device, self._desk.clock()))
        self._exchange.hello(device)

    def absent(self, device: str) -> None:
        """A device left."""
        self._attendance.gone(device)
        self.feed(events.Absent(device, self._desk.clock()))

    def heard(self, work: Progress | Failed) -> None:
        """A device is at work, or cannot do it; perhaps on what nobody waits for any more."""
        if why := orphans.why_not(work, self._round):
            self._recall(work, why)
        elif isinstance(work, Failed):
            self.failed(work.device, work.round, work.attempt, f"{work.code}: {work.detail}", work.code)
        else:
            self.progressed(work.device, work.round, work.attempt, work.steps)
            self._attendance.heard(work)

    def stopped(self, word: Stopped) -> None:
        """A device's work has really ended."""
        if self._attendance.stopped(word.device, word.round, word.attempt):
            self.hello(word.device)

    def _recall(self, work: Progress | Failed | Report, why: str) -> None:
        """Tell a device that its work is not wanted; a Cancel of what counts already would take it back."""
        if is_accepted(work, self._accepted):
            self._desk.send(ToDevice(work.device, Commit.KIND), verdict(work, self._accepted))
            return
        log.info("%s: the work of %s is not wanted: %s", self.row.id, work.device, why)
        cancel = Cancel(self.row.id, work.round, work.attempt, wording(why))
        known = work.device in self._desk.fleet().devices  # else whoever invents names could fill the record of these
        if isinstance(work, Progress) and known and not self._round.awaits(work.device):
            self._attendance.stop((work.device,), cancel)
            self.feed(events.Absent(work.device, self._desk.clock()))
        else:
            self._desk.send(ToDevice(work.device, Cancel.KIND), cancel)

    def progressed(self, device: str, round_: int, attempt: int, steps: int = 0) -> None:
        """A device is at work, or its upload goes on."""
        if self._round.task_of(device) == (round_, attempt):
            self._attendance.alive(device)
            self.feed(events.Progressed(device, self._desk.clock(), steps))

    def failed(self, device: str, round_: int, attempt: int, why: str, code: str = "") -> None:
        """A device cannot do its task, or its upload cannot be used."""
        if self._round.task_of(device) == (round_, attempt):
            log.warning("%s: %s failed in round %d: %s", self.row.id, device, round_, wording(why))
            self.feed(events.Failed(device, wording(why), self._desk.clock(), code))

    def expects(self, report: Report) -> bool:
        """Whether a report is of the task that its device has, and the first one."""
        return (
            not self.ended
            and report.run == self.row.id
            and self._round.task_of(report.device) == (report.round, report.attempt)
            and self._round.awaits(report.device)
            and report.device not in self._intake
        )

    def refusal(self, report: Report) -> str:
        """Why the upload of an expected report is not worth fetching; empty if it is."""
        return self._terms.refusal(report)

    def answer(self, report: Report) -> None:
        """Tell a device what became of a report of an earlier round or attempt."""
        held = self._round.task_of(report.device)  # its fate is not known yet
        if report.round <= self._saved.checkpoint.round and (held is None or held[0] != report.round):
            self._desk.send(ToDevice(report.device, Commit.KIND), verdict(report, self._accepted))
        elif why := orphans.why_not(report, self._round):
            self._recall(report, why)

    def reported(self, report: Report) -> None:
        """Screen an expected report whose upload is here, then let the machine have it."""
        report = report if self._private is None else self._private.discreet(report)
        self._intake.add(report)
        self._desk.spawn(self._screen(report), f"{self.row.id}: screen {report.device}")

    @property
    def busy(self) -> Busy:
        """Who still works on what is not wanted any more."""
        return self._attendance.busy

    def background(self, arriving: Mapping[str, tuple[int, int]]) -> Background:
        """What is known of its devices beside the round.

        Args:
            arriving: of each upload on its way, how many chunks are here, and of how many.
        """
        fleet, hubs = self._desk.fleet(), self._desk.hubs
        silenced = {name: members.silenced(known.hello, hubs) for name, known in fleet.devices.items()}
        return Background(
            runtimes=self._terms.runtimes,
            names=[name for name in self._accepted if members.owner(name) == name],
            silenced=silenced,
            conduct=self._conduct,
            busy=self.busy,
            signs=self._attendance.signs,
            arriving=arriving,
            unmet=obstacles(fleet, self.row.config.conditions),
        )

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
        outermost, self._feeding = not self._feeding, True
        try:
            self._act_on(event, report)
            while outermost and (early := self._intake.due(self._round)) is not None:  # it came before its time
                self._intake.done(early.device)
                self._act_on(events.Reported(early.device, self._desk.clock()), bare(early))
        finally:
            self._feeding = not outermost

    def _act_on(self, event: Event, report: Report | None) -> None:
        state, effects = rounds.advance(self._round, event)
        if self.ended or (state == self._round and not effects):
            return
        if not isinstance(event, events.Stored):  # its journal entry is the commit itself
            self._journal(event, report, state)
        self._round = state
        for effect in effects:
            self._carry_out(effect)
        self._exchange.follow(self._round)
        self._desk.changed()

    def _journal(self, event: Event, report: Report | None, after: Round) -> None:
        self._desk.journal.append(self.row.id, event, report)
        self._journalled += 1
        if self._journalled % COMPACT_AFTER == 0:
            self._desk.journal.compact(self.row.id, after)

    def _carry_out(self, effect: events.Effect) -> None:
        match effect:
            case events.Choose(devices, count):
                self._choose(devices, count)
            case events.Announce(devices) | events.Widen(devices):
                if isinstance(effect, events.Announce) and not self._round.policy.buffer:
                    self._sit()
                self._send_task(ToAll(Task.KIND), devices)
            case events.Resend(device):
                self._send_task(ToDevice(device, Task.KIND), (device,))
            case events.Fold(device):
                self._arithmetic.fold(device, self._desk.journal.report(self.row.id, device))
            case events.Release(devices, why):
                cancel = Cancel(self.row.id, self._round.number, self._round.attempt, why)
                self._attendance.stop(devices, cancel)
            case events.Suspect(devices):
                self._desk.suspect(devices)
            case events.Reduce(devices):
                self._fold_buffer(devices)
                job = self._reduce(self._round, devices)
                self._desk.spawn(job, f"{self.row.id}: reduce round {self._round.number}")
            case events.Commit(devices):
                self._announce_fates(devices)
                self._next_round()
            case events.Abandon(why):
                self._next_attempt(why)
            case events.Halt(why):
                self._end(Status.FAILED, why)
            case events.End():
                self._end(Status.STOPPED, rounds.waiting(self._round))

    def _choose(self, devices: tuple[str, ...], count: int) -> None:
        number, attempt = self._round.number, self._round.attempt
        chosen = self._sampled(devices, count)
        if not chosen:
            return
        known = members.named(devices, self._desk.fleet())
        joined = tuple(device for device in known if device not in self._accepted)
        if not self._terms.is_final(number):
            left_out = {members.owner(device) for device in (*devices, *self._accepted)} - set(chosen)
            participation.warn(self._terms.algorithm, self.row.id, number, left_out)
        canaries = self._terms.canaries(chosen, number, attempt)
        self.feed(events.Chosen(chosen, self._desk.clock(), joined, canaries))

    def _sampled(self, devices: tuple[str, ...], count: int) -> tuple[str, ...]:
        """The cohort; empty where none can be drawn yet."""
        this = self._round
        if self._private is None or self._terms.is_final(this.number):
            return choose(devices, count, self.row.config.seed, this.number, this.attempt)
        return self._private.sample(devices, count, self._terms.clip(self._saved), this)

    def _send_task(self, address: Address, devices: tuple[str, ...]) -> None:
        """One task for these members, or one for each where each gets a download of its own."""
        earlier = self._round.seats[devices[0]].task if len(devices) == 1 else None
        if earlier is not None:
            download = self._downloads.ref(self._round.bases[earlier[0]])
            self._desk.send(address, self._terms.task(*earlier, devices, download, self._accepted))
        elif self._saved.download is not None:
            self._desk.send(address, self._task(devices, self._saved.download))
        else:
            job = self._handout().to(devices, self._sitting)
            self._desk.spawn(job, f"{self.row.id}: hand out round {self._round.number}")

    def _handout(self) -> Handout:
        def send(device: str, download: BlobRef) -> None:
            if self._round.awaits(device):
                self._desk.send(ToDevice(device, Task.KIND), self._task((device,), download))

        def failed(device: str, sitting: Sitting, why: str) -> None:
            self.failed(device, sitting.number, sitting.attempt, why, code=DOWNLOAD)

        def goes_on(sitting: Sitting) -> bool:
            return sitting is self._sitting and not self.ended

        return Handout(self.row.id, self._arithmetic, goes_on, send, failed)

    def _open(
        self,
        number: int,
        attempt: int,
        avoid: tuple[str, ...] = (),
        conduct: Mapping[str, Conduct] = MappingProxyType({}),
    ) -> None:
        """Begin an attempt, without the devices that failed in the last one as long as there are enough others."""
        here = frozenset(filter(self._usable, self._desk.fleet().present(self._terms.runtimes)))
        spare = here - set(avoid)
        here = spare if len(spare) >= self.row.config.minimum else here
        barred = quarantine.barred({**self._conduct, **conduct}, number)
        first = Round(number, attempt, self._policy_of(number), since=self._desk.clock(), present=here, barred=barred)
        first = self._taken_over(first)
        self._desk.journal.open_round(self.row.id, first, conduct)
        self._conduct.update(conduct)
        self._begin(first)
        self._clean()
        self.tick()

    def _begin(self, state: Round) -> None:
        self._round = state
        self._journalled = 0
        self._intake.begin(state)
        self._exchange.begin(state)
        self._downloads.begin(state)
        self._tuned = self._terms.of_round(state.number)
        self._sit()
        self._attendance.begin()
        self._opened_at = self._desk.clock()
        self._opened_traffic = self._desk.traffic()

    def _next_round(self) -> None:
        number = self._saved.checkpoint.round
        if self._terms.is_final(number):
            self._end(Status.DONE, "" if self._private is None else self._private.ended())
        elif self._private is not None and (why := self._private.exhausted()):
            log.warning("%s: only the final evaluation is left: %s", self.row.id, why)
            self._open(self.row.config.rounds + 1, 0)
        else:
            self._open(number + 1, 0)

    def _next_attempt(self, why: str) -> None:
        attempt = self._round.attempt + 1
        log.warning("%s: round %d abandoned: %s", self.row.id, self._round.number, why)
        if attempt >= self.row.config.attempts:
            why = f"round {self._round.number} was abandoned {attempt} times, at last because: {why}"
            self._end(Status.FAILED, why)
        else:
            conduct = quarantine.judge(self._conduct, self._round, self._terms.quarantine)
            self._open(self._round.number, attempt, self._round.devices(State.FAILED), conduct)

    def _end(self, status: str, why: str) -> None:
        """End the run, and with it whatever the devices still do for its open round."""
        self._exchange.dismiss()
        self._desk.journal.end(self.row.id, status, why)
        self.row = msgspec.structs.replace(self.row, status=status, why=why)
        self._clean()
        if self._round.number > self._saved.checkpoint.round:
            self._desk.send(ToAll(Commit.KIND), Commit(self.row.id, self._round.number, ()))
        if self.row.config.conditions is not None:
            self._desk.send(ToAll(RollCall.KIND), roll_call(None, self._desk.draw))
        self._desk.changed()

    # What the effects do.

    def _usable(self, device: str) -> bool:
        """Whether a device may be chosen just now."""
        return device not in self._attendance.busy and self._terms.admits(device, self._desk.fleet())

    def _policy_of(self, number: int) -> Policy:
        return self._terms.policy_of(number)

    def _task(self, devices: tuple[str, ...], download: BlobRef) -> Task:
        number, attempt, clip = self._round.number, self._round.attempt, self._terms.clip(self._saved)
        return self._terms.task(number, attempt, devices, download, self._accepted, clip)

    async def _screen(self, report: Report) -> None:
        terms, config = self._terms, self.row.config
        form = terms.form(self._round.number)
        screening = Screening(
            self.row.id,
            self._desk.vault,
            terms.plan,
            form,
            config.max_norm,
            config.codec,
            self._intake.claim,
            terms.layout,
        )
        report, why = await self._work(screening.screened, report) if report.upload is not None else (report, "")
        self._screened(report, why)
        self._intake.release(report)

    def _screened(self, report: Report, why: str) -> None:
        if self._round.task_of(report.device) != (report.round, report.attempt):
            return
        if not why and self._round.policy.buffer and self._round.phase is not Phase.REPORTING:
            self._intake.wait(report)
            self.feed(events.Progressed(report.device, self._desk.clock()))
            return
        self._intake.done(report.device)
        if why:
            self.failed(report.device, report.round, report.attempt, why)
        else:
            self.feed(events.Reported(report.device, self._desk.clock()), bare(report))

    async def _reduce(self, this: Round, devices: tuple[str, ...]) -> None:
        fleet = members.training({*self._accepted, *this.joined}, self._desk.hubs)
        try:
            final = self._terms.is_final(this.number)
            if (secrets := await self._exchange.opened(devices)) is not None:
                self._arithmetic.open(secrets)
            if self._private is not None and not final:
                reports, clip = self._desk.journal.reports(self.row.id), self._terms.clip(self._saved)
                self._arithmetic.veil(self._private.key(this, devices, reports, clip))
            saved = self._saved.after(this.number) if final else await self._arithmetic.update(devices, fleet)
        except StoreError:
            raise
        except Exception as error:  # an algorithm's fault must not end the service
            log.exception("%s: round %d cannot be reduced", self.row.id, this.number)
            await self._restore()
            if self._round.reduces(this):
                self.feed(events.StoreFailed(wording(f"{type(error).__name__}: {error}"), self._desk.clock()))
            return
        if self._round.reduces(this):  # nobody stopped the run meanwhile
            self._commit(saved, devices)

    async def _restore(self) -> None:
        """Take the state from the disk again: an update that failed may have changed it in place."""
        self._saved = await self._work(self._arithmetic.restore, self._terms.algorithm, self._saved.checkpoint)

    def _commit(self, saved: Saved, devices: tuple[str, ...]) -> None:
        reports, number = self._desk.journal.reports(self.row.id), self._round.number
        results = members.counted_of((reports[device] for device in devices), number)
        spent = self._desk.traffic() - self._opened_traffic
        cost = cost_of(self._round, spent, self._desk.clock() - self._opened_at)
        joined, conduct = self._round.joined, quarantine.judge(self._conduct, self._round, self._terms.quarantine)
        self._saved = saved
        self._desk.journal.commit(self.row.id, saved.checkpoint, results, cost, joined, conduct, self._following())
        self._conduct.update(conduct)
        self._accepted = accepted_after(self._accepted, joined, results)
        log.info(
            "%s: %s is committed, %d reports, %.1f s",
            self.row.id,
            "the final evaluation" if self._terms.is_final(number) else f"round {saved.checkpoint.round}",
            len(results),
            cost.seconds,
        )
        self.feed(events.Stored(self._desk.clock()))

    def _clean(self) -> None:
        """Delete every blob that nothing needs any more; whoever goes on in a new round may be sending one."""
        coming, offered = self._desk.forget(), self._offered
        with self._intake.settled() as held:
            used = self._desk.journal.blobs() | held | coming
            self._desk.vault.keep_only(used, offered)
        self._desk.worker.submit(self._desk.vault.collect, used | offered)

    @property
    def _offered(self) -> set[str]:
        """The digests of what devices may still fetch, beside what the journal needs."""
        return set() if self.ended else self._arithmetic.offered | set(self._round.bases.values())

    def _sit(self) -> None:
        """Begin the mathematics of the attempt anew: nothing is folded."""
        self._sitting = self._terms.sitting(self._round, self._tuned, self._saved)
        self._arithmetic.begin(self._sitting)

    # Buffered runs.

    def _taken_over(self, following: Round) -> Round:
        """A round that begins, with the seats of the last one that go on in it."""
        download = self._saved.download
        return following if download is None else buffered.successor(self._round, following, download.sha256)

    def _following(self) -> Round | None:
        """What the journal needs to know of the round after a buffered one, if this should die before it begins."""
        if not self._round.policy.buffer:
            return None
        number = self._round.number + 1
        return self._taken_over(Round(number, 0, self._policy_of(number), since=self._desk.clock()))

    def _announce_fates(self, devices: tuple[str, ...]) -> None:
        """Tell everyone whose reports count; in a buffered run each device about its own, and who need not go on."""
        following = self._following()
        if following is None:
            self._desk.send(ToAll(Commit.KIND), Commit(self.row.id, self._round.number, devices))
            return
        for device, fate in buffered.fates(self.row.id, self._round, following):
            if isinstance(fate, Cancel):
                self._attendance.stop((device,), fate)
            else:
                self._desk.send(ToDevice(device, Commit.KIND), fate)

    def _fold_buffer(self, devices: tuple[str, ...]) -> None:
        """Fold a full buffer: only now it is known who is in it."""
        if not self._round.policy.buffer:
            return
        self._sit()
        for device in devices:
            self._arithmetic.fold(device, self._desk.journal.report(self.row.id, device))

    async def _work(self, function: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._desk.worker, function, *arguments)
