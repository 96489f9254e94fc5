"""Both sides of a run with everything between them in a test's hands: each message, each second and each power cut.

The coordinator is that of tests/e2e/_coordinator.py (round machine, real journal) with the service's answers to work
that nobody wants; a device is the real session machine on the real store.  Training is a hash.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from _coordinator import RUNTIMES, Coordinator, updated
from _device import trained
from _faulty import CALM, World, ref, sha

from coordinator import orphans, rounds
from coordinator.attendance import Attendance
from coordinator.config import RunConfig
from coordinator.devices import Fleet
from coordinator.events import Absent, Failed, Present, Progressed, Release, Resumed, Stopped
from coordinator.journal import Journal, RunRow, Status
from coordinator.rounds import Policy
from coordinator.seats import OPEN, Phase, Round
from device_agent import session
from device_agent.session import Session, Standing, TaskId, task_id
from device_agent.store import Store
from edgepfl import wire
from edgepfl.topics import Address
from edgepfl.wire import Cancel, Commit, Message, Report, RollCall, Task

Down: TypeAlias = Task | Commit | Cancel | RollCall
LEASE = 8.0
DEADLINE = 40.0
MOST_LETTERS = 5000  # that a calm moment has


class PowerCut(Exception):
    """The power fails between two effects."""


@dataclass
class Fuse:
    """Fails after so many effects; None for never."""

    left: int | None = None

    def burn(self) -> None:
        if self.left is None:
            return
        if self.left == 0:
            self.left = None
            raise PowerCut
        self.left -= 1


@dataclass(frozen=True)
class Letter:
    """A message on its way, to a device or from one."""

    device: str
    message: Message
    is_down: bool


@dataclass
class Server(Coordinator):
    """The coordinator, with its answers to devices at work on what nobody waits for."""

    fuse: Fuse = field(default_factory=Fuse)

    def restart(self) -> None:
        """Power off and on: goes on as :meth:`coordinator.active.ActiveRun.resume` does."""
        self._attend()
        self.fleet = Fleet()
        self.row = self.journal.running()
        state = self.journal.open_state(self.row.id) if self.row is not None else None
        if self.row is not None:
            self._go_on(self.row, state)
        self.connected()

    def _go_on(self, row: RunRow, state: Round | None) -> None:
        if state is None:
            self.next_round()
            return
        self.round = state
        match state.phase:
            case Phase.ABANDONED:
                self.next_attempt()
            case Phase.STOPPED | Phase.HALTED:
                self.end(row, Status.STOPPED)
            case _:
                self.feed(Resumed(self.world.now))

    def tick(self) -> None:
        """Time passes."""
        for device in self.attendance.look():
            self._hello(device)
        super().tick()

    def connected(self) -> None:
        """The broker was reached (again)."""
        self.attendance.reconnected()
        super().connected()

    def receive(self, device: str, message: Message) -> None:
        """A device's word."""
        match message:
            case wire.Progress() | wire.Failed():
                self._work(device, message)
            case wire.Stopped() if self.row is not None and message.run == self.row.id:
                if self.attendance.stopped(device, message.round, message.attempt):
                    self._hello(device)
            case wire.Hello():
                super().receive(device, message)
                self.attendance.again(device)
                if device in self.attendance.busy:
                    self.feed(Absent(device, self.world.now))
            case Report() if self.row is not None and message.run == self.row.id:
                super().receive(device, message)
                committed = self.journal.checkpoint(self.row.id).round
                if message.round > committed and (why := orphans.why_not(message, self.round)):
                    self.send(device, Cancel(self.row.id, message.round, message.attempt, why))
            case _:
                super().receive(device, message)

    def _work(self, device: str, work: wire.Progress | wire.Failed) -> None:
        if self.row is None or work.run != self.row.id:
            self.send(device, orphans.outside(work, self.journal))
        elif why := orphans.why_not(work, self.round):
            cancel = Cancel(work.run, work.round, work.attempt, why)
            if isinstance(work, wire.Progress) and not self.round.awaits(device):
                self.attendance.stop((device,), cancel)
                self.feed(Absent(device, self.world.now))
            else:
                self.send(device, cancel)
        elif isinstance(work, wire.Failed):
            self.feed(Failed(device, work.code, self.world.now, work.code))
        else:
            self.feed(Progressed(device, self.world.now, work.steps))

    def _hello(self, device: str) -> None:
        here = self.fleet.can(device, RUNTIMES) and device not in self.attendance.busy
        self.feed((Present if here else Absent)(device, self.world.now))

    def carry_out(self, effect: object, row: RunRow) -> None:
        """An effect, unless the power fails before it."""
        self.fuse.burn()
        if isinstance(effect, Release):
            cancel = Cancel(row.id, self.round.number, self.round.attempt, effect.why)
            self.attendance.stop(effect.devices, cancel)
        else:
            super().carry_out(effect, row)

    def open(self, row: RunRow, number: int, attempt: int) -> None:
        """Begin an attempt."""
        self.attendance.begin()
        busy = {device for device in self.devices if device in self.attendance.busy}
        super().open(row, number, attempt)
        for device in sorted(busy):
            self.feed(Absent(device, self.world.now))

    def _attend(self) -> None:
        def send(address: Address, message: Message) -> None:
            self.send(getattr(address, "device", ""), message)

        run = self.journal.running()
        self.attendance = Attendance(run.id if run else "", LEASE, send, lambda: self.world.now)


