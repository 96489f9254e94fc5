"""A device: its machine, and a store that survives it.  Its training is a hash."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from _faulty import World, ref, sha

from device_agent import session
from device_agent.session import Session, Standing, TaskId, task_id
from edgepfl import wire
from edgepfl.wire import Message, Report, Task


@dataclass
class Kept:
    """One run's rows in a device's store."""

    settled: int = -1
    keep: str = ""
    pending: tuple[int, int] | None = None
    next_keep: str = ""
    report: Report | None = None

    def drop(self) -> None:
        self.pending, self.next_keep, self.report = None, "", None

    def promote(self) -> None:
        if self.pending is not None:
            self.settled, self.keep = self.pending[0], self.next_keep
        self.drop()


class Agent:
    """A device: its machine, and a store that survives it."""

    def __init__(self, world: World, name: str, send: Callable[[str, Message], None]) -> None:
        self.world = world
        self.name = name
        self.send = send
        self.store: dict[str, Kept] = {}
        self.starts = 0
        self.away = False
        self.s: Session
        self.start()

    def start(self) -> None:
        """Power on: all that is known is in the store."""
        self.starts += 1
        self.s = Session(self.name, {run: Standing(kept.settled, kept.pending) for run, kept in self.store.items()})
        self.feed(session.Connected())

    def feed(self, event: session.Event) -> None:
        self.s, effects = session.advance(self.s, event)
        for effect in effects:
            self.carry_out(effect)
        for run, here in self.s.runs.items():
            kept = self.store.get(run, Kept())
            assert here == Standing(kept.settled, kept.pending)

    def receive(self, message: Task | wire.Commit | wire.Cancel | wire.RollCall) -> None:
        self.feed(session.Received(message, self.world.now))

    def tick(self) -> None:
        self.feed(session.Ticked(self.world.now))

    def disconnect(self) -> None:
        """The connection is lost, and some seconds later there is another."""
        if not self.away:
            self.away = True
            self.world.after(self.world.random.uniform(0.1, 5.0), self.connect)

    def connect(self) -> None:
        self.away = False
        self.feed(session.Connected())

    def carry_out(self, effect: session.Effect) -> None:
        match effect:
            case session.SayHello(pending):
                told = (pending.run, pending.round) if pending else ("", -1)
                self.send(self.name, wire.Hello(self.name, self.starts, ("onnx",), 10, 512, "0", told))
            case session.SendReports():
                for _, kept in sorted(self.store.items()):
                    if kept.report is not None:
                        self.send(self.name, kept.report)
            case session.Fetch(blob):
                seconds = 1e9 if self.world.chance(self.world.faults.stuck) else self.world.random.uniform(0.1, 2.0)
                self.later(seconds, lambda: self.feed(session.Fetched(blob.sha256)))
            case session.Work(task):
                self.later(self.world.random.uniform(0.5, 3.0), lambda: self.work(task))
            case session.Settle(this, accepted):
                self.settle(this, accepted)
            case session.Close(this, accepted):
                kept = self.store[this.run]
                kept.promote() if accepted else kept.drop()
            case session.SendProgress(this):
                self.send(self.name, wire.Progress(self.name, self.starts, this.run, this.round, this.attempt, 1))
            case session.SendFailed(this, code, detail):
                self.send(
                    self.name, wire.Failed(self.name, self.starts, this.run, this.round, this.attempt, code, detail)
                )

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        """Do something unless the power fails before."""
        start = self.starts
        self.world.after(seconds, lambda: what() if self.starts == start else None)

    def settle(self, this: TaskId, accepted: int) -> None:
        kept = self.store.setdefault(this.run, Kept())
        if kept.pending is None or accepted < kept.settled:
            return
        if kept.pending[0] == accepted:
            kept.promote()
        elif kept.pending[0] < accepted or kept.pending < (this.round, this.attempt):
            kept.drop()

    def work(self, task: Task) -> None:
        this = task_id(task)
        if self.s.phase is not session.Phase.WORKING or self.s.task is None or task_id(self.s.task) != this:
            return
        if self.world.chance(self.world.faults.failure):
            self.feed(session.WorkFailed(this, "GraphFailed", "bad luck"))
            return
        kept = self.store.setdefault(task.run, Kept())
        kept.next_keep = trained(kept.keep, self.name, task.round, task.download.sha256)
        kept.pending = (task.round, task.attempt)
        upload = ref(sha("upload", kept.next_keep))
        kept.report = Report(
            self.name, self.starts, task.run, task.round, task.attempt, 10, 1, upload, {}, {}, kept.next_keep
        )
        if self.world.chance(self.world.faults.cut):
            self.start()
        else:
            self.feed(session.Worked(this))


def trained(keep: str, device: str, round_: int, download: str) -> str:
    """What a device keeps after training a round."""
    return sha("keep", keep, device, round_, download)
