"""What can happen to an agent, and what its session then wants done: records, and nothing else.

Times (``at``) are seconds of the agent's clock, which never goes back but begins anew at every start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from edgepfl.eligibility import Readings
from edgepfl.wire import BlobRef, Cancel, Commit, RollCall, Task


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
        whole: whether the upload that it promises is here: else its task, if it comes again, is done again.
    """

    settled: int = -1
    pending: tuple[int, int] | None = None
    whole: bool = True

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


# Events.


@dataclass(frozen=True)
class Connected:
    """The bus is (again) connected."""


@dataclass(frozen=True)
class Received:
    """A message of the coordinator came in.

    Attributes:
        readings: what the sensors say just now, where it brings conditions.
    """

    message: Task | Commit | Cancel | RollCall
    at: float
    readings: Readings = field(default_factory=Readings)


@dataclass(frozen=True)
class Sensed:
    """The sensors were read: as long as there are conditions, every few seconds."""

    readings: Readings
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
class Unchanged:
    """The store could not be changed as an effect said, because the disk is full: this is what it holds.

    The coordinator's word that it did not take comes again: with the next task, or when the report is sent again.
    """

    runs: Mapping[str, Standing]


@dataclass(frozen=True)
class Ticked:
    """Time passed."""

    at: float


Event: TypeAlias = Connected | Received | Sensed | Fetched | Worked | WorkFailed | Unchanged | Ticked


# Effects.


@dataclass(frozen=True)
class SayHello:
    """Send Hello; ``pending`` is a task whose report waits."""

    pending: TaskId | None


@dataclass(frozen=True)
class SendReports:
    """Send every report in the outbox (again), but for those of some runs."""

    without: frozenset[str] = frozenset()


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
class SayStopped:
    """Say that the work on this task has ended, as soon as it has."""

    task: TaskId


@dataclass(frozen=True)
class Pause:
    """Let the work on this task wait at the next step's boundary, with all that it has."""

    task: TaskId


@dataclass(frozen=True)
class Resume:
    """Let the work on this task go on."""

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
    """Renew the lease; ``paused`` says which conditions the work waits for, empty where it does not."""

    task: TaskId
    paused: str = ""


@dataclass(frozen=True)
class SendFailed:
    """Say that a task could not be done."""

    task: TaskId
    code: str
    detail: str


Effect: TypeAlias = (
    SayHello
    | SendReports
    | Fetch
    | Work
    | StopWork
    | SayStopped
    | Pause
    | Resume
    | Settle
    | Close
    | SendProgress
    | SendFailed
)