class Device:
    """The session machine and the store of one device."""

    def __init__(self, world: World, name: str, folder: Path, send: Callable[[str, Message], None]) -> None:
        self.world, self.name, self.send = world, name, send
        self.fuse = Fuse()
        self.starts = 0
        self.away = False
        self.s: Session
        self._path = folder / name / "store.db"
        self.store = Store(self._path)
        self.start()

    def start(self) -> None:
        """Power off and on: all that is known is in the store."""
        self.store.close()
        self.store = Store(self._path)
        self.starts = self.store.next_session()
        self.s = Session(self.name, {run: Standing(*here) for run, here in self.store.standings().items()})
        self.connect()

    def disconnect(self) -> None:
        """The connection is lost, and some time later there is another."""
        if not self.away:
            self.away = True
            self.world.after(3.0, self.connect)

    def connect(self) -> None:
        self.away = False
        self.feed(session.Connected())

    def receive(self, message: Down) -> None:
        self.feed(session.Received(message, self.world.now))

    def tick(self) -> None:
        self.feed(session.Ticked(self.world.now))

    def feed(self, event: session.Event) -> None:
        """One event, and its effects; the power may fail between them."""
        with suppress(PowerCut):
            self.s, effects = session.advance(self.s, event)
            for effect in effects:
                self.fuse.burn()
                self._carry_out(effect)
            assert self.s.runs == {run: Standing(*here) for run, here in self.store.standings().items()} | {
                run: here for run, here in self.s.runs.items() if here == Standing()
            }
            return
        self.start()

    def _carry_out(self, effect: session.Effect) -> None:
        match effect:
            case session.SayHello(pending):
                told = (pending.run, pending.round) if pending else ("", -1)
                self._say(wire.Hello(self.name, self.starts, ("onnx",), 10, 512, "0", told))
            case session.SendReports(without):
                for waiting in self.store.outbox():
                    if waiting.run not in without:
                        self._say(wire.decode(waiting.report))
            case session.Fetch(blob):
                self._later(1.0, lambda: self.feed(session.Fetched(blob.sha256)))
            case session.Work(task):
                self._later(2.0, lambda: self._work(task))
            case session.SayStopped(this):
                self._say(wire.Stopped(*self._of(this), 1))
            case session.Settle(this, accepted):
                self.store.settle(this.run, accepted, this.round, this.attempt)
            case session.Close(this, accepted):
                self.store.close_round(this.run, this.round, accepted=accepted)
            case session.SendProgress(this):
                self._say(wire.Progress(*self._of(this), 1))
            case session.SendFailed(this, code, detail):
                self._say(wire.Failed(*self._of(this), code, detail))

    def fail(self) -> None:
        """What it is doing goes wrong."""
        if self.s.task is not None:
            self.feed(session.WorkFailed(task_id(self.s.task), "GraphFailed", "bad luck"))

    def kept(self, run: str) -> tuple[int, str]:
        """The settled round, and the state that it left."""
        found = self.store.keep(run)
        return found.round, (found.data or b"").decode()

    def _work(self, task: Task) -> None:
        this = task_id(task)
        if self.s.phase is not session.Phase.WORKING or self.s.task is None or task_id(self.s.task) != this:
            return
        keep = trained(self.kept(task.run)[1], self.name, task.round, task.download.sha256)
        upload = ref(sha("upload", keep))
        report = Report(*self._of(this), 10, 1, upload, {}, {}, keep)
        try:
            self.store.commit_pending(
                task.run, task.round, task.attempt, keep=keep.encode(), report=wire.encode(report)
            )
            self.fuse.burn()
        except PowerCut:
            self.start()
        else:
            self.feed(session.Worked(this))

    def _of(self, this: TaskId) -> tuple[str, int, str, int, int]:
        return self.name, self.starts, this.run, this.round, this.attempt

    def _say(self, message: Message) -> None:
        if not self.away:
            self.send(self.name, message)

    def _later(self, seconds: float, what: Callable[[], None]) -> None:
        start = self.starts
        self.world.after(seconds, lambda: what() if self.starts == start else None)


