"""Where an agent lives: its storage, and the order in which it is written.

::

    STATE/store.db       what the device keeps, and its outbox: see device_agent.store
    STATE/offered/       uploads that are too long for a message
    STATE/fetched/       bundles and downloads: they come again where they are missing
    STATE/checkpoint     a training that is half done: see device_agent.checkpoint

A result is stored in this order, and a power cut after any step leaves what is said:

1. the upload goes into ``offered`` (file, rename, directory): nothing has happened, and the round is done again;
   a blob that no report names is deleted at the next start;
2. kept slots, report, the model that predicts and the facts go into the database in one transaction: now it is done;
3. the checkpoint is deleted: if it is not, no other task uses it, and the next one deletes it.

At start each report that waits is compared with its upload.  Where the disk lost or damaged that, the round is done
again when its task comes again, and gives the same bits; the report is sent nevertheless, because the coordinator may
have the upload already.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from device_agent.checkpoint import FILE, CheckpointFile
from device_agent.database import LOG_PAGES
from device_agent.messages import inline
from device_agent.session import Standing
from device_agent.store import Outgoing, Store
from device_agent.work import Product
from edgepfl import wire
from edgepfl.bus.blobs import BlobStore, Room
from edgepfl.errors import StoreError, WireError
from edgepfl.wire import BlobRef, Report, Task

DATABASE = "store.db"
FETCHED, OFFERED = "fetched", "offered"
"""What lies in a state directory, beside the checkpoint; see above."""
log = logging.getLogger(__name__)
Change = TypeVar("Change")
_MARGIN = 1 << 10  # bytes: a report waits for a long time, and the next broker may take a little less


@dataclass(frozen=True)
class Place:
    """Where an agent lives: its storage.

    Attributes:
        store: KEEP slots, outbox and identity.
        fetched: blobs that it got.
        offered: blobs that it offers to the coordinator, and nothing else.
        checkpoint: of the training at hand; None: nothing keeps any.
    """

    store: Store
    fetched: BlobStore
    offered: BlobStore
    checkpoint: CheckpointFile | None = None

    @classmethod
    def open(cls, state: Path, room: Room = Room(), log_pages: int = LOG_PAGES) -> Place:  # noqa: B008  it is frozen
        """The storage under a device's state directory, which is made if it is missing.

        Args:
            state: the directory.
            room: how much of the disk all blobs together may use.
            log_pages: see :class:`~device_agent.database.Database`.

        Raises:
            StoreError: another agent uses it, or it cannot be used at all.
        """
        fetched, offered = state / FETCHED, state / OFFERED
        return cls(
            Store(state / DATABASE, log_pages),
            BlobStore(fetched, replace(room, beside=(offered,))),
            BlobStore(offered, replace(room, beside=(fetched,))),
            CheckpointFile(state / FILE),
        )

    def limit(self, size: int) -> None:
        """Let all blobs together, and the database, have no more than so many bytes each; 0 for no limit.

        What is there stays; what does not fit fails as on a full disk.

        Raises:
            StoreError: the store is closed.
        """
        self.fetched.limit(Room(size, beside=(self.offered.directory,)))
        self.offered.limit(Room(size, beside=(self.fetched.directory,)))
        self.store.limit(size)

    def standings(self) -> dict[str, Standing]:
        """What is held of each run, each upload that a report promises looked at; other uploads are deleted.

        Raises:
            StoreError: the store failed.
        """
        self.forget_offers()
        lost = set()
        for waiting, report in _decoded(self.store.outbox()):
            if report.upload is not None and not report.upload.inline:
                try:
                    self.offered.read(report.upload.sha256)
                except StoreError as error:
                    log.error("the upload of round %d is done again: %s", report.round, error)  # noqa: TRY400  told
                    lost.add(waiting.run)
        return {run: Standing(*here, whole=run not in lost) for run, here in self.store.standings().items()}

    def keep(
        self,
        task: Task,
        product: Product,
        *,
        offer: Callable[[bytes], BlobRef],
        report: Callable[[BlobRef | None], Report],
        facts: Mapping[str, int],
        most: int,
    ) -> None:
        """Store a result; the module's text says in which order.

        Args:
            task: what was done.
            product: what came of it.
            offer: puts a long upload into ``offered``.
            report: the report, from the reference of the upload.
            facts: what becomes true with it, see ``Store.fact``.
            most: bytes of the longest message that the bus takes; an upload rides in its report if that fits.

        Raises:
            StoreError: there is no room even after freeing what may be freed, or the storage failed.
            TransferError: the upload cannot be offered.
        """
        data = product.upload
        riding = data is not None and len(data) <= wire.INLINE_LIMIT
        encoded = wire.encode(report(inline(data) if data is not None and riding else None))
        if data is not None and (not riding or len(encoded) + _MARGIN > most):
            encoded = wire.encode(report(self.durably(lambda: offer(data))))
        self.durably(
            lambda: self.store.commit_pending(
                task.run,
                task.round,
                task.attempt,
                keep=product.keep,
                report=encoded,
                serving=product.serving,
                facts=facts,
            )
        )
        self.drop_checkpoint()

    def durably(self, change: Callable[[], Change], needed: Collection[str] = ()) -> Change:
        """Make a change; where there is no room for it, again after freeing what may be freed, the checkpoint last.

        Args:
            change: either done or not.
            needed: digests of the fetched blobs that must stay.

        Raises:
            StoreError: it could not be made, and nothing of it was.
        """
        ways: tuple[Callable[[], None], ...] = (lambda: self.fetched.keep_only(needed), self.drop_checkpoint)
        for free in ways:
            try:
                return change()
            except StoreError as error:
                if not error.full:
                    raise
                log.warning("%s; deleting what can be had again", error)
                free()
        return change()

    def next_session(self) -> int:
        """The number of this start, see ``Store.next_session``, also where the disk is full.

        Raises:
            StoreError: it is full of what is not ours, or the storage failed.
        """
        return self.durably(self.store.next_session)

    def drop_checkpoint(self) -> None:
        """Delete what there is of a half-done training."""
        if self.checkpoint is not None:
            self.checkpoint.drop()

    def forget_offers(self) -> None:
        """Keep the blobs of the reports that wait, and no others."""
        if not self.offered.occupied:
            return
        outbox = self.store.outbox()
        waiting = list(_decoded(outbox))
        if len(waiting) < len(outbox):  # some were written by another version of this agent
            return
        self.offered.keep_only({report.upload.sha256 for _, report in waiting if report.upload is not None})


def _decoded(outbox: list[Outgoing]) -> Iterator[tuple[Outgoing, Report]]:
    """The reports that this version can read."""
    for waiting in outbox:
        try:
            message = wire.decode(waiting.report, where="outbox")
        except WireError:
            continue
        if isinstance(message, Report):
            yield waiting, message
