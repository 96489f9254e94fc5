"""The exchange of keys, shares and secrets of a run's open attempt: carries out what the server's machine wants.

What it knows goes into the journal at the end of each stage, before anyone is told of the next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

import msgspec

from coordinator.blame import SECAGG
from coordinator.config import RunConfig
from coordinator.desk import Desk
from coordinator.reasons import names
from coordinator.seats import Phase, Round, State
from coordinator.status import RunStatus
from edgepfl.errors import RunError, WireError
from edgepfl.secagg import messages, server
from edgepfl.secagg.server import Close, GiveUp, Heard, LeaveOut, Opened, Seats, Server, Stage, Tell, due
from edgepfl.topics import ToDevice
from edgepfl.wire import Cancel, SecAgg

log = logging.getLogger(__name__)
PATIENCE = 2  # leases in a stage, after which those who are silent are not waited for
REMINDERS = 4  # a lease


class Exchange:
    """A run's; without secure aggregation, and where nothing is trained, it does nothing.

    Args:
        run: its id.
        config: its settings.
        desk: the service's.
        fail: told that a device cannot do its task: device, round, attempt, reason and code.
        stop: tells devices that their work is not wanted.
    """

    def __init__(
        self,
        run: str,
        config: RunConfig,
        desk: Desk,
        fail: Callable[[str, int, int, str, str], None],
        stop: Callable[[tuple[str, ...], Cancel], None],
    ) -> None:
        self._run = run
        self._config = config
        self._desk = desk
        self._fail = fail
        self._stop = stop
        self._round: Round | None = None
        self._server: Server | None = None
        self._waits: asyncio.Future[Server] | None = None
        self._since = 0.0  # when the stage began
        self._told = 0.0  # when it last reminded devices of what is due
        self._leaving = False  # whether devices are being left out: the machine has the rest when all are

    def shown(self, status: RunStatus) -> RunStatus:
        """The status of the run, with how far the exchange is."""
        if not self._config.secagg:
            return status
        words = self._progress
        waiting = f"{status.waiting}; secure aggregation: {words}" if words else status.waiting
        return msgspec.structs.replace(status, secagg=words or "on", waiting=waiting)

    @property
    def _progress(self) -> str:
        """How far it is, in words; empty where nothing is waited for."""
        if self._server is None or self._round is None or self._round.phase not in {Phase.REPORTING, Phase.REDUCING}:
            return ""
        return server.progress(self._server, self._round.devices(State.WORKING))

    def begin(self, r: Round) -> None:
        """An attempt begins, or goes on after a restart."""
        self.dismiss()
        self._round, self._server, self._since = r, None, self._desk.clock()
        if not self._config.secagg or not 0 < r.number <= self._config.rounds:
            return
        kept = self._desk.journal.exchange(self._run)
        if kept is None or (kept.number, kept.attempt) != (r.number, r.attempt):
            config = self._config
            kept = Server(r.number, r.attempt, self._desk.draw(62), config.minimum, config.secagg_neighbours)
        self._server = kept

    def follow(self, r: Round) -> None:
        """The round changed: perhaps nobody is waited for any more."""
        self._round = r
        here = self._server
        if here is None or self._leaving or r.phase is not Phase.REPORTING:
            return
        if (here.number, here.attempt) == (r.number, r.attempt):
            self._feed(Seats(frozenset(r.devices(State.WORKING)), bool(r.devices(State.WAITING))))

    def heard(self, message: SecAgg) -> None:
        """A device said something; what is not of this attempt means nothing."""
        here, r = self._server, self._round
        if here is None or r is None or message.device not in r.seats:
            return
        if (message.round, message.attempt) != (here.number, here.attempt):
            return
        try:
            said = messages.said(message.body, where=f"secagg of {message.device}")
        except WireError as error:
            log.warning("ignored: %s", error)
            return
        self._feed(Heard(message.device, said))
        self.follow(r if self._round is None else self._round)

    def hello(self, device: str) -> None:
        """A device is here (again): it may have missed what it was told."""
        if self._server is not None and self._server.stage is not Stage.KEYS:
            self._tell((device,))

    def tick(self) -> None:
        """Time passed: remind those who are silent, and give up what takes too long."""
        here, now = self._server, self._desk.clock()
        if here is None or self._round is None:
            return
        silent = self._silent(here, self._round)
        if now - self._told >= self._config.lease / REMINDERS:
            self._tell(silent)
        late = now - max(self._since, self._round.since) >= PATIENCE * self._config.lease
        if late and silent and here.stage in {Stage.KEYS, Stage.SHARES} and self._round.phase is Phase.REPORTING:
            self._leave_out(silent, f"it does not answer: its {here.stage} are missing")
        if late and self._waits is not None:
            self._give_up(f"secure aggregation: too few devices helped to open the sum; silent are {names(silent)}")

    def reconnected(self) -> None:
        """The broker was reached (again): what was not heard in between could not be heard."""
        self._since = self._desk.clock()

    async def opened(self, devices: tuple[str, ...]) -> Server | None:
        """What opens the sum over these devices' uploads, once it is here; None where nothing is masked.

        Raises:
            RunError: it cannot be had.
        """
        if self._server is None:
            return None
        self._waits = asyncio.get_running_loop().create_future()
        self._since = self._desk.clock()
        waits = self._waits
        self._feed(Close(devices))
        return await waits

    def dismiss(self) -> None:
        """Whoever waits for secrets is cancelled: the attempt is over, or the service."""
        if self._waits is not None:
            self._waits.cancel()
            self._waits = None

    def _silent(self, here: Server, r: Round) -> tuple[str, ...]:
        """Of whom something is due."""
        working = set(r.devices(State.WORKING))
        match here.stage:
            case Stage.KEYS:
                return tuple(sorted(working - here.keys.keys()))
            case Stage.SHARES:
                return tuple(sorted(working.intersection(here.silent)))
            case _:
                return here.silent

    def _feed(self, event: server.Event) -> None:
        if self._server is None:
            return
        before = self._server
        self._server, effects = server.advance(before, event)
        if self._server.stage is not before.stage:
            log.info("%s: round %d: secure aggregation: %s", self._run, before.number, self._server.stage)
            self._desk.journal.put_exchange(self._run, self._server)
            self._since = self._desk.clock()
        for effect in effects:
            self._carry_out(effect)
        if self._server is not before:
            self._desk.changed()

    def _carry_out(self, effect: server.Effect) -> None:
        match effect:
            case Tell(devices):
                self._tell(devices)
            case LeaveOut(devices, why):
                self._leave_out(devices, why)
            case GiveUp(why):
                self._give_up(why)
            case Opened():
                if self._waits is not None and not self._waits.done() and self._server is not None:
                    self._waits.set_result(self._server)
                    self._waits = None

    def _tell(self, devices: Iterable[str]) -> None:
        self._told = self._desk.clock()
        here = self._server
        if here is None:
            return
        for device in devices:
            told = due(here, device)
            if told is not None:
                body = messages.encode(told)
                message = SecAgg(device, self._run, here.number, here.attempt, body)
                self._desk.send(ToDevice(device, SecAgg.KIND), message)

    def _leave_out(self, devices: tuple[str, ...], why: str) -> None:
        if self._server is None or self._leaving:
            return
        number, attempt = self._server.number, self._server.attempt
        self._leaving = True
        try:
            self._stop(devices, Cancel(self._run, number, attempt, why))
            for device in devices:
                self._fail(device, number, attempt, why, SECAGG)
        finally:
            self._leaving = False
        if self._round is not None:
            self.follow(self._round)

    def _give_up(self, why: str) -> None:
        if self._waits is not None and not self._waits.done():
            self._waits.set_exception(RunError(why, where=f"run {self._run}"))
            self._waits = None