class Both:
    """Coordinator and devices, and whatever is on its way between them."""

    def __init__(self, folder: Path, devices: int = 4, goal: int = 3, minimum: int = 2) -> None:
        names = tuple(f"pi-{number}" for number in range(devices))
        policy = Policy(goal, minimum, gather=4.0, deadline=DEADLINE, lease=LEASE)
        self.world = World(CALM, seed=0)
        self.letters: list[Letter] = []
        self.old: list[Letter] = []  # delivered before
        self.runs: list[str] = []
        self.devices: dict[str, Device] = {}
        self.server = Server(self.world, Journal(Path(":memory:")), self._down, names, policy)
        self.server._attend()
        for name in names:
            self.devices[name] = Device(self.world, name, folder, self._up)

    def close(self) -> None:
        for device in self.devices.values():
            device.store.close()
        self.server.journal.close()

    def begin(self, rounds_: int) -> None:
        """Start a run, if none is going on."""
        if self.server.row is None:
            self.runs.append(f"run-{len(self.runs)}")
            self._served(lambda: self.server.begin(self.runs[-1], RunConfig(rounds=rounds_, attempts=6)))

    def stop(self) -> None:
        """A person ends the run."""
        self._served(lambda: self.server.feed(Stopped(self.world.now)))

    def deliver(self, letter: Letter) -> None:
        """A message arrives."""
        if not letter.is_down:
            self._served(lambda: self.server.receive(letter.device, letter.message))
        elif isinstance(letter.message, Down) and not self.devices[letter.device].away:
            self.devices[letter.device].receive(letter.message)

    def take(self, place: int) -> Letter:
        """Take a message out of those on their way."""
        return self.letters.pop(place % len(self.letters))

    def pass_time(self, seconds: float) -> None:
        """Everything that falls due in the next seconds, and then a look at leases and deadlines."""
        end = self.world.now + seconds
        self.world.after(seconds, lambda: None)
        while self.world.now < end:
            self._served(lambda: self.world.run(lambda: self.world.now >= end, limit=end + 1.0))
        for device in self.devices.values():
            device.tick()
        self._served(self.server.tick)

    def go_on(self, without: frozenset[str], turns: int) -> None:
        """Messages arrive and time passes, but some devices are not heard and hear nothing, though they work."""
        for _ in range(turns):
            for letter in [letter for letter in self.letters if letter.device not in without]:
                self.letters.remove(letter)
                self.old.append(letter)
                self.deliver(letter)
            self.pass_time(1.0)

    def lose_broker(self) -> None:
        """The broker dies and comes back with nothing."""
        self.letters.clear()
        for device in self.devices.values():
            device.disconnect()
        self._served(self.server.connected)

    def restart(self) -> None:
        """The coordinator's power fails, and comes back."""
        self._served(self.server.restart)

    def calm(self, seconds: float) -> None:
        """Nothing goes wrong for so long."""
        end = self.world.now + seconds
        self.server.fuse.left = None
        for device in self.devices.values():
            device.fuse.left = None
        while self.world.now < end or self.letters:
            for _ in range(MOST_LETTERS):
                if not self.letters:
                    break
                letter = self.letters.pop(0)
                self.old.append(letter)
                self.deliver(letter)
            assert not self.letters, f"they never fall silent: {self.letters[:4]}"
            self.pass_time(0.5)

    def _served(self, what: Callable[[], None]) -> None:
        try:
            what()
        except PowerCut:
            self.server.restart()

    def _down(self, device: str, message: Message) -> None:
        if not self.devices[device].away:
            self.letters.append(Letter(device, message, is_down=True))

    def _up(self, device: str, message: Message) -> None:
        self.letters.append(Letter(device, message, is_down=False))


