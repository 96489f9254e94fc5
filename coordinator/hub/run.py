"""A run of a hub: rounds that its parent asks for, and that count when the parent says so.

Theory of operation.  An *errand* is what the parent's task asks of the hub.  It is one round of the hub's own devices,
with the parent's numbers and seeds, or several where it trains a model of its own (:mod:`coordinator.hub.levels`)::

    Task of the parent --> errand stored --> round opened --> ... --> REDUCING --> report to the parent
                                                                         |
         Commit, or the next Task, that names us: journal.commit, Commit to the devices
         ... that does not name us: Commit to the devices that names none of them

* The round stays in REDUCING until the parent's word, so a device's KEEP slots advance exactly as often as the parent
  counts the hub's report.
* Nothing else is stored: after a restart the machine folds the stored uploads again, and because the sums are exact the
  report has the same bits.  The parent answers a report that it has decided on already.
* An errand that came to nothing leaves the journal's round ABANDONED, and the next one takes its place.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Mapping
from typing import Protocol

import msgspec

from coordinator import events, members
from coordinator.active import ActiveRun
from coordinator.checkpoint import Saved
from coordinator.conditions import has_judged
from coordinator.desk import Desk
from coordinator.hub.arithmetic import Upward
from coordinator.hub.terms import Errand, HubTerms
from coordinator.journal import Checkpoint, RunRow, Status
from coordinator.reports import verdict, wording
from coordinator.rounds import Phase, Policy, Round, State, waiting
from edgepfl.errors import EdgepflError, StoreError
from edgepfl.topics import ToAll, ToDevice
from edgepfl.wire import BlobRef, Commit, Part, Report, Task

log = logging.getLogger(__name__)
_FOR_SELECTION = 1 / 4  # of the parent's deadline; what is left after it and the rounds is for the way up
_OPEN = (Phase.SELECTING, Phase.REPORTING, Phase.REDUCING)


class Parent(Protocol):
    """Whom a hub's run answers to."""

    def report(self, task: Task, report: Report) -> None:
        """What came of a task; it waits for the parent's word."""
        ...

    def failed(self, task: Task, why: str) -> None:
        """Nothing will come of a task."""
        ...

    def settled(self) -> None:
        """An errand is over: there may be the next."""
        ...

    @property
    def coming(self) -> set[str]:
        """The digests of what the next errand needs, here or on its way."""
        ...


