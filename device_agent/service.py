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
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor
from typing import Literal

from device_agent import session
from device_agent.alarm import Alarm
from device_agent.conditions_outlook import Outlook
from device_agent.conditions_watch import EVERY, Uptime, Watch
from device_agent.data import Examples
from device_agent.hearing import Decode
from device_agent.jobs import Jobs
from device_agent.listening import Listener, nobody
from device_agent.messages import REMEDY, Speaker, installed_mib, new_incarnation
from device_agent.place import Place
from device_agent.secagg import CODE, Concealment
from device_agent.session import Effect, Session, TaskId, task_id
from device_agent.transfers import Transfers
from device_agent.work import Workshop
from edgepfl import wire
from edgepfl.bus import Arrived, Bus, Connected, Disconnected, Will
from edgepfl.bus.refusals import Refusals
from edgepfl.bus.transfer import Transfer
from edgepfl.eligibility import Readings
from edgepfl.errors import BusError, EdgepflError, IdentityError, StoreError, TransferError, WireError
from edgepfl.topics import Chunk, FromDevice, ToAll, ToDevice, Topics
from edgepfl.wire import BlobRef, Cancel, Commit, Gone, Need, Progress, Refused, Report, RollCall, SecAgg, Task

__all__ = ["AgentService", "Place", "will"]

