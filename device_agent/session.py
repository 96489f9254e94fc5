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
* A Commit of a round that we are still working on means that it is over without us: stop.  So does a Cancel of the
  task at hand, and a Cancel of the task that a pending report is on drops that report.  Either is answered with Stopped
  as soon as the work has really ended, a Cancel also where there is none: the coordinator waits for the word.
* A Cancel that says that the coordinator does not know the run touches nothing that is stored, for the coordinator's
  state may be put back: reports of that run are only sent again at the next connection or roll call.
* A task that is like the one at hand, but for what is to be downloaded, is of a coordinator that was set back to an
  older state, and takes its place.  One of a round before the one that we are at, or have reported on, is refused with
  Failed("ahead"): a person must know.
* **Conditions**: a roll call or a task says what the run asks of a device, and we say Hello again when what we do not
  meet changes.  A task that finds something unmet is declined with Failed("conditions").  Work that loses a condition
  pauses at the next step's boundary until it is met again, or is given up, as the conditions say; deadline, Commit and
  Cancel end it meanwhile as ever, and Progress goes on and says why it is paused.
* Deadlines count from the receipt of a task on our own clock; wall clocks are never compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeAlias, assert_never

from device_agent.conditions_outlook import Outlook
from device_agent.events import (
    Close,
    Connected,
    Effect,
    Event,
    Fetch,
    Fetched,
    Pause,
    Received,
    Resume,
    SayHello,
    SayStopped,
    SendFailed,
    SendProgress,
    SendReports,
    Sensed,
    Settle,
    Standing,
    StopWork,
    TaskId,
    Ticked,
    Unchanged,
    Work,
    Worked,
    WorkFailed,
)
from edgepfl.eligibility import Readings
from edgepfl.wire import Cancel, Commit, RollCall, Task

__all__ = [
    "CONDITIONS",
    "SHORTEST_BEAT",
    "Close",
    "Connected",
    "Effect",
    "Event",
    "Fetch",
    "Fetched",
    "Pause",
    "Phase",
    "Received",
    "Resume",
    "SayHello",
    "SayStopped",
    "SendFailed",
    "SendProgress",
    "SendReports",
    "Sensed",
    "Session",
    "Settle",
    "Standing",
    "Step",
    "StopWork",
    "TaskId",
    "Ticked",
    "Unchanged",
    "Work",
    "WorkFailed",
    "Worked",
    "advance",
    "task_id",
]

SHORTEST_BEAT = 0.1  # seconds between two Progress messages, whatever a task says
CONDITIONS = "conditions"
"""The code of a Failed that declines a task, or gives it up, because of its conditions: no fault of anybody."""


