"""Uploads on their way to us, and whose transfers still move.

A member whose report is here and whose upload is not has nothing more to say: its chunks are its signs of life.  Asking
in vain is none, so a member that promises an upload and never sends it loses its lease like one that died.  Waiting for
our own attention is not its fault: while we have not asked for its chunks, repeating the report is a sign of life.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from edgepfl.bus.blobs import BlobStore
from edgepfl.bus.chunks import UNDER_WAY, Receiver
from edgepfl.errors import StoreError, TransferError
from edgepfl.wire import BlobRef, Need, Report


@dataclass(frozen=True)
class News:
    """What a message means for the reports whose uploads are coming.

    Attributes:
        complete: reports whose upload is here, whole and verified.
        alive: reports whose member showed a sign of life.
        wrong: reports whose upload can never come.
        why: of ``wrong``, for people.
        ours: whether that is our own fault: there is no room here.
    """

    complete: tuple[Report, ...] = ()
    alive: tuple[Report, ...] = ()
    wrong: tuple[Report, ...] = ()
    why: str = ""
    ours: bool = False


@dataclass
class _Coming:
    """One blob, and the reports that refer to it, by device: equal uploads of two devices are one blob."""

    ref: BlobRef
    reports: dict[str, Report] = field(default_factory=dict)
    here: int = 0  # chunks at the last sign of life
    asked: bool = False  # whether we asked for any since then


class Uploads:
    """The reports whose uploads are still coming.

    What many devices would send at once is asked for a few at a time.  Chunks are not copied from other uploads: a
    device that has only heard of a digest would get the bytes of another device counted as its own.

    Args:
        blobs: where the uploads go.
        under_way: bytes that are asked for at once; the other uploads wait their turn.
    """

    def __init__(self, blobs: BlobStore, under_way: int = UNDER_WAY) -> None:
        self._receiver = Receiver(blobs, under_way=under_way)
        self._coming: dict[str, _Coming] = {}  # by the first 16 digits of the digest

    @property
    def waiting(self) -> int:
        """How many reports' uploads wait until others are here."""
        return sum(len(self._coming[sha256[:16]].reports) for sha256 in self._receiver.waiting)

    @property
    def arriving(self) -> dict[str, tuple[int, int]]:
        """By device, how many chunks of its upload are here, and of how many."""
        return {
            device: (self._receiver.here(coming.ref.sha256), -(-coming.ref.size // coming.ref.chunk))
            for coming in self._coming.values()
            for device in coming.reports
        }

    def take(self, report: Report, ref: BlobRef, now: float) -> News:
        """A report came whose upload is ``ref``: perhaps for the first time, perhaps repeated.

        An upload for which there is no room is refused before its first chunk.

        Raises:
            StoreError: the store failed.
        """
        coming = self._coming.get(ref.sha256[:16])
        if coming is not None and (coming.ref.sha256, coming.ref.size) == (ref.sha256, ref.size):
            ref = coming.ref if coming.ref.chunk != ref.chunk else ref  # in chunks as its first sender likes them
        before = self._leave(report.device, ref)
        try:
            here = self._receiver.want(ref, now)
        except TransferError as error:
            return News(wrong=(report,), why=str(error), ours=isinstance(error.__cause__, StoreError))
        if here:
            others = self._finished(ref.sha256[:16], without=report.device)
            return News(complete=(*others, report))
        coming = self._coming.setdefault(ref.sha256[:16], _Coming(ref))
        coming.reports[report.device] = report
        if before == ref:  # its device was cut off, or has been asked: what was under way may be lost
            self._receiver.ask_again(now, ref.sha256)
        moved = self._receiver.here(ref.sha256) > coming.here or not coming.asked
        return self._alive(coming, report) if before is None or (before == ref and moved) else News()

    def chunk(self, device: str, sha16: str, index: int, data: bytes, now: float) -> News:
        """A chunk came; one that nobody asked for, or that is wrong, means nothing.

        Raises:
            StoreError: the store failed.
        """
        coming = self._coming.get(sha16)
        if coming is None or device not in coming.reports:
            return News()
        try:
            complete = self._receiver.chunk(sha16, index, data, now)
        except TransferError as error:
            return News(wrong=self._finished(sha16), why=str(error))
        if complete is not None:
            return News(complete=self._finished(sha16))
        if self._receiver.here(coming.ref.sha256) == coming.here:
            return News()
        return self._alive(coming, coming.reports[device])

    @property
    def wrong(self) -> int:
        """Chunks that came and are not what their report says."""
        return self._receiver.wrong

    def due(self, now: float) -> list[tuple[str, Need]]:
        """(device, what to ask it for) now."""
        asks = []
        for need in self._receiver.due(now):
            coming = self._coming[need.sha256[:16]]
            coming.asked = True
            asks += [(device, need) for device in coming.reports]
        return asks

    @property
    def next_due(self) -> float | None:
        """When to look at :meth:`due` again, at the latest; None if nothing is coming."""
        return self._receiver.next_due

    def ask_again(self, now: float) -> None:
        """Forget what was asked: the connection was lost, and the answers with it."""
        self._receiver.ask_again(now)

    def keep(self, wanted: Callable[[Report], bool]) -> frozenset[str]:
        """Give up the uploads that no wanted report refers to; the digests of those that still come."""
        for sha16, coming in tuple(self._coming.items()):
            coming.reports = {device: report for device, report in coming.reports.items() if wanted(report)}
            self._drop_if_unwanted(sha16)
        return self._receiver.wanted

    def _alive(self, coming: _Coming, report: Report) -> News:
        coming.here, coming.asked = self._receiver.here(coming.ref.sha256), False
        return News(alive=(report,))

    def _leave(self, device: str, ref: BlobRef) -> BlobRef | None:
        """What a device promised before; if that was something else, it is given up."""
        before = [(sha16, coming) for sha16, coming in self._coming.items() if device in coming.reports]
        for sha16, coming in before:
            if coming.ref != ref:
                del coming.reports[device]
                self._drop_if_unwanted(sha16)
        return before[0][1].ref if before else None

    def _drop_if_unwanted(self, sha16: str) -> None:
        if not self._coming[sha16].reports:
            self._receiver.cancel(self._coming.pop(sha16).ref.sha256)

    def _finished(self, sha16: str, *, without: str = "") -> tuple[Report, ...]:
        coming = self._coming.pop(sha16, None)
        return tuple(r for device, r in coming.reports.items() if device != without) if coming is not None else ()