log = logging.getLogger(__name__)
UNKNOWN = (
    "%s: the coordinator does not know run %s: this device stops work on it, and keeps what it has of it. If the "
    "coordinator's state directory was deleted or set back by mistake, put it back; else nothing is to be done"
)
_AGAIN = 1.0  # seconds until a message is tried again that the bus had no room for


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
        sensors: say how the device is, at once; None: it has none.
        sense_every: seconds between two looks at them, while a run has conditions; see also :meth:`sense`.
        hold: seconds for which a change must last before the next one for the better counts; 0: two looks.
        transfer: how blobs are transferred.
        checkpoint_seconds: of training between two checkpoints; 0 for none.
        incarnation: a number of this service that no other one has; 0: it draws one.
        clock: seconds that never go back.
        uptime: this moment, as it survives the process.
        memory_mib: of the machine; 0: it is looked up.
        listener: hears what the session machine is fed and gives.
        decode: reads messages.

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
        sensors: Callable[[], Readings] | None = None,
        sense_every: float = EVERY,
        hold: float = 0.0,
        transfer: Transfer = Transfer(),  # noqa: B008  it is frozen
        checkpoint_seconds: float = 0.0,
        incarnation: int = 0,
        clock: Callable[[], float] = time.monotonic,
        uptime: Callable[[], Uptime] = Uptime.now,
        memory_mib: int = 0,
        listener: Listener = nobody,
        decode: Decode = wire.decode,
    ) -> None:
        self._topics = Topics(fleet)
        self._listener = listener
        self._decode = decode
        self._speaker = Speaker(
            device,
            number,
            workshop.runtime,
            examples.count,
            place.store.identity(),
            incarnation or new_incarnation(),
            memory_mib or installed_mib(),
        )
        self._bus = bus
        self._place = place
        self._clock = clock
        self._events: deque[session.Event] = deque()
        self._feeding = False
        self._connected = False
        self._owed: dict[type[Effect], Effect] = {}  # what the bus did not take
        self._refusals = Refusals()
        self._unsendable: set[str] = set()  # what of ours is too long for the broker, once it was told
        self._pay_at = 0.0
        self._alarm = Alarm(clock, self._wake)
        self._broken: asyncio.Future[None]
        place.store.claim(device)
        self._transfers = Transfers(
            device,
            self._topics,
            bus,
            place.store,
            place.fetched,
            place.offered,
            settings=transfer,
            clock=clock,
        )
        runs = place.standings()
        self._concealment = Concealment(device, place.store, pool, self._send, self._left_out)
        self._watch = Watch(sensors, place.store, examples.count, every=sense_every, uptime=uptime)
        self._jobs = Jobs(
            self._speaker,
            place,
            examples,
            workshop,
            pool,
            checkpoint_seconds=checkpoint_seconds,
            clock=clock,
            offer=self._transfers.offer,
            most=lambda: bus.largest,
            facts=self._watch.took_part,
            feed=self._job_ended,
            send=self._send,
            fail=self._break,
            conceal=self._concealment.conceal,
        )
        self._state = Session(device, runs, outlook=Outlook(hold=hold or 2 * sense_every))

    @property
    def state(self) -> Session:
        """The session machine's state."""
        return self._state

    @property
    def refused(self) -> Mapping[str, int]:
        """Messages that could not be used, by reason, since the start."""
        return self._refusals.counts

    @property
    def incarnation(self) -> int:
        """The number that no other agent has."""
        return self._speaker.incarnation

    async def run(self) -> None:
        """Serve until cancelled.

        Raises:
            BusError: the bus can never work with its settings.
            IdentityError: another agent has the device's name, and the coordinator knew it first.
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

    def sense(self) -> None:
        """Look at the sensors now, for something has changed: some systems tell."""
        now, policy = self._clock(), self._state.outlook.policy
        self._feed(session.Sensed(self._watch.look(policy, now), now))

    def abandon(self) -> None:
        """Let all work end with nothing kept of it, as a power cut does; :meth:`run` is to be cancelled next."""
        self._jobs.abandon()

    async def _receive(self) -> None:
        await self._bus.start()
        while True:
            self._take(await self._bus.receive())

    async def _close(self) -> None:
        self._alarm.set(None)
        self._concealment.forget()
        await self._jobs.close()
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
                self._transfers.connected()
                self._feed(session.Connected())
                self._pay()
                self._pump()
            case Disconnected(reason):
                self._connected = False
                log.info("%s: disconnected (%s)", self._state.device, reason)
                self._listener(event, ())
            case Arrived(topic, payload):
                self._arrived(topic, payload)

    def _arrived(self, topic: str, payload: bytes) -> None:
        try:
            match self._topics.parse(topic):
                case Chunk(sha16, index, ""):
                    self._chunk(sha16, index, payload)
                case ToAll() | ToDevice():
                    self._message(self._decode(payload, where=topic))
                case _:
                    raise WireError("nothing to do with this topic", where=topic, reason="topic")  # noqa: TRY301  counted
        except (WireError, TransferError) as error:
            reason = error.reason if isinstance(error, WireError) else "chunk"
            self._refusals.count("", reason, self._clock())
            if self._refusals.worth_telling(reason):
                log.warning("%s: ignored: %s", self._state.device, error)

    def _message(self, message: wire.Message) -> None:
        match message:
            case Task() | RollCall():
                now = self._clock()
                self._feed(session.Received(message, now, self._watch.look(message.conditions, now)))
                if isinstance(message, Task):
                    self._concealment.take_up(self._state.task)
            case SecAgg():
                self._concealment.heard(message)
            case Commit() | Cancel():
                if isinstance(message, Cancel) and message.unknown:
                    log.warning(UNKNOWN, self._state.device, message.run)
                self._feed(session.Received(message, self._clock()))
            case Need():
                self._transfers.needed(message)
                self._schedule()
            case Refused():
                self._refused(message)
            case _:
                raise WireError("nothing for a device", where=f"a {message.KIND}", reason="wrong kind")

    def _refused(self, message: Refused) -> None:
        """Two agents have our name: end, if it is we who are told to."""
        if message.incarnation == self._speaker.incarnation:
            self._break(IdentityError(message.why, where=f"device {message.device}", remedy=REMEDY))
        else:
            log.warning("%s: another agent with this name was told to end", self._state.device)

    def _chunk(self, sha16: str, index: int, data: bytes) -> None:
        wrong = self._transfers.wrong
        try:
            complete = self._transfers.chunk_came(sha16, index, data)
            if self._transfers.wrong > wrong:
                self._refusals.count("", "chunk", self._clock())
        except (TransferError, StoreError) as error:
            self._unfetchable(error)
            return
        self._schedule()
        if complete is not None:
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
                event = self._events.popleft()
                self._state, effects = session.advance(self._state, event)
                self._listener(event, effects)
                for effect in effects:
                    self._carry_out(effect)
        finally:
            self._feeding = False
            self._events.clear()
        self._schedule()

    def _job_ended(self, event: session.Event) -> None:
        """Let the machine have it; and who has taken part needs a rest, and is not to be chosen before it is over."""
        self._feed(event)
        policy = self._state.outlook.policy
        if isinstance(event, session.Worked) and policy is not None and policy.min_interval is not None:
            self.sense()

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case session.SayHello(pending):
                self._try(effect, self._send(self._speaker.hello(pending, self._state.outlook, self._transfers.chunk)))
            case session.SendReports(without):
                self._try(effect, self._reports(without))
            case session.Fetch(ref):
                self._fetch(ref)
            case session.Work(task):
                self._transfers.keep_only(self._needed)
                self._jobs.start(task)
            case session.StopWork(task):
                self._stop_work(task)
            case session.SayStopped(task):
                self._say_stopped(effect, task)
            case session.Pause():
                self._jobs.pause()
            case session.Resume():
                self._jobs.resume()
            case session.Settle(task, accepted_round):
                self._settle(task, accepted_round)
            case session.Close(task, accepted):
                self._close_round(task, accepted)
            case session.SendProgress(task, paused):
                self._send(self._speaker.progress(task, self._jobs.steps, paused))
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

    def _reports(self, without: Collection[str]) -> bool:
        topic = self._topics.build(FromDevice(self._state.device, Report.KIND))
        waiting = [each for each in self._place.store.outbox() if each.run not in without]
        return all(
            self._publish(topic, each.report, f"the report of round {each.round} of {each.run}") for each in waiting
        )

    def _fetch(self, ref: BlobRef) -> None:
        try:
            here = self._transfers.fetch(ref, self._needed)
        except (TransferError, StoreError) as error:
            self._unfetchable(error)
            return
        if here:
            self._feed(session.Fetched(ref.sha256))
        self._schedule()

    def _unfetchable(self, error: EdgepflError) -> None:
        """A blob of the current task cannot be had: its reference lies, or there is no room for it."""
        log.warning("%s: %s", self._state.device, error)
        if self._state.task is not None:
            self._feed(session.WorkFailed(task_id(self._state.task), type(error).__name__, str(error)))

    def _stop_work(self, task: TaskId) -> None:
        self._jobs.stop(task)
        self._concealment.forget(task)
        self._place.drop_checkpoint()
        self._transfers.fetch_no_more()

    def _say_stopped(self, effect: Effect, task: TaskId) -> None:
        """Say that work on a task has ended; if its thread is still in a step, once it is not."""
        if not self._jobs.will_say_stopped(task):
            self._try(effect, self._send(self._speaker.stopped(task, 0)))

    def _settle(self, task: TaskId, accepted_round: int) -> None:
        place = self._place
        try:
            after = place.durably(
                lambda: place.store.settle(task.run, accepted_round, task.round, task.attempt), self._needed
            )
        except StoreError as error:
            self._unchanged(error)
            self._unfetchable(error)
            return
        if after.behind:
            log.warning(
                "%s: round %d counts, and this device's own state is older: it goes on from round %d",
                self._state.device,
                accepted_round,
                after.settled,
            )
        place.forget_offers()
        self._transfers.make_way(self._needed)

    def _left_out(self, task: TaskId, why: str) -> None:
        """The device takes no part in the secure aggregation of a task."""
        self._feed(session.WorkFailed(task, CODE, why))

    def _close_round(self, task: TaskId, accepted: bool) -> None:  # noqa: FBT001  as the message says
        self._concealment.forget(task)
        place = self._place
        try:
            place.durably(lambda: place.store.close_round(task.run, task.round, accepted=accepted), self._needed)
        except StoreError as error:
            self._unchanged(error)
            return
        place.forget_offers()

    def _unchanged(self, error: StoreError) -> None:
        """A word of the coordinator's was not taken, because the disk is full: it comes again, and is taken then.

        Raises:
            StoreError: it was for another reason, and nothing may be promised any more.
        """
        if not error.full:
            raise error
        log.error("%s: %s", self._state.device, error)
        self._feed(session.Unchanged(self._place.standings()))

    # Blobs.

    @property
    def _needed(self) -> frozenset[str]:
        """The digests of the blobs of the task at hand."""
        task = self._state.task
        return frozenset() if task is None else frozenset({task.bundle.sha256, task.download.sha256})

    def _pump(self) -> None:
        self._transfers.pump()
        self._schedule()

    # Time.

    def _schedule(self) -> None:
        """Wake up when the machine or a transfer next has something to do."""
        times = [*self._state.due, *self._watch.due(self._state.outlook.policy)]
        if (due := self._transfers.next_due) is not None and self._connected:
            times.append(due)
        if self._owed and self._connected:
            times.append(self._pay_at)
        self._alarm.set(min(times, default=None))

    def _wake(self) -> None:
        try:
            self._sense()
            self._feed(session.Ticked(self._clock()))
            if self._clock() >= self._pay_at:
                self._pay()
            self._pump()
        except Exception as error:  # noqa: BLE001  a timer has no caller: the service must end with it, not go deaf
            self._break(error)

    def _sense(self) -> None:
        """Look at the sensors, if it is time."""
        if any(self._clock() >= due for due in self._watch.due(self._state.outlook.policy)):
            self.sense()

    def _send(self, message: wire.Message) -> bool:
        topic = self._topics.build(FromDevice(self._state.device, message.KIND))
        # A sign of life is repeated anyway, and must not wait behind a slow download for acknowledgements.
        qos: Literal[0, 1] = 0 if isinstance(message, Progress) else 1
        return self._publish(topic, wire.encode(message), f"a {message.KIND}", qos)

    def _publish(self, topic: str, payload: bytes, what: str, qos: Literal[0, 1] = 1) -> bool:
        """Whether a message need not be tried again: it is sent, or is longer than the broker takes."""
        try:
            return self._bus.publish(topic, payload, qos=qos)
        except BusError as error:  # a device that ended with it would end so at each start
            if what not in self._unsendable:
                self._unsendable.add(what)
                log.error("%s: %s is not sent: %s", self._state.device, what, error)  # noqa: TRY400  told
            return True