class Phase(StrEnum):
    """What the agent is doing."""

    IDLE = "idle"
    FETCHING = "fetching"
    WORKING = "working"


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
        muted: runs that the coordinator does not know: their reports wait for the next connection.
        outlook: what the active run asks of the device, and what of it is unmet.
        paused: since when the work waits for its conditions, None where it does not.
    """

    device: str
    runs: Mapping[str, Standing] = field(default_factory=dict)
    phase: Phase = Phase.IDLE
    task: Task | None = None
    missing: frozenset[str] = frozenset()
    expires: float = 0.0
    next_beat: float = 0.0
    muted: frozenset[str] = frozenset()
    outlook: Outlook = field(default_factory=Outlook)
    paused: float | None = None

    def standing(self, run: str) -> Standing:
        """What the store holds of a run."""
        return self.runs.get(run, Standing())

    @property
    def waiting(self) -> tuple[TaskId, ...]:
        """The tasks whose reports wait in the outbox, by run."""
        return tuple(TaskId(run, *here.pending) for run, here in sorted(self.runs.items()) if here.pending is not None)

    @property
    def due(self) -> tuple[float, ...]:
        """When :class:`Ticked` would have something to do."""
        if self.task is None:
            return ()
        policy = self.outlook.policy
        patience = () if self.paused is None or policy is None else (self.paused + policy.pause_limit,)
        return (self.next_beat, self.expires, *patience)


Step: TypeAlias = tuple[Session, tuple[Effect, ...]]


def task_id(task: Task) -> TaskId:
    """Which task this is."""
    return TaskId(task.run, task.round, task.attempt)


def advance(s: Session, event: Event) -> Step:
    """The next state and what to do about it.  Never raises on a late or repeated event."""
    match event:
        case Connected():
            return _announce(s)
        case Received(message, at, readings):
            return _received(s, message, at, readings)
        case Sensed(readings, at):
            return _sensed(s, readings, at)
        case Fetched(sha256):
            return _fetched(s, sha256)
        case Worked(task_done):
            return _worked(s, task_done)
        case WorkFailed(task_failed, code, detail):
            return _failed(s, task_failed, code, detail)
        case Unchanged(runs):
            return replace(s, runs=runs), ()
        case Ticked(at):
            return _ticked(s, at)
        case _:
            assert_never(event)


def _received(s: Session, message: Task | Commit | Cancel | RollCall, at: float, readings: Readings) -> Step:
    match message:
        case RollCall():
            return _roll_call(s, message, at, readings)
        case Task():
            return _task(s, message, at, readings)
        case Commit():
            return _commit(s, message)
        case Cancel():
            return _cancel(s, message)
        case _:
            assert_never(message)


def _announce(s: Session) -> Step:
    waiting = s.waiting
    hello = SayHello(waiting[-1] if waiting else None)
    return replace(s, outlook=s.outlook.telling(), muted=frozenset()), (hello, SendReports())


def _roll_call(s: Session, call: RollCall, at: float, readings: Readings) -> Step:
    state, effects = _matched(replace(s, outlook=s.outlook.under(call.conditions, readings, at)), at)
    state, announced = _announce(_renew(state, at))
    return state, (*effects, *announced)


def _sensed(s: Session, readings: Readings, at: float) -> Step:
    state, effects = _matched(replace(s, outlook=s.outlook.seen(readings, at)), at)
    state, said = _tell(state, at)
    return state, (*effects, *said)


def _tell(s: Session, at: float) -> Step:
    """Say Hello if the coordinator should know what is unmet."""
    if not s.outlook.is_news(at):
        return s, ()
    waiting = s.waiting
    return replace(s, outlook=s.outlook.telling(at)), (SayHello(waiting[-1] if waiting else None),)


def _matched(s: Session, at: float) -> Step:
    """The task at hand after its conditions were looked at."""
    policy = s.outlook.policy
    if s.task is None:
        return s, ()
    this = task_id(s.task)
    if not s.outlook.unmet:
        return (s, ()) if s.paused is None else (replace(s, paused=None), (Resume(this), SendProgress(this)))
    if s.phase is Phase.FETCHING or (policy is not None and policy.on_lost == "give up"):
        return _failed(s, this, CONDITIONS, s.outlook.why)
    if s.paused is None:
        return replace(s, paused=at), (Pause(this), SendProgress(this, s.outlook.why))
    return s, ()


def _task(s: Session, task: Task, at: float, readings: Readings) -> Step:
    this, here = task_id(task), s.standing(task.run)
    opened = (task.round, task.attempt)
    accepted = next((member.accepted_round for member in task.cohort if member.device == s.device), None)
    if accepted is None or accepted >= task.round:  # not for us, or it contradicts itself
        return s, ()
    if task.round <= here.settled:
        # Late, and then the answer is ignored; or from a coordinator that was set back, and then a person must know.
        return s, (SendFailed(this, "settled", f"round {here.settled} of this run is settled on this device already"),)
    if here.pending == opened and here.whole:
        return s, (SendReports(s.muted),)
    if s.task is not None and task_id(s.task) == this and s.task.download.sha256 == task.download.sha256:
        return _renew(s, at), (_progress(s, this),)
    if _is_late(s, task):
        return s, _ahead(s, this)
    ready = replace(s, outlook=s.outlook.under(task.conditions, readings, at))
    return _decline(ready, task, accepted, at) if ready.outlook.unmet else _begin(ready, task, accepted, at)


def _is_late(s: Session, task: Task) -> bool:
    """Whether we have reported on, or are at work on, a later round or attempt of the same run."""
    pending = s.standing(task.run).pending
    known = [] if pending is None else [pending]
    if s.task is not None and s.task.run == task.run:
        known.append((s.task.round, s.task.attempt))
    return any(later > (task.round, task.attempt) for later in known)


def _ahead(s: Session, this: TaskId) -> tuple[Effect, ...]:
    """The answer to a task of an earlier round, which may be late, or from a coordinator that was set back."""
    pending = s.standing(this.run).pending
    at = max(s.task.round if s.task is not None and s.task.run == this.run else -1, pending[0] if pending else -1)
    if at == this.round:
        return ()  # an earlier attempt
    return (SendFailed(this, "ahead", f"this device is at round {at} of this run already"),)


def _renew(s: Session, at: float) -> Session:
    """The coordinator is there, and wants the task at hand still."""
    return s if s.task is None else replace(s, expires=at + s.task.deadline)


def _decline(s: Session, task: Task, accepted: int, at: float) -> Step:
    """Let a task be, with the reasons; what it says of an earlier round counts nevertheless."""
    state, stopped = _idle(s)
    state = _stand(state, task.run, s.standing(task.run).told(accepted, (task.round, task.attempt)))
    state, said = _tell(state, at)
    this = task_id(task)
    return state, (*stopped, Settle(this, accepted), SendFailed(this, CONDITIONS, s.outlook.why), *said)


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
    state, stopped = _stop(s) if over else (s, ())
    here = state.standing(commit.run)
    if here.pending is None or here.pending[0] > commit.round:
        return state, stopped
    if here.pending[0] < commit.round:
        return state, (*stopped, SendReports(state.muted))
    accepted = state.device in commit.accepted
    closed = Standing(commit.round if accepted else here.settled)
    return _stand(state, commit.run, closed), (*stopped, Close(TaskId(commit.run, *here.pending), accepted))


def _cancel(s: Session, cancel: Cancel) -> Step:
    this, here = TaskId(cancel.run, cancel.round, cancel.attempt), s.standing(cancel.run)
    if s.task is not None and (task_id(s.task) == this or (cancel.unknown and s.task.run == this.run)):
        state, effects = _stop(s)
    else:  # perhaps that of an earlier attempt, overtaken by the task of this one
        state, effects = s, (SayStopped(this),)
    if cancel.unknown:
        return replace(state, muted=state.muted | ({this.run} & s.runs.keys())), effects
    if here.pending == (this.round, this.attempt):
        return _stand(state, this.run, Standing(here.settled)), (*effects, Close(this, accepted=False))
    return state, effects


def _stop(s: Session) -> Step:
    """End the task at hand, and say so."""
    if s.task is None:
        return s, ()
    state, stopped = _idle(s)
    return state, (*stopped, SayStopped(task_id(s.task)))


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
    here = replace(s.standing(done.run), pending=(done.round, done.attempt), whole=True)
    return _stand(_without_task(s), done.run, here), (SendReports(s.muted),)


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
    this, policy = task_id(s.task), s.outlook.policy
    if s.paused is not None and policy is not None and at >= s.paused + policy.pause_limit:
        return _failed(s, this, CONDITIONS, f"paused for {policy.pause_limit:g} s: {s.outlook.why}")
    if at < s.next_beat:
        return s, ()
    return replace(s, next_beat=at + _beat(s.task)), (_progress(s, this),)


def _progress(s: Session, this: TaskId) -> SendProgress:
    return SendProgress(this, s.outlook.why if s.paused is not None else "")


def _beat(task: Task) -> float:
    return max(task.heartbeat, SHORTEST_BEAT)


def _stand(s: Session, run: str, here: Standing) -> Session:
    return replace(s, runs={**s.runs, run: here})


def _without_task(s: Session) -> Session:
    return replace(s, phase=Phase.IDLE, task=None, missing=frozenset(), paused=None)


def _idle(s: Session) -> tuple[Session, tuple[Effect, ...]]:
    if s.task is None:
        return s, ()
    return _without_task(s), (StopWork(task_id(s.task)),)
