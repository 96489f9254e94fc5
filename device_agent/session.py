"""The agent's side of a run, as a pure machine.

``advance(state, event) -> (state, effects)``: no clock, no socket, no storage; events carry the time and effects say
what the service is to do.  The same events always give the same state.

Theory of operation::

                  Task for me                every blob is here              report is stored
    IDLE ------------------------> FETCHING ----------------------> WORKING ------------------> IDLE, a report pending
                                       |                               |
                                       +--- Cancel, Commit of this or a later round, failure, deadline --> IDLE

* A **task** is known by (run, round, attempt).  The same task again is answered, never done twice: with Progress
  while it is being worked on, with the stored report once it is done.  A task of another run, or a later one of the
  same run, takes the place of the one at hand; an earlier one is a late message and changes nothing.
* A **report** waits in the store's outbox, together with the KEEP slots it made (*pending*), until the coordinator's
  word: the round's Commit (then :class:`Close`), or the ``accepted_round`` of a later Task (then :class:`Settle`).
  Whatever is still in the outbox is sent again after every connection and every roll call, so neither side trusts the
  broker to remember.  A Commit of a later round shows that ours was lost: then we ask by sending the report again.
* What the store holds of each run (:class:`Standing`) is the machine's only memory over a restart, and at any time
  the machine's own copy equals it.
* A Commit of a round that we are still working on means that it is over without us: stop.
* Deadlines count from the receipt of a task on our own clock; wall clocks are never compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeAlias, assert_never

from edgepfl.wire import BlobRef, Cancel, Commit, RollCall, Task

SHORTEST_BEAT = 0.1  # seconds between two Progress messages, whatever a task says


class Phase(StrEnum):
    """What the agent is doing."""

    IDLE = "idle"
    FETCHING = "fetching"
    WORKING = "working"


@dataclass(frozen=True)
class TaskId:
    """Which task of which round."""

    run: str
    round: int
    attempt: int


@dataclass(frozen=True)
class Standing:
    """What the store holds of one run.

    Attributes:
        settled: the last round whose report is known to count, -1 for none.
        pending: round and attempt of the report that waits for the coordinator's word.
    """

    settled: int = -1
    pending: tuple[int, int] | None = None

    def told(self, accepted: int, opened: tuple[int, int]) -> Standing:
        """The standing after ``Store.settle``, whose table this is.

        Args:
            accepted: the last round whose report of this device counts.
            opened: the task's round and attempt.
        """
        if self.pending is None or accepted < self.settled:
            return self
        if self.pending[0] == accepted:
            return Standing(accepted)
        stays = self.pending[0] > accepted and self.pending >= opened
        return self if stays else Standing(self.settled)


@dataclass(frozen=True)
class Session:
    """The agent's state.

    Attributes:
        device: its name.
        runs: what the store holds of each run.
        phase: what it is doing.
        task: the task at hand, None when idle.
        missing: digests of the blobs it waits for.
        expires: when the task's deadline passes, in seconds of the agent's clock.
        next_beat: when the next Progress is due.
    """

    device: str
    runs: Mapping[str, Standing] = field(default_factory=dict)
    phase: Phase = Phase.IDLE
    task: Task | None = None
    missing: frozenset[str] = frozenset()
    expires: float = 0.0
    next_beat: float = 0.0

    def standing(self, run: str) -> Standing:
        """What the store holds of a run."""
        return self.runs.get(run, Standing())

    @property
    def waiting(self) -> tuple[TaskId, ...]:
        """The tasks whose reports wait in the outbox, by run."""
        return tuple(TaskId(run, *here.pending) for run, here in sorted(self.runs.items()) if here.pending is not None)


# Events.


@dataclass(frozen=True)
class Connected:
    """The bus is (again) connected."""


@dataclass(frozen=True)
class Received:
    """A message of the coordinator came in."""

    message: Task | Commit | Cancel | RollCall
    at: float


@dataclass(frozen=True)
class Fetched:
    """A blob is complete and verified."""

    sha256: str


@dataclass(frozen=True)
class Worked:
    """A task is done: its report and its KEEP slots are stored."""

    task: TaskId


@dataclass(frozen=True)
class WorkFailed:
    """A task could not be done."""

    task: TaskId
    code: str
    detail: str


@dataclass(frozen=True)
class Ticked:
    """Time passed."""

    at: float


Event: TypeAlias = Connected | Received | Fetched | Worked | WorkFailed | Ticked


# Effects.


@dataclass(frozen=True)
class SayHello:
    """Send Hello; ``pending`` is a task whose report waits."""

    pending: TaskId | None


@dataclass(frozen=True)
class SendReports:
    """Send every report in the outbox (again)."""


@dataclass(frozen=True)
class Fetch:
    """Get this blob; answer with Fetched."""

    ref: BlobRef


@dataclass(frozen=True)
class Work:
    """Do this task off the network loop; answer with Worked or WorkFailed."""

    task: Task


@dataclass(frozen=True)
class StopWork:
    """Give up fetching for, and working on, this task, at the next step's boundary."""

    task: TaskId


@dataclass(frozen=True)
class Settle:
    """A new task says which round's result was the last accepted: see ``Store.settle``."""

    task: TaskId
    accepted_round: int


@dataclass(frozen=True)
class Close:
    """A Commit says whether the result of this task counts: see ``Store.close_round``."""

    task: TaskId
    accepted: bool


@dataclass(frozen=True)
class SendProgress:
    """Renew the lease."""

    task: TaskId


@dataclass(frozen=True)
class SendFailed:
    """Say that a task could not be done."""

    task: TaskId
    code: str
    detail: str


