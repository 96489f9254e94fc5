"""The agent's service: feeds the session machine with what the bus brings, and carries out its effects.

Everything here runs in one event loop; only a task's work runs in a thread, so a long step never looks like a dead
device.  Thousands of services can share a loop, a workshop and a pool of threads.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import edgepfl
from device_agent import session
from device_agent.data import Examples
from device_agent.interpreter import Stopped
from device_agent.session import Effect, Session, TaskId, task_id
from device_agent.store import Store
from device_agent.work import Materials, Product, Workshop
from edgepfl import wire
from edgepfl.bus import Arrived, Bus, Connected, Disconnected, Will
from edgepfl.bus.blobs import BlobStore
from edgepfl.bus.chunks import Receiver, Sender
from edgepfl.errors import EdgepflError, TransferError, WireError
from edgepfl.topics import Chunk, FromDevice, ToAll, ToDevice, Topics
from edgepfl.wire import BlobRef, Cancel, Commit, Failed, Gone, Hello, Need, Progress, Report, RollCall, Task

log = logging.getLogger(__name__)
_MIB = 1 << 20


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
        state.mkdir(parents=True, exist_ok=True)
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
        self._number = number
        self._bus = bus
        self._place = place
        self._examples = examples
        self._workshop = workshop
        self._pool = pool
        self._clock = clock
        self._receiver = Receiver(place.fetched)
        self._sender = Sender(place.offered)
        self._stop: dict[TaskId, threading.Event] = {}
        self._steps_done = 0
        self._at_work: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._state = Session(device, done=self._waiting_report())

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
        for topic_filter in self._topics.for_device(self._state.device):
            self._bus.subscribe(topic_filter)
        await self._bus.start()
        try:
            while True:
                self._take(await self._bus.receive())
        finally:
            await self._close()

    async def _close(self) -> None:
        for stop in self._stop.values():
            stop.set()
        if self._at_work:
            await asyncio.wait(self._at_work)
        if self._timer is not None:
            self._timer.cancel()
        self._send(Gone(self._state.device, self._number))
        await self._bus.stop()

    # What comes in.

    def _take(self, event: Arrived | Connected | Disconnected) -> None:
        match event:
            case Connected():
                self._receiver.ask_again(self._clock())
                self._feed(session.Connected())
                self._pump()
            case Disconnected(reason):
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
        complete = self._receiver.chunk(sha16, index, data, self._clock())
        self._pump()
        if complete is not None:
            self._bus.unsubscribe(self._topics.chunks_of(sha16))
            self._feed(session.Fetched(complete))

    # What the machine wants.

    def _feed(self, event: session.Event) -> None:
        self._state, effects = session.advance(self._state, event)
        for effect in effects:
            self._carry_out(effect)
        self._schedule()

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case session.SayHello(pending):
                self._hello(pending)
            case session.SendReports():
                self._send_reports()
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
                self._progress(task)
            case session.SendFailed(task, code, detail):
                self._send(
                    Failed(self._state.device, self._number, task.run, task.round, task.attempt, code, detail[:256])
                )

    def _hello(self, pending: TaskId | None) -> None:
        self._send(
            Hello(
                device=self._state.device,
                session=self._number,
                runtimes=(self._workshop.runtime,),
                examples=len(self._examples.train_x),
                memory_mib=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _MIB,
                agent=edgepfl.__version__,
                pending=(pending.run, pending.round) if pending else ("", -1),
            )
        )

    def _progress(self, task: TaskId) -> None:
        device, steps = self._state.device, self._steps_done
        self._send(Progress(device, self._number, task.run, task.round, task.attempt, steps))

    def _send_reports(self) -> None:
        topic = self._topics.build(FromDevice(self._state.device, Report.KIND))
        for waiting in self._place.store.outbox():
            self._bus.publish(topic, waiting.report)

    def _fetch(self, ref: BlobRef) -> None:
        topic_filter = self._topics.chunks_of(ref.sha256[:16])
        try:
            if self._receiver.want(ref, self._clock()):
                self._feed(session.Fetched(ref.sha256))
                return
        except TransferError as error:
            log.warning("%s: %s", self._state.device, error)
            if self._state.task is not None:
                self._feed(session.WorkFailed(task_id(self._state.task), "blob", str(error)))
            return
        self._bus.subscribe(topic_filter)
        self._pump()

    def _stop_work(self, task: TaskId) -> None:
        if task in self._stop:
            self._stop[task].set()
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
        stop = self._stop[task_id(task)] = threading.Event()
        self._steps_done = 0
        work = asyncio.get_running_loop().create_task(self._work(task, stop), name=f"{self._state.device} {task.round}")
        self._at_work.add(work)
        work.add_done_callback(self._at_work.discard)

    async def _work(self, task: Task, stop: threading.Event) -> None:
        this = task_id(task)

        def on_step(done: int) -> None:
            self._steps_done = done
            if stop.is_set():
                raise Stopped("the task is over", where=f"round {task.round}")

        try:
            materials = self._materials(task)
            loop = asyncio.get_running_loop()
            product = await loop.run_in_executor(self._pool, self._workshop.perform, task, materials, on_step)
            if self._state.task is not None and task_id(self._state.task) == this and not stop.is_set():
                self._keep(task, product)
                self._feed(session.Worked(this))
        except Stopped:
            log.info("%s: stopped work on round %d", self._state.device, task.round)
        except EdgepflError as error:
            log.warning("%s: round %d failed: %s", self._state.device, task.round, error)
            self._feed(session.WorkFailed(this, type(error).__name__, str(error)))
        except Exception as error:  # a fault in one task, or in a data plug-in, must not end the device's service
            log.exception("%s: round %d failed", self._state.device, task.round)
            self._feed(session.WorkFailed(this, type(error).__name__, str(error)))
        finally:
            self._stop.pop(this, None)

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
        if product.upload is not None and len(product.upload) > wire.INLINE_LIMIT:
            upload = self._place.offered.put(product.upload)
        elif product.upload is not None:
            upload = BlobRef(hashlib.sha256(product.upload).hexdigest(), len(product.upload), product.upload)
        report = Report(
            device=self._state.device,
            session=self._number,
            run=task.run,
            round=task.round,
            attempt=task.attempt,
            examples=len(self._examples.train_x),
            steps=product.steps,
            upload=upload,
            metrics=dict(product.metrics),
            seconds=dict(product.seconds),
            kept=product.kept,
        )
        if product.serving is not None:
            self._place.store.set_serving(task.run, task.round, product.serving)
        self._place.store.commit_pending(
            task.run, task.round, task.attempt, keep=product.keep, report=wire.encode(report)
        )

    # Blobs.

    def _offer(self, need: Need) -> None:
        for index, data in self._sender.requested(need, self._clock()):
            self._bus.publish(self._topics.build(Chunk(need.sha256[:16], index, self._state.device)), data)

    def _forget_offers(self) -> None:
        if not self._place.store.outbox():
            self._place.offered.keep_only(())

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
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if times:
            wait = max(0.0, min(times) - self._clock())
            self._timer = asyncio.get_running_loop().call_later(wait, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._feed(session.Ticked(self._clock()))
        self._pump()

    def _waiting_report(self) -> TaskId | None:
        waiting = self._place.store.outbox()
        return TaskId(waiting[-1].run, waiting[-1].round, waiting[-1].attempt) if waiting else None

    def _send(self, message: wire.Message) -> None:
        self._bus.publish(self._topics.build(FromDevice(self._state.device, message.KIND)), wire.encode(message))
