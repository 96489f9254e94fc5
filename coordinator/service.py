"""The coordinator's service: feeds the active run with what the bus brings.

One run at a time trains a fleet.  Everything that must survive is in the journal and the blob stores under one
directory; starting the service on that directory goes on where the last one ended, however it ended.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from coordinator import updater
from coordinator.active import ActiveRun, Desk
from coordinator.config import RunConfig
from coordinator.devices import Fleet, farewell, welcome
from coordinator.journal import Checkpoint, Journal, RunRow, Status, specs_of
from coordinator.status import RunStatus, Totals, status_of, totals
from edgepfl import codec, wire
from edgepfl.bundle import unpack
from edgepfl.bus import Arrived, Bus, Connected, Disconnected
from edgepfl.bus.blobs import BlobStore
from edgepfl.bus.chunks import Receiver, Sender
from edgepfl.errors import RunError, TransferError, WireError
from edgepfl.topics import Address, Chunk, FromDevice, ToAll, ToDevice, Topics, check_name
from edgepfl.wire import Failed, Gone, Hello, Message, Need, Progress, Report, RollCall

log = logging.getLogger(__name__)
TICK = 0.5  # seconds between looks at leases and deadlines


class Coordinator:
    """The service of one fleet.

    Args:
        fleet: its name.
        bus: not yet started.
        state: the directory of everything that must survive.
        device: where uploads are folded ("cpu", "cuda").
        clock: seconds that never go back.
    """

    def __init__(
        self,
        fleet: str,
        bus: Bus,
        state: Path,
        *,
        device: str = "cpu",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        state.mkdir(parents=True, exist_ok=True)
        self._topics = Topics(fleet)
        self._bus = bus
        self._clock = clock
        self.journal = Journal(state / "journal.db")
        self._offered = BlobStore(state / "offered")
        self._private = BlobStore(state / "private")
        self._sender = Sender(self._offered)
        self._receiver = Receiver(self._private)
        self._waiting: dict[str, list[Report]] = {}  # reports whose upload is still coming, by its digest
        self._fleet = Fleet()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="reduction")
        self._changed = asyncio.Event()
        self._broken: asyncio.Future[None]
        self._desk = Desk(
            self.journal,
            self._offered,
            self._private,
            self._send,
            lambda: self._fleet,
            lambda: self._bus.traffic,
            self._worker,
            clock,
            device,
            self._tell,
            self._break,
        )
        self._run: ActiveRun | None = None
        self._totals = ("", -1), Totals({}, 0, 0)  # of this run up to this round

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
        if self._run is not None and not self._run.ended:
            raise RunError("another run is active", where=self._run.row.id, remedy="Stop it, or wait for its end")
        opened = unpack(bundle)
        algorithm = updater.algorithm_of(opened.plan, config.hyper)
        state = updater.first_state(algorithm, opened.plan, opened.model)
        first = Checkpoint(0, self._private.put(codec.encode(state)).sha256, specs_of(state))
        row = RunRow(
            f"{config.name}-{secrets.token_hex(4)}", config, self._offered.put(bundle).sha256, Status.RUNNING, ""
        )
        self.journal.create(row, first)
        self._activate(row)
        return row.id

    def stop_run(self, run: str) -> None:
        """End a run at once.

        Raises:
            RunError: it is not the active run.
        """
        if self._run is None or self._run.row.id != run or self._run.ended:
            raise RunError("it is not active", where=f"run {run}")
        self._run.stop()

    def status(self, run: str = "") -> RunStatus:
        """Where a run stands; the newest if none is named.

        Raises:
            RunError: there is no such run.
        """
        rows = [row for row in self.journal.runs() if run in {"", row.id}]
        if not rows:
            raise RunError("there is no such run", where=run or "status", remedy="Start one with: edgepfl run start")
        active = self._run if self._run is not None and self._run.row.id == rows[-1].id else None
        checkpoint = self.journal.checkpoint(rows[-1].id)
        if self._totals[0] != (rows[-1].id, checkpoint.round):
            self._totals = (rows[-1].id, checkpoint.round), totals(self.journal, rows[-1].id)
        open_round = active.round if active and not active.ended else None
        return status_of(rows[-1], checkpoint, self._totals[1], self._fleet, open_round)

    async def watch(self, run: str) -> AsyncIterator[RunStatus]:
        """The status of a run after each change, until it ends."""
        while True:
            changed = self._changed
            now = self.status(run)
            yield now
            if now.status != Status.RUNNING:
                return
            await changed.wait()

    # The service.

    async def run(self) -> None:
        """Serve until cancelled.

        Raises:
            BusError: the bus can never work with its settings.
            StoreError: the coordinator's storage failed.
        """
        self._broken = asyncio.get_running_loop().create_future()
        for topic_filter in self._topics.for_coordinator():
            self._bus.subscribe(topic_filter)
        for row in self.journal.runs():
            if row.status == Status.RUNNING:
                self._activate(row)
        await self._bus.start()
        loop = asyncio.get_running_loop()
        serving = {loop.create_task(self._receive(), name="receive"), loop.create_task(self._tick(), name="ticks")}
        try:
            done, _ = await asyncio.wait({*serving, self._broken}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in serving:
                task.cancel()
            await self._close()

    async def _close(self) -> None:
        if self._run is not None:
            await self._run.close()
        await self._bus.stop()
        self._worker.shutdown()
        self.journal.close()

    async def _receive(self) -> None:
        while True:
            self._take(await self._bus.receive())

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            if self._run is not None:
                self._run.tick()
            self._pump()

    def _activate(self, row: RunRow) -> None:
        self._run = ActiveRun(row, self._desk)
        self._run.resume()

    # What comes in.

    def _take(self, event: Arrived | Connected | Disconnected) -> None:
        match event:
            case Connected():
                self._receiver.ask_again(self._clock())
                self._send(ToAll(RollCall.KIND), RollCall(secrets.randbits(32)))
                self._pump()
            case Disconnected(reason):
                log.warning("disconnected (%s)", reason)
            case Arrived(topic, payload):
                self._arrived(topic, payload)

    def _arrived(self, topic: str, payload: bytes) -> None:
        try:
            match self._topics.parse(topic):
                case Chunk(sha16, index, device) if device:
                    self._chunk(sha16, index, payload)
                case FromDevice(device, _):
                    self._message(device, wire.decode(payload, where=topic))
                case _:
                    log.warning("nothing to do with topic %s", topic)
        except (WireError, TransferError) as error:
            log.warning("ignored: %s", error)

    def _message(self, device: str, message: Message) -> None:
        if getattr(message, "device", device) != device:
            raise WireError(f"it says it is from {getattr(message, 'device', '')}", where=f"a message of {device}")
        match message:
            case Hello():
                self._hello(message)
            case Gone():
                self._gone(message)
            case Need():
                self._offer(message)
            case Report():
                self._report(message)
            case Progress() if self._is_active(message.run):
                self._active.progressed(device, message.round, message.attempt)
            case Failed() if self._is_active(message.run):
                why = f"{message.code}: {message.detail}"
                self._active.failed(device, message.round, message.attempt, why)
            case _:
                log.info("a %s of %s came to nothing", message.KIND, device)

    def _hello(self, hello: Hello) -> None:
        self._fleet = welcome(self._fleet, hello)
        log.info("%s is here with %d examples", hello.device, hello.examples)
        if self._run is not None:
            self._run.present(hello.device)
        self._tell()

    def _gone(self, gone: Gone) -> None:
        self._fleet = farewell(self._fleet, gone)
        known = self._fleet.devices.get(gone.device)
        if self._run is not None and known is not None and not known.present:
            self._run.absent(gone.device)
        self._tell()

    def _report(self, report: Report) -> None:
        if not self._is_active(report.run):
            self._answer_ended(report)
        elif not self._active.expects(report):
            self._active.answer(report)
        elif report.upload is None or self._receiver.want(report.upload, self._clock()):
            self._active.reported(report)
        else:
            self._waiting.setdefault(report.upload.sha256, []).append(report)
            self._active.progressed(report.device, report.round, report.attempt)
            self._pump()

    def _answer_ended(self, report: Report) -> None:
        """A device asks what became of its report after the run's end."""
        if report.run not in {row.id for row in self.journal.runs()}:
            log.warning("%s reports for run %s, which is not ours", report.device, report.run)
            return
        counts = self.journal.accepted(report.run).get(report.device) == report.round
        commit = wire.Commit(report.run, report.round, (report.device,) if counts else ())
        self._send(ToDevice(report.device, commit.KIND), commit)

    def _chunk(self, sha16: str, index: int, data: bytes) -> None:
        complete = self._receiver.chunk(sha16, index, data, self._clock())
        for report in self._waiting.pop(complete, ()) if complete else ():
            if self._is_active(report.run) and self._active.expects(report):
                self._active.reported(report)
        self._pump()

    # What goes out.

    def _offer(self, need: Need) -> None:
        for index, data in self._sender.requested(need, self._clock()):
            self._bus.publish(self._topics.build(Chunk(need.sha256[:16], index)), data, qos=0)

    def _pump(self) -> None:
        """Ask the devices for the chunks of the uploads that are due."""
        for need in self._receiver.due(self._clock()):
            for report in self._waiting.get(need.sha256, ()):
                self._send(ToDevice(report.device, Need.KIND), need)

    def _send(self, address: Address, message: Message) -> None:
        if not self._bus.publish(self._topics.build(address), wire.encode(message)):
            log.debug("a %s was not sent: no connection", message.KIND)

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _break(self, error: BaseException) -> None:
        """End the service with a fault of one of its jobs: nothing may be promised any more."""
        if not self._broken.done():
            self._broken.set_exception(error)

    def _is_active(self, run: str) -> bool:
        return self._run is not None and self._run.row.id == run and not self._run.ended

    @property
    def _active(self) -> ActiveRun:
        if self._run is None:
            raise RunError("no run is active")
        return self._run
