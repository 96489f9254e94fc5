"""What a run holds between its messages and its round: reports on their way in, and downloads of earlier rounds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from coordinator.seats import Phase, Round
from coordinator.storage.mirrored import Mirrored
from edgepfl.wire import BlobRef, Report


class Intake:
    """Reports whose uploads are here and that the round does not have yet, at most one of a device.

    They are being screened, or, in a buffered run, wait until an update is made and the next round takes reports.
    Nothing here is journalled: a device sends its report again until it hears what became of it.
    """

    def __init__(self) -> None:
        self._reports: dict[str, Report] = {}
        self._early: list[Report] = []
        self._lock = threading.Lock()
        self._claimed: list[str] = []  # once for each report that is being screened

    def __contains__(self, device: object) -> bool:
        return device in self._reports

    @contextmanager
    def settled(self) -> Iterator[set[str]]:
        """The digests of their uploads, encoded and decoded; until it is left, no screening stores another one."""
        held = [*self._reports.values(), *self._early]
        with self._lock:
            yield {*self._claimed, *(report.upload.sha256 for report in held if report.upload is not None)}

    def claim(self, sha256: str) -> None:
        """A decoded upload is about to be stored: nothing else knows of it yet.  It is for the worker's thread."""
        with self._lock:
            self._claimed.append(sha256)

    def release(self, report: Report) -> None:
        """A report that was screened is where it belongs, or is not wanted: whoever has it knows its upload."""
        with self._lock:
            if report.upload is not None and report.upload.sha256 in self._claimed:
                self._claimed.remove(report.upload.sha256)

    def add(self, report: Report) -> None:
        """A report comes in."""
        self._reports[report.device] = report

    def wait(self, report: Report) -> None:
        """A report that is screened must wait."""
        self._early.append(report)

    def begin(self, state: Round) -> None:
        """Another round begins: forget the reports that are of no task of it."""
        here = {device: report for device, report in self._reports.items() if _is_for(state, report)}
        self._reports = here if state.policy.buffer else {}
        self._early = [report for report in self._early if report.device in self._reports]

    def done(self, device: str) -> None:
        """The round has a device's report, or will not."""
        self._reports.pop(device, None)
        self._early = [report for report in self._early if report.device != device]

    def due(self, state: Round) -> Report | None:
        """A report that waited, if the round takes it now."""
        return self._early[0] if self._early and state.phase is Phase.REPORTING else None


class Downloads:
    """References of the downloads that the tasks of a buffered run name: the open round's, and those before it.

    Args:
        offered: where they are.
    """

    def __init__(self, offered: Mirrored) -> None:
        self._offered = offered
        self._known: dict[str, BlobRef] = {}

    def begin(self, state: Round) -> None:
        """Another round begins: forget the downloads that nobody may fetch any more."""
        used = set(state.bases.values())
        self._known = {sha256: ref for sha256, ref in self._known.items() if sha256 in used}

    def ref(self, sha256: str) -> BlobRef:
        """The reference of a download, as it goes into a task.

        Raises:
            StoreError: it is not here, or cannot be read.
        """
        if sha256 not in self._known:
            if not self._offered.local.has(sha256):
                self._offered.read(sha256)  # brings it back from the shared store, if there is one
            self._known[sha256] = self._offered.ref_inline(self._offered.local.ref(sha256))
        return self._known[sha256]


def _is_for(state: Round, report: Report) -> bool:
    return state.task_of(report.device) == (report.round, report.attempt)
