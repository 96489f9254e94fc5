"""What becomes of a device's report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from coordinator.journal import Result
from edgepfl.wire import BlobRef, Commit, Failed, Progress, Report

_WHY_LENGTH = 256  # characters of a reason that came from a device: it may go into a message again


def verdict(work: Report | Progress | Failed, accepted: Mapping[str, int]) -> Commit:
    """What became of a report of a round that is over, for its device alone."""
    return Commit(work.run, work.round, (work.device,) if is_accepted(work, accepted) else ())


def is_accepted(work: Report | Progress | Failed, accepted: Mapping[str, int]) -> bool:
    """Whether the device's report on that round counts already, so that what it says of it now is late."""
    return accepted.get(work.device) == work.round


def wording(why: str) -> str:
    """A reason that may come from a device, fit for a log, a terminal and the journal."""
    plain = "".join(c if c.isprintable() else " " for c in why[: _WHY_LENGTH + 1])
    return plain if len(plain) <= _WHY_LENGTH else f"{plain[: _WHY_LENGTH - 3]}..."


def bare(report: Report) -> Report:
    """The report as it is journalled: its upload is in the blob store."""
    if report.upload is None:
        return report
    upload = BlobRef(report.upload.sha256, report.upload.size)
    return msgspec.structs.replace(report, upload=upload)


def result_of(report: Report) -> Result:
    """What the journal keeps of it once it counts."""
    return Result(
        report.round, report.device, report.examples, report.steps, report.metrics, report.seconds, report.kept
    )


def counted(result: Result, number: int) -> Result:
    """A result of a task of an earlier round, or this one, as it counts in the update of round ``number``."""
    return msgspec.structs.replace(result, round=number, staleness=number - result.round)


def accepted_after(accepted: Mapping[str, int], joined: Iterable[str], results: Iterable[Result]) -> dict[str, int]:
    """The last round of each device that counts, after one more round; -1 of a device that is known and has none.

    Args:
        accepted: before it.
        joined: the devices that the run did not know before it.
        results: what counts of it.
    """
    return {**dict.fromkeys(joined, -1), **accepted, **{result.device: result.base for result in results}}
