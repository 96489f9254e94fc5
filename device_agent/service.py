"""The agent's service: feeds the session machine with what the bus brings, and carries out its effects.

Everything here runs in one event loop; only a task's work runs in a thread, so a long step never looks like a dead
device.  Thousands of services can share a loop, a workshop and a pool of threads.

A power cut may come between any two lines.  A result becomes real in one transaction of the store: before it nothing
has happened and the task is done again from the same state, after it the report is sent again until it is answered.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from device_agent import session
from device_agent.data import Examples
from device_agent.interpreter import Stopped
from device_agent.messages import Speaker, inline
from device_agent.session import Effect, Session, Standing, TaskId, task_id
from device_agent.store import Store
from device_agent.work import Job, Materials, Product, Workshop
from edgepfl import wire
from edgepfl.bus import Arrived, Bus, Connected, Disconnected, Will
from edgepfl.bus.blobs import BlobStore
from edgepfl.bus.chunks import Receiver, Sender
from edgepfl.errors import EdgepflError, StoreError, TransferError, WireError
from edgepfl.topics import Chunk, FromDevice, ToAll, ToDevice, Topics
from edgepfl.wire import BlobRef, Cancel, Commit, Gone, Need, Report, RollCall, Task

log = logging.getLogger(__name__)
_AGAIN = 1.0  # seconds until a message is tried again that the bus had no room for


@dataclass(frozen=True)
class Place:
    """Where an agent lives: its storage.

    Attributes:
        store: KEEP slots, outbox and identity.
        fetched: blobs that it got.
        offered: blobs that it offers to the coordinator, and nothing else.
    """

    store: Store
    fetched: BlobStore
    offered: BlobStore

    @classmethod
    def open(cls, state: Path) -> Place:
        """The storage under a device's state directory, which is made if it is missing.

        Raises:
            StoreError: another agent uses it, or it cannot be used at all.
        """
        return cls(Store(state / "store.db"), BlobStore(state / "fetched"), BlobStore(state / "offered"))


def will(fleet: str, device: str, number: int) -> Will:
    """What the broker says of a device that vanishes in this session."""
    topic = Topics(fleet).build(FromDevice(device, Gone.KIND))
    return Will(topic, wire.encode(Gone(device, number)))


class AgentService:
    """One device.

    Args:
        device: its name.
        fleet: the fleet's name.
        number: of this session, new at every start.
        bus: not yet started, with :func:`will`.
        place: its storage.
        examples: its data.
        workshop: does tasks.
        pool: threads for tasks.
        clock: seconds that never go back.

    Raises:
        StoreError: the storage cannot be used, or is another device's.
    """

    def __init__(
        self,
        device: str,
        fleet: str,
        number: int,
        *,
        bus: Bus,
        place: Place,
        examples: Examples,
        workshop: Workshop,
        pool: Executor,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._topics = Topics(fleet)
        self._speaker = Speaker(device, number, workshop.runtime, examples.count)
        self._bus = bus
        self._place = place
        self._examples = examples
        self._workshop = workshop
        self._pool = pool
        self._clock = clock
        self._receiver = Receiver(place.fetched)
        self._sender = Sender(place.offered)
        self._job: Job | None = None  # the current task's
        self._jobs: dict[asyncio.Task[None], Job] = {}  # also those that are about to stop
        self._events: deque[session.Event] = deque()
        self._feeding = False
        self._connected = False
        self._owed: dict[type[Effect], Effect] = {}  # what the bus did not take
        self._pay_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._broken: asyncio.Future[None]
        place.store.claim(device)
        runs = {run: Standing(*here) for run, here in place.store.standings().items()}
        self._state = Session(device, runs)

    @property
    def state(self) -> Session:
        """The session machine's state."""
        return self._state

    async def run(self) -> None:
        """Serve until cancelled.

        Raises:
            BusError: the bus can never work with its settings.
            StoreError: the device's storage failed: nothing may be promised any more.
        """
        loop = asyncio.get_running_loop()
        self._broken = loop.create_future()
        for topic_filter in self._topics.for_device(self._state.device):
            self._bus.subscribe(topic_filter)
        receiving = loop.create_task(self._receive(), name=f"{self._state.device} receives")
        try:
            await asyncio.wait({receiving, self._broken}, return_when=asyncio.FIRST_COMPLETED)
            (self._broken if self._broken.done() else receiving).result()
        finally:
            receiving.cancel()
            await asyncio.wait({receiving})
            await self._close()

    async def _receive(self) -> None:
        await self._bus.start()
        while True:
            self._take(await self._bus.receive())

    async def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._job = None  # what is finished from now on is not kept: it will be done again, with the same result
        for job in self._jobs.values():
            job.stop.set()
        if self._jobs:
            await asyncio.wait(self._jobs)
        self._send(self._speaker.gone())
        await self._bus.stop()

    def _break(self, error: BaseException) -> None:
        """End the service with a fault that no task of the coordinator's explains."""
        if not self._broken.done():
            self._broken.set_exception(error)

    # What comes in.

    def _take(self, event: Arrived | Connected | Disconnected) -> None:
        match event:
            case Connected():
                self._connected = True
                log.info("%s: connected", self._state.device)
                self._receiver.ask_again(self._clock())
                self._feed(session.Connected())
                self._pay()
                self._pump()
            case Disconnected(reason):
                self._connected = False
                log.info("%s: disconnected (%s)", self._state.device, reason)
            case Arrived(topic, payload):
                self._arrived(topic, payload)

    def _arrived(self, topic: str, payload: bytes) -> None:
        try:
            match self._topics.parse(topic):
                case Chunk(sha16, index, ""):
                    self._chunk(sha16, index, payload)
                case ToAll() | ToDevice():
                    self._message(wire.decode(payload, where=topic))
                case _:
                    log.warning("%s: nothing to do with topic %s", self._state.device, topic)
        except (WireError, TransferError) as error:
            log.warning("%s: ignored: %s", self._state.device, error)

    def _message(self, message: wire.Message) -> None:
        match message:
            case Task() | Commit() | Cancel() | RollCall():
                self._feed(session.Received(message, self._clock()))
            case Need():
                self._offer(message)
            case _:
                log.warning("%s: a %s is nothing for a device", self._state.device, message.KIND)

    def _chunk(self, sha16: str, index: int, data: bytes) -> None:
        try:
            complete = self._receiver.chunk(sha16, index, data, self._clock())
        except (TransferError, StoreError) as error:
            self._bus.unsubscribe(self._topics.chunks_of(sha16))
            self._unfetchable(error)
            return
        self._pump()
        if complete is not None:
            self._bus.unsubscribe(self._topics.chunks_of(sha16))
            self._feed(session.Fetched(complete))

    # What the machine wants.

    def _feed(self, event: session.Event) -> None:
        """Let the machine have an event; one that comes of carrying out effects waits until all of them are done."""
        self._events.append(event)
        if self._feeding:
            return
        self._feeding = True
        try:
            while self._events:
                self._state, effects = session.advance(self._state, self._events.popleft())
                for effect in effects:
                    self._carry_out(effect)
        finally:
            self._feeding = False
            self._events.clear()
        self._schedule()

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case session.SayHello(pending):
                self._try(effect, self._send(self._speaker.hello(pending)))
            case session.SendReports():
                self._try(effect, self._reports())
            case session.Fetch(ref):
                self._fetch(ref)
            case session.Work(task):
                self._start(task)
            case session.StopWork(task):
                self._stop_work(task)
            case session.Settle(task, accepted_round):
                self._settle(task, accepted_round)
            case session.Close(task, accepted):
                self._place.store.close_round(task.run, task.round, accepted=accepted)
                self._forget_offers()
            case session.SendProgress(task):
                steps = self._job.steps if self._job is not None else 0
                self._send(self._speaker.progress(task, steps))
            case session.SendFailed(task, code, detail):
                self._try(effect, self._send(self._speaker.failed(task, code, detail)))

    def _try(self, effect: Effect, sent: bool) -> None:  # noqa: FBT001  what the bus said
        """Remember an effect that the bus did not take, to try it again."""
        if sent:
            self._owed.pop(type(effect), None)
            return
        if not self._owed:
            self._pay_at = self._clock() + _AGAIN
        self._owed[type(effect)] = effect

    def _pay(self) -> None:
        """Try again what the bus did not take."""
        owed, self._owed = self._owed, {}
        for effect in owed.values():
            self._carry_out(effect)

    def _reports(self) -> bool:
        topic = self._topics.build(FromDevice(self._state.device, Report.KIND))
        return all(self._bus.publish(topic, waiting.report) for waiting in self._place.store.outbox())

    def _fetch(self, ref: BlobRef) -> None:
        try:
            here = self._receiver.want(ref, self._clock())
        except (TransferError, StoreError) as error:
            self._unfetchable(error)
            return
        if here:
            self._feed(session.Fetched(ref.sha256))
            return
        self._bus.subscribe(self._topics.chunks_of(ref.sha256[:16]))
        self._pump()

    def _unfetchable(self, error: EdgepflError) -> None:
        """A blob of the current task cannot be had: its reference lies, or there is no room for it."""
        log.warning("%s: %s", self._state.device, error)
        if self._state.task is not None:
            self._feed(session.WorkFailed(task_id(self._state.task), type(error).__name__, str(error)))

    def _stop_work(self, task: TaskId) -> None:
        if self._job is not None and task_id(self._job.task) == task:
            self._job.stop.set()
            self._job = None
        for sha256 in self._receiver.wanted:
            self._receiver.cancel(sha256)
            self._bus.unsubscribe(self._topics.chunks_of(sha256[:16]))

    def _settle(self, task: TaskId, accepted_round: int) -> None:
        after = self._place.store.settle(task.run, accepted_round, task.round, task.attempt)
        if after.behind:
            log.warning(
                "%s: round %d counts, and this device's own state is older: it goes on from round %d",
                self._state.device,
                accepted_round,
                after.settled,
            )
        self._forget_offers()
        if self._state.task is not None:
            self._place.fetched.keep_only({self._state.task.bundle.sha256, self._state.task.download.sha256})

    # Work.

    def _start(self, task: Task) -> None:
        job = self._job = Job(task)
        work = asyncio.get_running_loop().create_task(self._work(job), name=f"{self._state.device} {task.round}")
        self._jobs[work] = job
        work.add_done_callback(self._finished)

    def _finished(self, work: asyncio.Task[None]) -> None:
        del self._jobs[work]
        if not work.cancelled() and (error := work.exception()) is not None:
            self._break(error)

    async def _work(self, job: Job) -> None:
        task, this = job.task, task_id(job.task)
        loop = asyncio.get_running_loop()
        try:
            materials = self._materials(task)
            product = await loop.run_in_executor(self._pool, self._workshop.perform, task, materials, job.on_step)
            if job is self._job:
                self._keep(task, product)
        except Stopped:
            log.info("%s: stopped work on round %d", self._state.device, task.round)
            return
        except Exception as error:
            if job is not self._job:  # its blobs may be deleted already
                return
            known = isinstance(error, EdgepflError)  # else a fault of ours or of a data plug-in: not of the service
            log.warning("%s: round %d failed: %s", self._state.device, task.round, error, exc_info=not known)
            self._job = None
            self._feed(session.WorkFailed(this, type(error).__name__, str(error)))
            return
        if job is self._job:
            self._job = None
            self._feed(session.Worked(this))

    def _materials(self, task: Task) -> Materials:
        fetched = self._place.fetched
        return Materials(
            device=self._state.device,
            examples=self._examples,
            bundle=lambda: fetched.read(task.bundle.sha256),
            download=lambda: fetched.read(task.download.sha256),
            keep=self._place.store.keep(task.run).data,
        )

    def _keep(self, task: Task, product: Product) -> None:
        """Store a result; the KEEP slots and the report that goes with them in one transaction."""
        upload = None
        if product.upload is not None:
            small = len(product.upload) <= wire.INLINE_LIMIT
            upload = inline(product.upload) if small else self._place.offered.put(product.upload)
        report = self._speaker.report(task, product, upload)
        if product.serving is not None:
            self._place.store.set_serving(task.run, task.round, product.serving)
        self._place.store.commit_pending(
            task.run, task.round, task.attempt, keep=product.keep, report=wire.encode(report)
        )
        log.info("%s: round %d of %s is done, %d steps", self._state.device, task.round, task.run, product.steps)

    # Blobs.

    def _offer(self, need: Need) -> None:
        for index, data in self._sender.requested(need, self._clock()):
            self._bus.publish(self._topics.build(Chunk(need.sha256[:16], index, self._state.device)), data)

    def _forget_offers(self) -> None:
        """Keep the blobs of the reports that wait, and no others."""
        try:
            waiting = [wire.decode(each.report, where="outbox") for each in self._place.store.outbox()]
        except WireError:  # written by another version of this agent
            return
        uploads = [report.upload for report in waiting if isinstance(report, Report) and report.upload is not None]
        self._place.offered.keep_only({upload.sha256 for upload in uploads})

    def _pump(self) -> None:
        topic = self._topics.build(FromDevice(self._state.device, Need.KIND))
        for need in self._receiver.due(self._clock()):
            self._bus.publish(topic, wire.encode(need))
        self._schedule()

    # Time.

    def _schedule(self) -> None:
        """Wake up when the machine or a transfer next has something to do."""
        times = [] if self._state.task is None else [self._state.next_beat, self._state.expires]
        if self._receiver.next_due is not None:
            times.append(self._receiver.next_due)
        if self._owed and self._connected:
            times.append(self._pay_at)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if times:
            wait = max(0.0, min(times) - self._clock())
            self._timer = asyncio.get_running_loop().call_later(wait, self._wake)

    def _wake(self) -> None:
        self._timer = None
        try:
            self._feed(session.Ticked(self._clock()))
            if self._clock() >= self._pay_at:
                self._pay()
            self._pump()
        except Exception as error:  # noqa: BLE001  a timer has no caller: the service must end with it, not go deaf
            self._break(error)

    def _send(self, message: wire.Message) -> bool:
        topic = self._topics.build(FromDevice(self._state.device, message.KIND))
        return self._bus.publish(topic, wire.encode(message))
