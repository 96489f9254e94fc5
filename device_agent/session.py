"""The agent's side of a run, as a pure machine.

``advance(state, event) -> (state, effects)``: no clock, no socket, no storage; events carry the time and effects say
what the service is to do.  The same events always give the same state.

Theory of operation::

                  Task for me                every blob is here              report is stored
    IDLE ------------------------> FETCHING ----------------------> WORKING ------------------> IDLE, done = task
                                       |                               |
                                       +--- Cancel, Commit of this or a later round, deadline --> IDLE

* A **task** is known by (run, round, attempt).  The same task again is answered, never done twice: with Progress
  while it is being worked on, with the stored report once it is done.
* A **report** waits in the store's outbox, together with the KEEP slots it made (*pending*), until the coordinator's
  word: the round's Commit (then :class:`Close`), or the ``accepted_round`` of a later Task (then :class:`Settle`).
  Whatever is still in the outbox is sent again after every connection and every roll call, so neither side trusts the
  broker to remember.
* A Commit of a round that we are still working on means that it is over without us: stop.
* Deadlines count from the receipt of a task on our own clock; wall clocks are never compared.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias, assert_never

from edgepfl.wire import BlobRef, Cancel, Commit, RollCall, Task


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
class Session:
    """The agent's state.

    Attributes:
        device: its name.
        phase: what it is doing.
        task: the task at hand, None when idle.
        missing: digests of the blobs it waits for.
        expires: when the task's deadline passes, in seconds of the agent's clock.
        next_beat: when the next Progress is due.
        done: the task whose report waits in the outbox.
        settled: the last task whose result the coordinator accepted.
    """

    device: str
    phase: Phase = Phase.IDLE
    task: Task | None = None
    missing: frozenset[str] = frozenset()
    expires: float = 0.0
    next_beat: float = 0.0
    done: TaskId | None = None
    settled: TaskId | None = None


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
    """Send Hello; ``pending`` is the task whose report waits."""

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
            return s, (SayHello(s.done), SendReports())
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
            return s, (SayHello(s.done), SendReports())
        case Task():
            return _task(s, message, at)
        case Commit():
            return _commit(s, message)
        case Cancel():
            return _cancel(s, message)
        case _:
            assert_never(message)


def _task(s: Session, task: Task, at: float) -> Step:
    this = task_id(task)
    accepted = next((member.accepted_round for member in task.cohort if member.device == s.device), None)
    if accepted is None or _is_stale(s, this):
        return s, ()
    if s.task is not None and task_id(s.task) == this:
        return s, (SendProgress(this),)
    if s.done == this:
        return s, (SendReports(),)
    state, stopped = _idle(s)
    settled = TaskId(task.run, accepted, 0) if accepted >= 0 else state.settled
    state = replace(
        state,
        phase=Phase.FETCHING,
        task=task,
        missing=frozenset({task.bundle.sha256, task.download.sha256}),
        expires=at + task.deadline,
        next_beat=at + task.heartbeat,
        done=None,
        settled=settled,
    )
    return state, (
        *stopped,
        Settle(this, accepted),
        Fetch(task.bundle),
        Fetch(task.download),
    )


def _is_stale(s: Session, this: TaskId) -> bool:
    """Whether a task is older than what we already know of its run: a late or repeated message."""
    known = [t for t in (s.settled, s.done, s.task and task_id(s.task)) if t is not None and t.run == this.run]
    if any((t.round, t.attempt) > (this.round, this.attempt) for t in known):
        return True
    return s.settled is not None and s.settled.run == this.run and s.settled.round >= this.round


def _commit(s: Session, commit: Commit) -> Step:
    state = s
    effects: tuple[Effect, ...] = ()
    if state.task is not None and state.task.run == commit.run and state.task.round <= commit.round:
        state, effects = _idle(state)
    done = state.done
    if done is None or (done.run, done.round) != (commit.run, commit.round):
        return state, effects
    if state.device not in commit.accepted:
        return replace(state, done=None), (*effects, Close(done, accepted=False))
    return replace(state, done=None, settled=done), (*effects, Close(done, accepted=True))


def _cancel(s: Session, cancel: Cancel) -> Step:
    if s.task is None or (s.task.run, s.task.round) != (cancel.run, cancel.round):
        return s, ()
    return _idle(s)


def _fetched(s: Session, sha256: str) -> Step:
    if s.phase is not Phase.FETCHING or s.task is None or sha256 not in s.missing:
        return s, ()
    missing = s.missing - {sha256}
    if missing:
        return replace(s, missing=missing), ()
    return replace(s, missing=missing, phase=Phase.WORKING), (Work(s.task),)


def _worked(s: Session, done: TaskId) -> Step:
    if s.task is None or task_id(s.task) != done:
        return s, ()
    return replace(_without_task(s), done=done), (SendReports(),)


def _failed(s: Session, failed: TaskId, code: str, detail: str) -> Step:
    if s.task is None or task_id(s.task) != failed:
        return s, ()
    return _without_task(s), (SendFailed(failed, code, detail),)


def _ticked(s: Session, at: float) -> Step:
    if s.task is None:
        return s, ()
    if at >= s.expires:
        return _idle(s)
    if at < s.next_beat:
        return s, ()
    return replace(s, next_beat=at + s.task.heartbeat), (SendProgress(task_id(s.task)),)


def _without_task(s: Session) -> Session:
    return replace(s, phase=Phase.IDLE, task=None, missing=frozenset())


def _idle(s: Session) -> tuple[Session, tuple[Effect, ...]]:
    if s.task is None:
        return s, ()
    return _without_task(s), (StopWork(task_id(s.task)),)