class Watcher:
    """What must hold after every step."""

    def __init__(self, both: Both) -> None:
        self._both = both
        self._settled: dict[tuple[str, str], int] = {}
        self._states: dict[str, dict[int, str]] = {}
        self._opened: dict[str, tuple[int, int]] = {}

    def look(self) -> None:
        """See that everything holds."""
        for run in self._both.runs:
            self._follow(run)
        self._one_attempt()
        if self._both.server.row is not None:
            assert rounds.waiting(self._both.server.round)

    def _follow(self, run: str) -> None:
        """Every report that counts is in the state once, and in its device's own state as often."""
        journal = self._both.server.journal
        states = dict(journal._rows("SELECT round, state FROM checkpoints WHERE run = ?", run))
        assert self._states.get(run, {}).items() <= states.items()  # no round is ever undone
        self._states[run] = states
        results = journal.results(run)
        assert len({(result.round, result.device) for result in results}) == len(results)
        for number in sorted(states)[1:]:
            uploads = [sha("upload", result.kept) for result in results if result.round == number]
            assert states[number] == updated(states[number - 1], uploads)
        for name, device in self._both.devices.items():
            counted = {result.round: result.kept for result in results if result.device == name}
            self._personal(run, name, device, counted, states)

    def _personal(self, run: str, name: str, device: Device, counted: dict[int, str], states: dict[int, str]) -> None:
        settled, keep = device.kept(run)
        assert settled >= self._settled.get((name, run), -1)
        self._settled[name, run] = settled
        expected = ""
        for number in sorted(counted):
            expected = trained(expected, name, number, states[number - 1])
            assert counted[number] == expected
        mine = [number for number in sorted(counted) if number <= settled]
        assert (settled, keep) == ((mine[-1], counted[mine[-1]]) if mine else (-1, ""))
        for number in counted.keys() - set(mine):  # accepted, and the device does not know: it must have it
            standing = device.store.standings()[run][1]
            assert standing is not None
            assert standing[0] == number

    def _one_attempt(self) -> None:
        server = self._both.server
        rows = server.journal._rows("SELECT run, round, attempt FROM rounds")
        assert [run for run, _, _ in rows] == ([server.row.id] if server.row is not None else [])
        for run, number, attempt in rows:
            assert (number, attempt) >= self._opened.get(run, (0, 0))
            self._opened[run] = number, attempt

    def after_calm(self) -> None:
        """No device works on anything but the open attempt, and nobody waits for ever."""
        server = self._both.server
        for name, device in self._both.devices.items():
            if device.s.task is None:
                continue
            assert server.row is not None
            this = task_id(device.s.task)
            assert (this.run, this.round, this.attempt) == (server.row.id, server.round.number, server.round.attempt)
            assert server.round.seats[name].state in OPEN
        if server.row is not None:
            assert server.round.phase in {Phase.SELECTING, Phase.REPORTING, Phase.REDUCING}
