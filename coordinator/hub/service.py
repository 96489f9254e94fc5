"""The service of a hub that sums: a coordinator to its devices and a device to its parent."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import MappingProxyType

import msgspec

import edgepfl
from coordinator import members
from coordinator.active import ActiveRun
from coordinator.conditions import roll_call
from coordinator.config import RunConfig
from coordinator.hub.arithmetic import Modelled, Upward
from coordinator.hub.levels import Nested
from coordinator.hub.link import Link
from coordinator.hub.run import HubRun
from coordinator.hub.terms import Errand, errand_of, read_errand
from coordinator.journal import Checkpoint, RunRow, Status
from coordinator.members import Hubs
from coordinator.service import Coordinator
from edgepfl import wire
from edgepfl.bus import Bus
from edgepfl.bus._files import storing, write_durably
from edgepfl.bus.blobs import BlobStore
from edgepfl.errors import EdgepflError, RunError, StoreError, WireError
from edgepfl.plan import Plan
from edgepfl.topics import ToAll
from edgepfl.wire import (
    MEMBERS_LIMIT,
    MESSAGE_LIMIT,
    RUNTIMES_LIMIT,
    Cancel,
    Commit,
    Failed,
    Hello,
    Progress,
    Report,
    RollCall,
    Stopped,
    Task,
)

log = logging.getLogger(__name__)
_MIB = 1 << 20
_DETAIL = 256  # characters of the reason of a failure
_NAMES = MESSAGE_LIMIT * 3 // 4  # bytes of all names in a Hello
_NAME_EXTRA = 3  # bytes of one beside its characters
SHORTEST_BEAT = 0.1  # seconds between two Progress messages, whatever a task says


@dataclasses.dataclass(frozen=True)
class Modelling:
    """How a hub trains a model of its own: :mod:`coordinator.hub.levels`.

    Attributes:
        rounds: of its devices in one of the parent's.
        nested: the nested form's hyperparameters; None is the tree.
    """

    rounds: int = 1
    nested: Nested | None = None


class HubService(Coordinator):
    """A hub.

    Args:
        fleet: the name of its own fleet.
        bus: its devices', not yet started.
        state: the directory of everything that must survive.
        link: makes the connection to the parent, from the hub and its session's number.
        config: how its rounds are; a task of the parent says the rest.
        hubs: which of its devices are hubs themselves.
        form: where it trains a model of its own for some rounds; None for sums of one round.
        clock: seconds that never go back.

    Raises:
        StoreError: another coordinator uses the directory, or it cannot be used at all.
    """

    def __init__(
        self,
        fleet: str,
        bus: Bus,
        state: Path,
        *,
        link: Callable[[HubService], Link],
        config: RunConfig,
        hubs: Hubs = MappingProxyType({}),
        form: Modelling | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(fleet, bus, state, hubs=hubs, clock=clock)
        self.upward = BlobStore(state / "upward")
        self._file = state / "errand"
        self._config = config
        self._form = form
        self._wanted: Task | None = None  # whose blobs are coming
        self._begun: Task | None = None  # whose blobs are here, and whose errand is not stored yet
        self._deferred: Task | None = None  # until what is at hand is settled
        self._greeted: Hello | None = None
        self._next_beat = 0.0
        self._link = link(self)

    async def run(self) -> None:
        """Serve until cancelled, then close everything.

        Raises:
            BusError: a bus can never work with its settings.
            StoreError: the hub's storage failed.
        """
        loop = asyncio.get_running_loop()
        coordinating = loop.create_task(super().run(), name="devices")
        linking = loop.create_task(self._link.run(), name="parent")
        try:
            done, _ = await asyncio.wait({coordinating, linking}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (linking, coordinating):
                task.cancel()
                await asyncio.wait({task})
            for task in (linking, coordinating):
                if not task.cancelled() and (error := task.exception()) is not None:
                    raise error

    def start_run(self, config: RunConfig, bundle: bytes) -> str:  # noqa: ARG002  nobody may
        """Refuse: a hub runs what its parent asks for.

        Raises:
            RunError: always.
        """
        raise RunError("a hub's runs are its parent's", where=config.name, remedy="Start it at the parent")

    # What the parent says.

    def linked(self) -> None:
        """The parent is reached, or asks who is here."""
        self._greeted = None
        self._greet()
        run = self._hub_run
        if run is not None and run.report is not None:
            self.report(run.errand.task, run.report)

    def heard(self, message: Task | Commit | Cancel) -> None:
        """The parent said something."""
        match message:
            case Task():
                self._task(message)
            case Commit():
                self._word(message)
            case Cancel():
                self._cancel(message)

    def fetched(self) -> None:
        """What the wanted task needs is here."""
        task, self._wanted = self._wanted, None
        if task is None:
            return
        self._begun = task
        try:
            self._begin(task)
        except StoreError:
            raise
        except EdgepflError as error:
            self.failed(task, str(error))
        finally:
            self._begun = None

    def unfetchable(self, why: str) -> None:
        """The wanted task lies about what it needs."""
        task, self._wanted = self._wanted, None
        if task is not None:
            self.failed(task, why)

    # What the parent is told.

    def report(self, task: Task, report: Report) -> None:
        """What came of a task."""
        named = msgspec.structs.replace(report, device=self._link.device, session=self._link.session)
        bare = tuple(msgspec.structs.replace(part, metrics={}) for part in report.members)
        if not self._fits(named):
            log.warning("the report on round %d is too long with its metrics: it goes without them", report.round)
            named = msgspec.structs.replace(named, members=bare)
        if self._fits(named):
            self._link.say(named)
        else:
            self.failed(task, f"a report on {len(bare)} devices is too long for a message")

    def failed(self, task: Task, why: str) -> None:
        """Nothing will come of a task."""
        log.warning("round %d of %s: %s", task.round, task.run, why)
        device, session = self._link.device, self._link.session
        self._link.say(Failed(device, session, task.run, task.round, task.attempt, "hub", why[:_DETAIL]))

    def settled(self) -> None:
        """An errand is over: there may be the next."""
        task, self._deferred = self._deferred, None
        if task is not None:
            self._task(task)

    @property
    def coming(self) -> set[str]:
        """The digests of what the next errand needs, here or on its way."""
        tasks = [task for task in (self._wanted, self._begun) if task is not None]
        return {ref.sha256 for task in tasks for ref in (task.bundle, task.download)}

    @staticmethod
    def _fits(report: Report) -> bool:
        """Whether a message can hold it."""
        try:
            wire.encode(report)
        except WireError:
            return False
        return True

    def _greet(self) -> None:
        """Say who is here, if that is news."""
        hello = self._hello_of()
        if hello != self._greeted and self._link.say(hello):
            self._greeted = hello
            if len(hello.members or ()) < len(self._below(self._here)):
                log.error("more devices are here than a hub can speak for: some are left out")

    def _hello_of(self) -> Hello:
        here, below = self._named()
        run = self._hub_run
        return Hello(
            device=self._link.device,
            session=self._link.session,
            runtimes=_usual(here),
            examples=sum(hello.examples for hello in here),
            memory_mib=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _MIB,
            agent=edgepfl.__version__,
            pending=(run.row.id, run.errand.task.round) if run is not None and run.report is not None else ("", -1),
            members=tuple(sorted(below)),
        )

    @property
    def _here(self) -> dict[str, Hello]:
        """Who can take part."""
        present = {name: known.hello for name, known in self._fleet.devices.items() if known.present}
        return {
            name: hello
            for name, hello in present.items()
            if hello.examples > 0 and members.speaks_for_itself(hello, self._desk.hubs)
        }

    def _below(self, devices: Iterable[str]) -> tuple[str, ...]:
        """The names of those who train."""
        return tuple(name for name in members.named(devices, self._fleet) if name not in self._desk.hubs)

    def _named(self) -> tuple[list[Hello], list[str]]:
        """Who can take part, as many as one Hello can name, and those names."""
        hellos: list[Hello] = []
        below: list[str] = []
        size = 0
        for device, hello in sorted(self._here.items()):
            names = self._below((device,))
            size += sum(len(name) + _NAME_EXTRA for name in names)
            if len(below) + len(names) > MEMBERS_LIMIT or size > _NAMES:
                break
            hellos.append(hello)
            below += names
        return hellos, below

    def _progress(self, task: Task) -> None:
        self._link.say(Progress(self._link.device, self._link.session, task.run, task.round, task.attempt, 0))

    # What becomes of it.

    def _task(self, task: Task) -> None:
        mine = next((member.accepted_round for member in task.cohort if member.device == self._link.device), None)
        if mine is None or mine >= task.round:  # not for us, or it contradicts itself
            return
        run = self._hub_run
        if run is not None and run.row.id == task.run:
            if _key(task) < _key(run.errand.task):
                return
            if _key(task) == _key(run.errand.task):
                self._again(run, task)
                return
            self._settle(run, mine)
        if run is not None and run.undecided:
            self._deferred = task
            self.linked()  # where the parent has decided, and we did not hear
            return
        if self._wanted is not None and self._wanted.run == task.run and _key(self._wanted) >= _key(task):
            return
        self._wanted = task
        self._link.fetch(task.bundle, task.download)

    def _again(self, run: HubRun, task: Task) -> None:
        """Answer a task that came before."""
        if run.report is not None:
            self.report(task, run.report)
        elif run.at_work:
            self._progress(task)
        else:
            self.failed(task, run.round.why or "it is over here")

    def _settle(self, run: HubRun, accepted: int) -> None:
        """A later task says which report of ours was the last that counts."""
        if run.undecided:
            run.told(accepted=accepted == run.errand.task.round)
        else:
            run.drop("the parent went on")

    def _word(self, commit: Commit) -> None:
        wanted, run = self._wanted, self._hub_run
        if wanted is not None and wanted.run == commit.run and wanted.round <= commit.round:
            self._wanted = None
            self._link.fetch_no_more()
        if run is None or run.row.id != commit.run or run.errand.task.round > commit.round:
            return
        if not run.undecided:
            run.drop("the parent's round ended without it")
        elif run.errand.task.round == commit.round:
            run.told(accepted=self._link.device in commit.accepted)
        elif run.report is not None:  # a later round is over: the word on ours was lost
            self.report(run.errand.task, run.report)

    def _cancel(self, cancel: Cancel) -> None:
        which = (cancel.run, cancel.round, cancel.attempt)
        wanted, run = self._wanted, self._hub_run
        if wanted is not None and (wanted.run, *_key(wanted)) == which:
            self._wanted = None
            self._link.fetch_no_more()
        if run is not None and (run.row.id, *_key(run.errand.task)) == which and run.report is None:
            run.drop(cancel.reason)
        self._link.say(Stopped(self._link.device, self._link.session, *which, steps=0))

    def _begin(self, task: Task) -> None:
        """Do what a task asks for, now that its blobs are here.

        Raises:
            EdgepflError: it cannot be done; of these, StoreError means that the storage failed.
        """
        run = self._hub_run
        if run is not None and run.row.id != task.run:
            run.leave()
            run = None
        own = self._form.rounds if self._form is not None else 0
        if run is None:
            row, first = self._row(task), Checkpoint(0, task.download.sha256, (), whole=False)
            errand = errand_of(task, own, None, 0)
            run = HubRun(row, first, self._desk, errand, self)
            self._store(errand)
            self.journal.create(row, first)
            self._run = run
            if task.conditions is not None:
                self._send(ToAll(RollCall.KIND), roll_call(task.conditions))
        else:
            errand = errand_of(task, own, run.errand, run.committed)
            self._store(errand)
        self._next_beat = self._clock() + _beat(task)
        run.obey(errand)

    def _row(self, task: Task) -> RunRow:
        if self.journal.run(task.run) is not None:
            raise RunError("it is over here", where=f"run {task.run}")
        room = math.ldexp(0.5, task.grid - math.frexp(self._config.max_examples)[1])  # of an upload in the sums
        config = msgspec.structs.replace(
            self._config,
            name=task.run,
            hyper=dict(task.settings),
            exact=True,
            max_norm=min(self._config.max_norm, room),
            codec=task.codec,
            conditions=task.conditions,
        )
        return RunRow(task.run, config, task.bundle.sha256, Status.RUNNING, "")

    def _arithmetic(self, row: RunRow, plan: Plan) -> Upward:  # noqa: ARG002  all runs of a hub are alike
        if self._form is None:
            return Upward(self.vault, plan, self._worker, self.upward)
        rounds, nested = self._form.rounds, self._form.nested
        return Modelled(self.vault, plan, self._worker, self.upward, rounds=rounds, nested=nested)

    # Storage and time.

    def next_session(self) -> int:
        """A number that is larger at each call, also across restarts; for each start of the hub."""
        file = self._file.with_name("session")
        with storing(file):
            number = int(file.read_text("ascii")) + 1 if file.exists() else 1
            write_durably(file, str(number).encode())
        return number

    def _store(self, errand: Errand) -> None:
        with storing(self._file):
            write_durably(self._file, msgspec.msgpack.encode(errand))

    def _taken_up(self, row: RunRow, checkpoint: Checkpoint) -> ActiveRun:
        with storing(self._file):
            errand = read_errand(self._file.read_bytes(), where=str(self._file))
        return HubRun(row, checkpoint, self._desk, errand, self)

    def _look(self) -> None:
        super()._look()
        self._greet()
        self._link.pump()
        run = self._hub_run
        task = self._wanted or (run.errand.task if run is not None and run.at_work else None)
        if task is not None and self._clock() >= self._next_beat:
            self._next_beat = self._clock() + _beat(task)
            self._progress(task)

    @property
    def _hub_run(self) -> HubRun | None:
        """The run that goes on."""
        run = self._run
        return run if isinstance(run, HubRun) and not run.ended else None


def _usual(hellos: Iterable[Hello]) -> tuple[str, ...]:
    """The runtimes that most devices have, as many as a Hello can name: one device must not fill it with its own."""
    counts = Counter(runtime for hello in hellos for runtime in set(hello.runtimes))
    return tuple(sorted(sorted(counts, key=lambda runtime: (-counts[runtime], runtime))[:RUNTIMES_LIMIT]))


def _key(task: Task) -> tuple[int, int]:
    return task.round, task.attempt


def _beat(task: Task) -> float:
    return max(task.heartbeat, SHORTEST_BEAT)
