"""What becomes of a device's report."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from coordinator.journal import Result
from edgepfl.wire import BlobRef, Commit, Report

_WHY_LENGTH = 300  # characters of a reason that came from a device


def verdict(report: Report, accepted: Mapping[str, int]) -> Commit:
    """What became of a report of a round that is over, for its device alone."""
    counts = accepted.get(report.device) == report.round
    return Commit(report.run, report.round, (report.device,) if counts else ())


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