Effect: TypeAlias = SayHello | SendReports | Fetch | Work | StopWork | Settle | Close | SendProgress | SendFailed
Step: TypeAlias = tuple[Session, tuple[Effect, ...]]


def task_id(task: Task) -> TaskId:
    """Which task this is."""
    return TaskId(task.run, task.round, task.attempt)


def advance(s: Session, event: Event) -> Step:
    """The next state and what to do about it.  Never raises on a late or repeated event."""
    match event:
        case Connected():
            return s, _announce(s)
        case Received(message, at):
            return _received(s, message, at)
        case Fetched(sha256):
            return _fetched(s, sha256)
        case Worked(task_done):
            return _worked(s, task_done)
        case WorkFailed(task_failed, code, detail):
            return _failed(s, task_failed, code, detail)
        case Ticked(at):
            return _ticked(s, at)
        case _:
            assert_never(event)


def _received(s: Session, message: Task | Commit | Cancel | RollCall, at: float) -> Step:
    match message:
        case RollCall():
            return s, _announce(s)
        case Task():
            return _task(s, message, at)
        case Commit():
            return _commit(s, message)
        case Cancel():
            return _cancel(s, message)
        case _:
            assert_never(message)


def _announce(s: Session) -> tuple[Effect, ...]:
    waiting = s.waiting
    return SayHello(waiting[-1] if waiting else None), SendReports()


def _task(s: Session, task: Task, at: float) -> Step:
    this, here = task_id(task), s.standing(task.run)
    opened = (task.round, task.attempt)
    accepted = next((member.accepted_round for member in task.cohort if member.device == s.device), None)
    if accepted is None or accepted >= task.round:  # not for us, or it contradicts itself
        return s, ()
    if task.round <= here.settled:
        # Late, and then the answer is ignored; or from a coordinator that was set back, and then a person must know.
        return s, (SendFailed(this, "settled", f"round {here.settled} of this run is settled on this device already"),)
    if here.pending == opened:
        return s, (SendReports(),)
    if s.task is not None and task_id(s.task) == this:
        return s, (SendProgress(this),)
    if _is_late(s, task):
        return s, ()
    return _begin(s, task, accepted, at)


def _is_late(s: Session, task: Task) -> bool:
    """Whether we have reported on, or are at work on, a later round or attempt of the same run."""
    pending = s.standing(task.run).pending
    known = [] if pending is None else [pending]
    if s.task is not None and s.task.run == task.run:
        known.append((s.task.round, s.task.attempt))
    return any(later > (task.round, task.attempt) for later in known)


def _begin(s: Session, task: Task, accepted: int, at: float) -> Step:
    state, stopped = _idle(s)
    state = replace(
        _stand(state, task.run, s.standing(task.run).told(accepted, (task.round, task.attempt))),
        phase=Phase.FETCHING,
        task=task,
        missing=frozenset({task.bundle.sha256, task.download.sha256}),
        expires=at + task.deadline,
        next_beat=at + _beat(task),
    )
    return state, (*stopped, Settle(task_id(task), accepted), Fetch(task.bundle), Fetch(task.download))


def _commit(s: Session, commit: Commit) -> Step:
    over = s.task is not None and s.task.run == commit.run and s.task.round <= commit.round
    state, stopped = _idle(s) if over else (s, ())
    here = state.standing(commit.run)
    if here.pending is None or here.pending[0] > commit.round:
        return state, stopped
    if here.pending[0] < commit.round:
        return state, (*stopped, SendReports())
    accepted = state.device in commit.accepted
    closed = Standing(commit.round if accepted else here.settled)
    return _stand(state, commit.run, closed), (*stopped, Close(TaskId(commit.run, *here.pending), accepted))


def _cancel(s: Session, cancel: Cancel) -> Step:
    if s.task is None or task_id(s.task) != TaskId(cancel.run, cancel.round, cancel.attempt):
        return s, ()  # perhaps that of an earlier attempt, overtaken by the task of this one
    return _idle(s)


def _fetched(s: Session, sha256: str) -> Step:
    if s.phase is not Phase.FETCHING or s.task is None or sha256 not in s.missing:
        return s, ()
    missing = s.missing - {sha256}
    if missing:
        return replace(s, missing=missing), ()
    return replace(s, missing=missing, phase=Phase.WORKING), (Work(s.task),)


def _worked(s: Session, done: TaskId) -> Step:
    if s.phase is not Phase.WORKING or s.task is None or task_id(s.task) != done:
        return s, ()
    here = replace(s.standing(done.run), pending=(done.round, done.attempt))
    return _stand(_without_task(s), done.run, here), (SendReports(),)


def _failed(s: Session, failed: TaskId, code: str, detail: str) -> Step:
    if s.task is None or task_id(s.task) != failed:
        return s, ()
    state, stopped = _idle(s)
    return state, (*stopped, SendFailed(failed, code, detail))


def _ticked(s: Session, at: float) -> Step:
    if s.task is None:
        return s, ()
    if at >= s.expires:
        return _idle(s)
    if at < s.next_beat:
        return s, ()
    return replace(s, next_beat=at + _beat(s.task)), (SendProgress(task_id(s.task)),)


def _beat(task: Task) -> float:
    return max(task.heartbeat, SHORTEST_BEAT)


def _stand(s: Session, run: str, here: Standing) -> Session:
    return replace(s, runs={**s.runs, run: here})


def _without_task(s: Session) -> Session:
    return replace(s, phase=Phase.IDLE, task=None, missing=frozenset())


def _idle(s: Session) -> tuple[Session, tuple[Effect, ...]]:
    if s.task is None:
        return s, ()
    return _without_task(s), (StopWork(task_id(s.task)),)
