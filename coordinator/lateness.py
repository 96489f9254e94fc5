"""How full the buffer of a run is, and how late the reports came, for people and scripts."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from coordinator.journal import Result
from coordinator.seats import Round, State


class Lateness(msgspec.Struct, frozen=True):
    """The staleness of the reports in the last update that trained.

    Attributes:
        least: updates that the report which is least late came late.
        mean: over the reports.
        most: of the latest one.
    """

    least: int
    mean: float
    most: int


class BufferStatus(msgspec.Struct, frozen=True):
    """A buffered run at one moment.

    Attributes:
        version: of the server's model: the updates that made it.
        reports: that are in the buffer.
        size: reports that make an update.
        working: devices at work; None while no round is open.
        staleness: of the last update, None before the first.
    """

    version: int
    reports: int
    size: int
    working: int | None
    staleness: Lateness | None = None


def lateness(results: Sequence[Result], before: Lateness | None = None) -> Lateness | None:
    """That of the last update among some results; ``before`` if none of them trained."""
    last = max((result.round for result in results if result.steps), default=0)
    found = [result.staleness for result in results if result.round == last]
    return Lateness(min(found), sum(found) / len(found), max(found)) if last else before


def buffer_status(size: int, version: int, found: Lateness | None, open_round: Round | None) -> BufferStatus | None:
    """The buffer of a run, None where it has none.

    Args:
        size: the run's ``buffer``.
        version: the last committed round that trains.
        found: the staleness of its reports.
        open_round: None if the run is over.
    """
    if not size:
        return None
    if open_round is None:
        return BufferStatus(version, 0, size, None, found)
    reports, working = (len(open_round.devices(state)) for state in (State.REPORTED, State.WORKING))
    return BufferStatus(version, reports, size, working, found)


def line(status: BufferStatus) -> str:
    """How late the reports of the last update came, for a line for people; empty before the first."""
    found = status.staleness
    return "" if found is None else f"staleness {found.least} to {found.most}, mean {found.mean:.3g}"
