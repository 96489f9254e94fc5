"""The coordinator's service: feeds the active run with what the bus brings.

One run at a time trains a fleet.  Everything that must survive is in the journal and the blob stores under one
directory; starting the service on that directory goes on where the last one ended, however it ended.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import msgspec

from coordinator import identity, orphans, updater
from coordinator.active import ActiveRun
from coordinator.admission import runnable
from coordinator.arithmetic import Arithmetic, Local
from coordinator.attribution import attributed
from coordinator.blame import ROOM
from coordinator.busy import Busy
from coordinator.checkpoint import Vault
from coordinator.conditions import is_to_ask, roll_call
from coordinator.config import RunConfig, TransferTable
from coordinator.desk import Desk
from coordinator.devices import Fleet, doubt, farewell, repeats, welcome
from coordinator.journal import Checkpoint, Journal, RunRow, Status
from coordinator.members import Hubs, silenced
from coordinator.orders import Aggregation, Aggregators
from coordinator.outgoing import Outgoing
from coordinator.overview import overview
from coordinator.privacy import agreement as privacy
from coordinator.privacy.account import account_of
from coordinator.remote import Remote
from coordinator.roster import Background
from coordinator.secagg.agreement import check_aggregated
from coordinator.status import RunStatus, Totals, totals
from coordinator.storage.depot import GRACE, Depot, collect
from coordinator.uploads import News, Uploads
from edgepfl import wire
from edgepfl.bundle import pack, unpack
from edgepfl.bus import Arrived, Bus, Connected, Disconnected
from edgepfl.bus._files import make_directory
from edgepfl.bus.lock import ProcessLock
from edgepfl.bus.refusals import Refusals
from edgepfl.eligibility import Conditions
from edgepfl.errors import EdgepflError, RunError, StoreError, WireError
from edgepfl.plan import Plan
from edgepfl.topics import Address, Chunk, FromAggregator, FromDevice, ToAll, ToDevice, Topics, check_name
from edgepfl.wire import Cancel, Failed, Gone, Hello, Message, Need, Progress, Report, RollCall, SecAgg, Stopped

log = logging.getLogger(__name__)
SOON = 0.005  # seconds: no timer is shorter
TICK = 0.5  # seconds between looks at leases and deadlines


class Coordinator:
    """The service of one fleet.

    Args:
        fleet: its name.
        bus: not yet started.
        state: the directory of everything that must survive; it is made if missing, for this user only.
        device: where uploads are folded ("cpu", "cuda").
        hubs: devices that are hubs, and the most devices that each may report for.
        aggregation: that aggregators do the mathematics; None: this process does.
        shared: a store with a copy of every blob, from which lost ones come back; None: the directory alone.
        transfer: how blobs are transferred.
        clock: seconds that never go back.
        worker: does arithmetic, one thing after the other; None: a thread of its own.
        draw: so many random bits, as a number.
        tick: seconds between looks at leases and deadlines; 0: the usual.

    Raises:
        StoreError: another coordinator uses the directory, or it cannot be used at all.
    """

    def __init__(
        self,
        fleet: str,
        bus: Bus,
        state: Path,
        *,
        device: str = "cpu",
        hubs: Hubs = MappingProxyType({}),
        aggregation: Aggregation | None = None,
        shared: Depot | None = None,
        transfer: TransferTable = TransferTable(),  # noqa: B008  it is frozen
        clock: Callable[[], float] = time.monotonic,
        worker: Executor | None = None,
        draw: Callable[[int], int] = secrets.randbits,
        tick: float = 0.0,
    ) -> None:
        self._topics = Topics(fleet)
        self._bus = bus
        self._clock = clock
        self._lock = _locked(state)
        self.journal = Journal(state / "journal.db")
        self.vault = Vault.at(state, shared, transfer.room)
        self._outgoing = Outgoing(self._topics, bus, self.vault.offered.local, transfer, lambda: self._fleet)
        self._uploads = Uploads(self.vault.private.local, transfer.under_way_mib << 20)
        self._fleet = Fleet()
        self._refused = Refusals()
        self._names: identity.Names = {}
        self._connected = False
        self._worker = worker or ThreadPoolExecutor(1, thread_name_prefix="reduction")
        self._draw, self._every = draw, tick
        self._changed = asyncio.Event()
        self._broken: asyncio.Future[None] | None = None
        self._pumping: asyncio.TimerHandle | None = None
        self._jobs: set[asyncio.Task[None]] = set()
        self._run: ActiveRun | None = None
        self._totals = Totals()
        self._device = device
        self._aggregators = Aggregators(aggregation, self._send, clock, self._tell)
        self._depot = aggregation.depot if aggregation is not None else shared
        self._next_tidy = clock()
        self._desk = Desk(
            journal=self.journal,
            vault=self.vault,
            send=self._send,
            fleet=lambda: self._fleet,
            suspect=self._suspect,
            forget=self._forget,
            traffic=lambda: self._bus.traffic,
            worker=self._worker,
            clock=clock,
            arithmetic=self._arithmetic,
            spawn=self._spawn,
            changed=self._tell,
            hubs=hubs,
            draw=draw,
        )

    @property
    def fleet(self) -> Fleet:
        """Who is here."""
        return self._fleet

    # Runs.

    def start_run(self, config: RunConfig, bundle: bytes) -> str:
        """Begin a run; its id.

        Raises:
            RunError: another run is active.
            EdgepflError: the bundle or a setting cannot be used.
        """
        check_name(config.name, "run name")
        if (other := self.journal.running()) is not None:
            raise RunError("another run is active", where=other.id, remedy="Stop it, or wait for its end")
        opened = runnable(unpack(bundle, golden=False))
        bundle = pack(opened)  # without its golden vectors: most of its bytes, and no device trains with them
        algorithm = updater.algorithm_of(opened.plan, config.hyper)
        first = self.vault.save(algorithm, 0, updater.first_state(algorithm, opened.plan, opened.model)).checkpoint
        digest = self.vault.offered.put(bundle).sha256
        row = RunRow(f"{config.name}-{self._draw(32):08x}", config, digest, Status.RUNNING, "")
        run = ActiveRun(row, first, self._desk)
        self.journal.create(row, first)
        self._run = run
        if config.conditions is not None:
            self._call_roll(ToAll(RollCall.KIND))
        with self._or_break():
            run.resume()
        return row.id

    def stop_run(self, run: str) -> None:
        """End a run at once.

        Raises:
            RunError: it is not the active run.
        """
        if not self._is_active(run):
            raise RunError("it is not active", where=f"run {run}")
        with self._or_break():
            self._active.stop()
        self._aggregators.dismiss()

    def status(self, run: str = "", *, detailed: bool = True) -> RunStatus:
        """Where a run stands; the newest if none is named.

        Args:
            run: its id.
            detailed: say of each device what it is doing.

        Raises:
            RunError: there is no such run.
        """
        row = self.journal.run(run)
        if row is None:
            raise RunError("there is no such run", where=run or "status", remedy="Start one with: edgepfl run start")
        checkpoint = self.journal.checkpoint(row.id)
        self._totals = totals(self.journal, row.id, checkpoint.round, self._totals)
        active = self._active if self._is_active(row.id) else None
        open_round = None if active is None else active.round
        background = None
        if detailed:  # it looks at every device, and who watches a large fleet asks at every message
            background = Background() if active is None else active.background(self._uploads.arriving)
        found = overview(
            row,
            checkpoint,
            self._totals,
            self._fleet,
            open_round,
            busy=Busy() if active is None else active.busy,
            refused=self._refused.counts,
            doubled=identity.doubled(self._names, self._clock()),
            background=background,
            at=self._clock(),
        )
        if row.config.privacy is not None:
            account = account_of(self.journal, row.id, row.config, detailed=detailed)
            found = msgspec.structs.replace(found, privacy=account)
        if active is not None:
            found = active.exchange.shown(found)
        if open_round is not None and not self._connected:
            away = "the coordinator has no connection to the broker (its log says why), so no time passes"
            return msgspec.structs.replace(found, waiting=f"{away}; {found.waiting}")
        if open_round is not None and self._aggregators.waiting:
            return msgspec.structs.replace(found, waiting=f"{found.waiting}; the aggregators have an order")
        return found

    async def watch(self, run: str) -> AsyncGenerator[RunStatus, None]:
        """The status of a run after each change, until it ends."""
        while True:
            changed = self._changed
            now = self.status(run, detailed=False)
            yield now
            if now.status != Status.RUNNING:
                return
            await changed.wait()

    # The service.

    async def run(self) -> None:
        """Serve until cancelled, then close everything.

        Raises:
            BusError: the bus can never work with its settings.
            StoreError: the coordinator's storage failed.
        """
        self._broken = asyncio.get_running_loop().create_future()
        serving: set[asyncio.Task[None]] = set()
        try:
            for topic_filter in self._topics.for_coordinator():
                self._bus.subscribe(topic_filter)
            if self._aggregators.aggregation is not None:
                self._bus.subscribe(self._topics.from_aggregator())
            self._go_on()
            await self._bus.start()
            loop = asyncio.get_running_loop()
            serving = {loop.create_task(self._receive(), name="receive"), loop.create_task(self._tick(), name="ticks")}
            done, _ = await asyncio.wait({*serving, self._broken}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in serving:
                task.cancel()
            await self._close()

    async def _close(self) -> None:
        self._aggregators.dismiss()
        if self._run is not None:
            self._run.exchange.dismiss()
        while self._jobs:  # one may start another
            await asyncio.wait(self._jobs)
        await self._bus.stop()
        self.close()
        if self._broken is not None and self._broken.done():  # by the last job, maybe: nobody else would hear of it
            self._broken.result()

    def close(self) -> None:
        """Let go of the state directory; :meth:`run` does it at its end."""
        self._worker.shutdown()
        self.journal.close()
        self._lock.close()

    def _go_on(self) -> None:
        """Go on with the run that the last service left, if there is one."""
        row = self.journal.running()
        if row is None or self._is_active(row.id):
            return
        try:
            run = self._taken_up(row, self.journal.checkpoint(row.id))
        except StoreError:
            raise
        except EdgepflError as error:
            log.exception("%s cannot go on", row.id)
            self.journal.end(row.id, Status.FAILED, f"it cannot go on: {error}")
            return
        self._run = run
        run.resume()

    def _taken_up(self, row: RunRow, checkpoint: Checkpoint) -> ActiveRun:
        """A run that the journal has."""
        return ActiveRun(row, checkpoint, self._desk)

    def _arithmetic(self, row: RunRow, plan: Plan) -> Arithmetic:
        """Who does the mathematics of a run."""
        aggregation = self._aggregators.aggregation
        if aggregation is None:
            return Local(self.vault, plan, self._worker, self._device, row.id)
        check_aggregated(row.config)
        privacy.check_aggregated(row.config)
        orders = self._aggregators.hire()
        return Remote(self.vault, row, self._worker, depot=aggregation.depot, orders=orders, used=self.journal.blobs)

    async def _receive(self) -> None:
        while True:
            self._take(await self._bus.receive())

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._every or TICK)
            self._look()

    def _look(self) -> None:
        """See whose time is up, unless we are cut off: nobody could be heard."""
        if not self._connected:
            return
        if self._run is not None:
            self._run.tick()
        self._aggregators.look()
        for device in self._refused.back(self._clock()):
            self._call_roll(ToDevice(device, RollCall.KIND))
        self._pump()
        self._tidy()

    def _tidy(self) -> None:
        """While no run does it, delete in the shared store what nothing needs: at a run's end it was too new."""
        if self._depot is None or self._clock() < self._next_tidy or (self._run is not None and not self._run.ended):
            return
        self._next_tidy = self._clock() + GRACE
        self._worker.submit(collect, self._depot, self.journal.blobs())

    # What comes in.

    def _take(self, event: Arrived | Connected | Disconnected) -> None:
        match event:
            case Connected():
                self._welcome_back()
            case Disconnected(reason):
                log.warning("disconnected (%s)", reason)
                self._connected = False
                self._outgoing.forget()
                self._fleet = doubt(self._fleet, tuple(self._fleet.devices), self._clock())
                self._tell()
            case Arrived(topic, payload):
                self._arrived(topic, payload)

    def _welcome_back(self) -> None:
        """The broker is reached (again): ask who is here."""
        self._connected = True
        if self._run is not None:
            self._run.reconnected()
        self._aggregators.repeat()
        self._call_roll(ToAll(RollCall.KIND))
        self._uploads.ask_again(self._clock())
        self._pump()

    def _arrived(self, topic: str, payload: bytes) -> None:
        address = self._topics.parse(topic)
        if isinstance(address, Chunk | FromDevice) and self._refused.unread(address.device, self._clock()):
            return
        match address:
            case Chunk(sha16, index, device) if device:
                wrong = self._uploads.wrong
                self._heard(self._uploads.chunk(device, sha16, index, payload, self._clock()))
                if self._uploads.wrong > wrong:
                    self._refuse(device, WireError("not what its report says", where=topic, reason="chunk"))
                self._pump()
            case FromDevice(device, _):
                try:
                    message = attributed(device, wire.decode(payload, where=topic))
                except WireError as error:
                    self._refuse(device, error)
                    return
                self._message(device, message)
            case FromAggregator():
                try:
                    self._aggregators.heard(wire.decode(payload, where=topic))
                except WireError as error:
                    self._refuse("", error)
            case _:
                self._refuse("", WireError("nothing to do with this topic", where=repr(topic), reason="topic"))

    def _refuse(self, device: str, why: WireError) -> None:
        """Count a message that cannot be used, and tell of the first ones."""
        if self._refused.count(device, why.reason, self._clock()):
            log.warning("%s sent too much that cannot be used: it is not read for a while", device)
        elif self._refused.worth_telling(why.reason):
            log.warning("ignored: %s", why)

    def _message(self, device: str, message: Message) -> None:
        match message:
            case Hello():
                self._hello(message)
            case Gone():
                self._gone(message)
            case Need():
                self._outgoing.needed(message, self._clock())
                self._pump()
            case Report():
                self._report(message)
            case Progress() | Failed() if self._is_active(message.run):
                self._active.heard(message)
            case SecAgg() if self._is_active(message.run):
                self._active.exchange.heard(message)
            case Stopped() if self._is_active(message.run):
                self._active.stopped(message)
            case Progress() | Failed():
                self._send(ToDevice(device, Cancel.KIND), orphans.outside(message, self.journal))
            case _:
                log.info("a %s of %s came to nothing", message.KIND, device)

    def _hello(self, hello: Hello) -> None:
        now = self._clock()
        if self._is_second(hello, now):
            return
        if repeats(self._fleet, hello, now):
            return
        must_ask = is_to_ask(self._fleet, hello, self._asked)
        self._fleet = welcome(self._fleet, hello, now)
        log.info("%s is here with %d examples", hello.device, hello.examples)
        if why := silenced(hello, self._desk.hubs):
            log.warning("%s takes no part: %s", hello.device, why)
        if must_ask:
            self._call_roll(ToDevice(hello.device, RollCall.KIND))
        if self._run is not None:
            self._run.hello(hello.device)
        self._tell()

    def _is_second(self, hello: Hello, now: float) -> bool:
        """Whether it comes from an agent whose name another one has; it is told to end, and the other one is here."""
        self._names, refused = identity.hear(self._names, hello, now)
        if refused is None:
            return False
        log.error("%s: %s", hello.device, refused.why)
        self._send(ToDevice(hello.device, refused.KIND), refused)
        self._fleet = doubt(self._fleet, (hello.device,))  # until the other one says Hello
        self._tell()
        return True

    def _gone(self, gone: Gone) -> None:
        self._fleet = farewell(self._fleet, gone, self._clock())
        known = self._fleet.devices.get(gone.device)
        if self._run is not None and known is not None and not known.present:
            self._run.absent(gone.device)
        self._tell()

    def _report(self, report: Report) -> None:
        if not self._is_active(report.run):
            answer = orphans.outside(report, self.journal)
            self._send(ToDevice(report.device, answer.KIND), answer)
        elif not self._active.expects(report):
            self._active.answer(report)
        elif why := self._active.refusal(report):
            self._active.failed(report.device, report.round, report.attempt, why)
        elif report.upload is None:
            self._active.reported(report)
        else:
            self._heard(self._uploads.take(report, report.upload, self._clock()))
            self._pump()

    def _heard(self, news: News) -> None:
        for report in news.alive:
            self._active.progressed(report.device, report.round, report.attempt)
        for report in news.wrong:
            code = ROOM if news.ours else ""
            self._active.failed(report.device, report.round, report.attempt, news.why, code)
        for report in news.complete:
            if self._active.expects(report):
                self._active.reported(report)

    # What goes out.

    def _pump(self) -> None:
        """Ask for the chunks of the uploads that are due, send what waits, and again when it is time."""
        for device, need in self._uploads.due(self._clock()):
            self._send(ToDevice(device, Need.KIND), need)
        self._outgoing.pump(self._clock())
        due = self._uploads.next_due
        self._pump_soon(min(math.inf if due is None else due, self._outgoing.due(self._clock())))

    def _pump_soon(self, due: float) -> None:
        """Pump again at a certain time, and not before; never, where that is infinite."""
        if self._pumping is not None:
            self._pumping.cancel()
            self._pumping = None
        if due < math.inf and self._connected:
            wait = max(SOON, due - self._clock())
            self._pumping = asyncio.get_running_loop().call_later(wait, self._pump_on)

    def _pump_on(self) -> None:
        try:
            self._pump()
        except Exception as error:  # noqa: BLE001  a timer has no caller: the service must end with it
            self._break(error)

    def _suspect(self, devices: tuple[str, ...]) -> None:
        """Take silent devices for absent; those that are only slow answer."""
        self._fleet = doubt(self._fleet, devices, self._clock())
        for device in devices:
            self._call_roll(ToDevice(device, RollCall.KIND))

    def _call_roll(self, address: Address) -> None:
        """Ask for a Hello, and say what the active run asks."""
        self._send(address, roll_call(self._asked, self._draw))

    def _forget(self) -> frozenset[str]:
        return self._uploads.keep(lambda report: self._run is not None and self._run.expects(report))

    def _send(self, address: Address, message: Message) -> None:
        """Send it as soon as the bus has room; while we are cut off nobody is told, but everyone afterwards."""
        if not self._connected:
            log.info("a %s is not sent: not connected", message.KIND)
            return
        self._outgoing.send(address, message)
        if self._pumping is None:  # else a pump is due, and the next tick at the latest
            self._pump_soon(self._outgoing.due(self._clock()))

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _spawn(self, job: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(job, name=name)
        self._jobs.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, job: asyncio.Task[None]) -> None:
        """End the service with the fault of a job: nothing may be promised any more."""
        self._jobs.discard(job)
        error = None if job.cancelled() else job.exception()
        if error is not None:
            self._break(error)

    @contextmanager
    def _or_break(self) -> Iterator[None]:
        """End the service where the storage fails in the middle of a change: started again, it goes on from there."""
        try:
            yield
        except StoreError as error:
            self._break(error)
            raise

    def _break(self, error: BaseException) -> None:
        if self._broken is not None and not self._broken.done():
            self._broken.set_exception(error)

    def _is_active(self, run: str) -> bool:
        return self._run is not None and self._run.row.id == run and not self._run.ended

    @property
    def _asked(self) -> Conditions | None:
        """What the active run asks of its devices."""
        return None if self._run is None or self._run.ended else self._run.row.config.conditions

    @property
    def _active(self) -> ActiveRun:
        if self._run is None:
            raise RunError("no run is active")
        return self._run


def _locked(state: Path) -> ProcessLock:
    try:
        make_directory(state, 0o700)
        state.chmod(0o700)  # it may have been there: only its owner may control the service or read what devices said
    except OSError as error:
        raise StoreError(f"it cannot be made ({error.strerror})", where=str(state)) from error
    return ProcessLock(state / "lock", subject=state, holder="coordinator")