class HubRun(ActiveRun):
    """A run that is going on at a hub.

    Args:
        row: what the journal has, or will have before :meth:`obey`.
        checkpoint: its last one.
        desk: the service's, whose arithmetic is an :class:`Upward`.
        errand: the last one.
        parent: whom it answers to.

    Raises:
        EdgepflError: its bundle or settings cannot be used, or sums are not enough for its algorithm.
    """

    _arithmetic: Upward
    _terms: HubTerms

    def __init__(self, row: RunRow, checkpoint: Checkpoint, desk: Desk, errand: Errand, parent: Parent) -> None:
        self._parent = parent
        self._report: Report | None = None
        self._made: Saved | None = None
        self._accepted_early = False
        super().__init__(row, checkpoint, desk, lambda terms: HubTerms.under(terms, errand))
        self._round = dataclasses.replace(self._round, phase=Phase.ABANDONED)  # nothing is begun

    @property
    def errand(self) -> Errand:
        """The last one."""
        return self._terms.errand

    @property
    def report(self) -> Report | None:
        """What waits for the parent's word."""
        return self._report if self.undecided else None

    @property
    def undecided(self) -> bool:
        """Whether the devices are done with the errand, and the parent's word on it is not known."""
        return not self.ended and self._round.phase is Phase.REDUCING and self._round.number == self.errand.last

    @property
    def committed(self) -> int:
        """The hub's last round that counts."""
        return self._saved.checkpoint.round

    @property
    def at_work(self) -> bool:
        """Whether the errand goes on, and its report is still to come."""
        return not self.ended and self._report is None and self._round.phase in _OPEN

    # The parent tells.

    def obey(self, errand: Errand) -> None:
        """Begin an errand, which is stored.

        Raises:
            EdgepflError: it cannot be begun; nothing happened.
        """
        self._terms = dataclasses.replace(self._terms, errand=errand)
        self._saved = self._arithmetic.started(self._terms.of_round(errand.first), errand.task, self._saved)
        self._open(errand.first, errand.attempt)

    def told(self, *, accepted: bool) -> None:
        """The parent's word on the report, which may come before it was made again."""
        if not self.undecided:
            log.warning("%s: the parent's word on round %d comes to nothing", self.row.id, self.errand.task.round)
        elif not accepted:
            self.drop("the parent did not count its report")
        elif self._made is None:
            self._accepted_early = True
        else:
            self._commit(self._made, self._round.devices(State.REPORTED))

    def drop(self, why: str) -> None:
        """Nothing of the errand counts any more: the devices forget what they did for it."""
        if self.ended or self._round.phase not in _OPEN:
            return
        log.info("%s: round %d came to nothing: %s", self.row.id, self._round.number, wording(why))
        if self._round.seats:
            self._desk.send(ToAll(Commit.KIND), Commit(self.row.id, self._round.number, ()))
        self._rest(why)

    def leave(self) -> None:
        """The parent has gone over to another run."""
        self.drop("the parent began another run")
        if not self.ended:
            self._end(Status.STOPPED, "the parent began another run")

    # As a coordinator.

    def resume(self) -> None:
        """Go on where the journal ends."""
        state = self._desk.journal.open_state(self.row.id)
        try:
            if self._saved.checkpoint.round < self.errand.first:
                self._saved = self._arithmetic.started(self._tuned, self.errand.task, self._saved)
        except StoreError:
            raise
        except EdgepflError as error:  # as it was said before
            self._fail(str(error))
            return
        of_it = state is not None and (
            self.errand.first <= state.number <= self.errand.last and state.attempt == self.errand.attempt
        )
        if of_it:
            super().resume()
        else:  # the service ended between storing the errand and beginning it, or it is done
            self._next_round()

    def tick(self) -> None:
        """Time passed, and we were connected."""
        super().tick()
        late = self._desk.clock() - self._round.since >= self.errand.task.deadline * _FOR_SELECTION
        if self._round.phase is Phase.SELECTING and late and not self.ended:
            self._fail(waiting(self._round))

    def answer(self, report: Report) -> None:
        """Tell a device what became of a report of an earlier round."""
        if self._round.phase is Phase.ABANDONED and report.round == self._round.number:
            self._desk.send(ToDevice(report.device, Commit.KIND), verdict(report, {}))
        else:
            super().answer(report)

    @property
    def _offered(self) -> set[str]:
        return super()._offered | self._parent.coming

    def _policy_of(self, number: int) -> Policy:
        """The fleet is small: a round waits for all whom the hub knows, but not long for those who are away."""
        config, fleet = self.row.config, self._desk.fleet()
        present = fleet.present(self._terms.runtimes)
        here = set(filter(self._usable, present))
        asked = {name for name in present if not has_judged(fleet.devices[name].hello, config.conditions)}
        unheard = {members.owner(name) for name in self._accepted} - fleet.devices.keys()
        goal = min(config.goal, max(config.minimum, len(here | asked | unheard)))
        return dataclasses.replace(super()._policy_of(number), goal=goal)

    def _begin(self, state: Round) -> None:
        self._report, self._made, self._accepted_early = None, None, False
        super()._begin(state)

    def _next_round(self) -> None:
        number = max(self._saved.checkpoint.round + 1, self.errand.first)
        if number <= self.errand.last:
            self._open(number, self.errand.attempt)
            return
        if self.errand.task.final:
            self._end(Status.DONE, "")
        self._parent.settled()

    def _next_attempt(self, why: str) -> None:
        self._fail(why)

    async def _reduce(self, this: Round, devices: tuple[str, ...]) -> None:
        if this.number != self.errand.last:
            await super()._reduce(this, devices)
            return
        try:
            parts = self._parts(devices)
            upload, made = await self._arithmetic.report(devices, parts, trained=self.errand.task.steps > 0)
            report = self._report_of(devices, parts, upload)
        except StoreError:
            raise
        except Exception as error:  # an algorithm's fault must not end the service
            log.exception("%s: round %d cannot be summed up", self.row.id, this.number)
            if self._round is this:
                self.feed(events.StoreFailed(wording(f"{type(error).__name__}: {error}"), self._desk.clock()))
            return
        if self._round is not this:
            return
        self._report, self._made = report, made
        if self._accepted_early:
            self._commit(made, devices)
        else:
            self._parent.report(self.errand.task, report)

    # Inside.

    def _fail(self, why: str) -> None:
        self._parent.failed(self.errand.task, why)
        if self._round.seats:
            self._desk.send(ToAll(Commit.KIND), Commit(self.row.id, self._round.number, ()))
        self._rest(why)

    def _rest(self, why: str) -> None:
        """Wait for the next errand."""
        idle = dataclasses.replace(self._round, phase=Phase.ABANDONED, seats={}, present=frozenset(), why=why)
        self._desk.journal.open_round(self.row.id, idle)
        self._begin(idle)
        self._desk.forget()
        self._desk.changed()
        self._parent.settled()

    def _parts(self, devices: tuple[str, ...]) -> tuple[Part, ...]:
        """Who took part in the errand, in the order of their names, with what each said last."""
        found: dict[str, Part] = {}
        for result in self._desk.journal.results(self.row.id, self.errand.first - 1):
            if result.device not in self._desk.hubs:
                found[result.device] = Part(result.device, result.examples, result.steps, result.metrics)
        reports = self._desk.journal.reports(self.row.id)
        for part in (part for device in devices for part in _parts(reports[device])):
            before = found[part.device].metrics if part.device in found else {}
            found[part.device] = msgspec.structs.replace(part, metrics={**before, **part.metrics})
        return tuple(found[device] for device in sorted(found))

    def _report_of(self, devices: tuple[str, ...], parts: tuple[Part, ...], upload: BlobRef | None) -> Report:
        reports, task = self._desk.journal.reports(self.row.id), self.errand.task
        return Report(
            device="",  # the hub's name is its link's to say
            session=0,
            run=task.run,
            round=task.round,
            attempt=task.attempt,
            examples=sum(part.examples for part in parts),
            steps=max(part.steps for part in parts),
            upload=upload,
            metrics={},
            seconds={},
            kept=_digest(reports, devices),
            members=parts,
        )


def _parts(report: Report) -> tuple[Part, ...]:
    """What a report says of the devices that trained."""
    if not report.members:
        return (Part(report.device, report.examples, report.steps, report.metrics),)
    return tuple(msgspec.structs.replace(part, device=f"{report.device}/{part.device}") for part in report.members)


def _digest(reports: Mapping[str, Report], devices: tuple[str, ...]) -> str:
    """A digest of what all devices keep."""
    return hashlib.sha256("".join(reports[device].kept for device in sorted(devices)).encode()).hexdigest()
