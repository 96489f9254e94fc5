"""What can happen to a round, and what the round machine then wants done: records, and nothing else.

Times (``at``) are seconds of the coordinator's clock, which never goes back but begins anew at every restart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

# Events.


@dataclass(frozen=True)
class Present:
    """A device is here: it said Hello."""

    device: str
    at: float


@dataclass(frozen=True)
class Absent:
    """A device left."""

    device: str
    at: float


@dataclass(frozen=True)
class Chosen:
    """The cohort of the round, and the devices that the run saw for the first time when it was chosen.

    Attributes:
        devices: the cohort.
        joined: whom the run did not know before, chosen or not.
        canaries: the members that get the task first; the others wait for them.  Empty: all get it at once.
    """

    devices: tuple[str, ...]
    at: float
    joined: tuple[str, ...] = ()
    canaries: tuple[str, ...] = ()


@dataclass(frozen=True)
class Progressed:
    """A member is at work, and has taken so many steps, as far as it says."""

    device: str
    at: float
    steps: int = 0


@dataclass(frozen=True)
class Reported:
    """A member's report and upload are stored and screened."""

    device: str
    at: float


@dataclass(frozen=True)
class Failed:
    """A member cannot do the task, or its upload was refused.

    Attributes:
        code: what kind of error it was, as the device names it: see :mod:`coordinator.blame`.
    """

    device: str
    why: str
    at: float
    code: str = ""


@dataclass(frozen=True)
class Ticked:
    """Time passed."""

    at: float


@dataclass(frozen=True)
class Resumed:
    """The coordinator restarted: its clock began anew, so every lease and deadline does."""

    at: float


@dataclass(frozen=True)
class Reconnected:
    """The coordinator reached the broker (again): what it did not hear in between, it could not hear."""

    at: float


@dataclass(frozen=True)
class Stored:
    """The new checkpoint is stored."""

    at: float


@dataclass(frozen=True)
class StoreFailed:
    """The update could not be computed or stored."""

    why: str
    at: float


@dataclass(frozen=True)
class Stopped:
    """A person ended the run."""

    at: float


Event: TypeAlias = (
    Present
    | Absent
    | Chosen
    | Progressed
    | Reported
    | Failed
    | Ticked
    | Resumed
    | Reconnected
    | Stored
    | StoreFailed
    | Stopped
)


# Effects.


@dataclass(frozen=True)
class Choose:
    """Choose ``count`` of ``devices`` and answer with Chosen."""

    devices: tuple[str, ...]
    count: int


@dataclass(frozen=True)
class Announce:
    """Send the task at once to the whole cohort, or to its canaries."""

    devices: tuple[str, ...]


@dataclass(frozen=True)
class Widen:
    """Send the task to further members: it works, or others must try it."""

    devices: tuple[str, ...]


@dataclass(frozen=True)
class Resend:
    """Send the task to one member again."""

    device: str


@dataclass(frozen=True)
class Fold:
    """Fold this member's upload."""

    device: str


@dataclass(frozen=True)
class Release:
    """Tell members that their work is no longer wanted."""

    devices: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Suspect:
    """Take these silent members for absent until they say Hello, and ask them to."""

    devices: tuple[str, ...]


@dataclass(frozen=True)
class Reduce:
    """Close the reduction over these members, update, store, and answer with Stored or StoreFailed."""

    devices: tuple[str, ...]


@dataclass(frozen=True)
class Commit:
    """Tell everyone that the round is over and whose reports count."""

    devices: tuple[str, ...]


@dataclass(frozen=True)
class Abandon:
    """The attempt ended without a change: begin the next one, or give the run up."""

    why: str


@dataclass(frozen=True)
class Halt:
    """End the run: the devices cannot run its bundle."""

    why: str


@dataclass(frozen=True)
class End:
    """End the run: a person wants it."""


Effect: TypeAlias = (
    Choose | Announce | Widen | Resend | Fold | Release | Suspect | Reduce | Commit | Abandon | Halt | End
)
