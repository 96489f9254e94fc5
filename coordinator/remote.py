"""The server's mathematics in aggregators: see :mod:`coordinator.aggregator`.

What they need is put into the store that they share with us before they are told, and what they made is there before
they say so.  A job that is ordered again, by a coordinator that was started again too, is the same job and gives the
same bits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import TypeVar

from coordinator import pieces
from coordinator.aggregator.job import (
    Given,
    Job,
    Outcome,
    Refused,
    Send,
    Sent,
    Update,
    Updated,
    read_manifest,
    read_outcome,
)
from coordinator.arithmetic import Sitting
from coordinator.checkpoint import Saved, Vault
from coordinator.journal import Checkpoint, RunRow
from coordinator.orders import Orders
from coordinator.storage.depot import Depot, collect
from edgepfl.algorithms import Algorithm
from edgepfl.errors import CodecError, RunError, StoreError
from edgepfl.secagg.server import Server as Secrets
from edgepfl.wire import BlobRef, Report

log = logging.getLogger(__name__)
T = TypeVar("T")


class Remote:
    """An :class:`~coordinator.arithmetic.Arithmetic` that lets aggregators do it.

    Args:
        vault: our own blobs.
        row: of the run.
        worker: one thread.
        depot: the store that we share with the aggregators.
        orders: for this run.
        used: the digests of all blobs that the journal needs.
    """

    def __init__(
        self,
        vault: Vault,
        row: RunRow,
        worker: Executor,
        *,
        depot: Depot,
        orders: Orders,
        used: Callable[[], set[str]],
    ) -> None:
        self._vault = vault
        self._row = row
        self._worker = worker
        self._depot = depot
        self._orders = orders
        self._used = used
        self._one = asyncio.Lock()
        self._shared: set[str] = set()
        self._sitting: Sitting | None = None

    @property
    def offered(self) -> set[str]:
        """See :class:`~coordinator.arithmetic.Arithmetic`."""
        shared = self._now.saved.download
        return {ref.sha256 for ref in self._own.values()} | ({shared.sha256} if shared else set())

    def restore(self, algorithm: Algorithm, checkpoint: Checkpoint) -> Saved:
        """See :class:`~coordinator.arithmetic.Arithmetic`; the state itself stays where it is."""
        if checkpoint.whole:  # we made it, and aggregators will divide it
            return Saved(checkpoint, {}, self._vault.load(algorithm, checkpoint).download)
        download = read_manifest(self._depot.read(checkpoint.state)).download
        return Saved(checkpoint, {}, self._offer(download) if download else None)

    def begin(self, sitting: Sitting) -> None:
        """See :class:`~coordinator.arithmetic.Arithmetic`."""
        before, self._sitting = self._sitting, sitting
        self._given: dict[str, Given] = {}
        self._sharing: list[Future[None]] = []
        self._own: dict[str, BlobRef] = {}
        if before is None or (before.number, before.attempt) != (sitting.number, sitting.attempt):
            self._worker.submit(collect, self._depot, self._used())

    def fold(self, device: str, report: Report) -> None:
        """See :class:`~coordinator.arithmetic.Arithmetic`; the upload is only put where aggregators can read it."""
        if report.upload is None:
            return
        sha256 = report.upload.sha256
        scale = self._now.scale.get(device, 1.0)
        self._given[device] = Given(device, report.examples, report.steps, sha256, scale)
        self._sharing.append(self._worker.submit(self._share_upload, device, sha256))

    def open(self, secrets: Secrets) -> None:
        """See :class:`~coordinator.arithmetic.Arithmetic`: no such run gets here."""
        raise RunError("aggregators do not open masked sums", where=f"round {secrets.number}")

    def veil(self, key: bytes) -> None:  # noqa: ARG002  no noise here
        """See :class:`~coordinator.arithmetic.Arithmetic`: no such run gets here."""
        raise RunError("aggregators add no noise to sums", where="privacy")

    async def update(self, devices: tuple[str, ...], fleet: tuple[str, ...]) -> Saved:
        """See :class:`~coordinator.arithmetic.Arithmetic`."""
        sitting, given, sharing = self._now, self._given, tuple(self._sharing)
        if missing := set(devices) - given.keys():
            raise RunError(f"{len(missing)} of {len(devices)} uploads were not folded", where="aggregator")
        for future in sharing:
            await asyncio.wrap_future(future)
        grid = sitting.grid.top if sitting.grid is not None else None
        uploads = tuple(given[device] for device in sorted(devices))
        match await self._made(sitting, Update(uploads, fleet, sitting.last, grid)):
            case Updated(_, checkpoint, download) if checkpoint.round == sitting.number and not checkpoint.whole:
                offered = await self._work(self._offer, download) if download else None
                return Saved(checkpoint, {}, offered)
            case other:
                raise _unexpected(other)

    async def downloads(self, devices: Sequence[str]) -> Mapping[str, BlobRef]:
        """See :class:`~coordinator.arithmetic.Arithmetic`."""
        sitting, own = self._now, self._own
        if sitting.saved.download is not None:
            return dict.fromkeys(devices, sitting.saved.download)
        missing = tuple(device for device in devices if device not in own)
        if missing:
            match await self._made(sitting, Send(missing)):
                case Sent(_, made) if made.keys() == set(missing):
                    for device, sha256 in made.items():
                        own[device] = await self._work(self._offer, sha256)
                case other:
                    raise _unexpected(other)
        return {device: own[device] for device in devices}

    async def _made(self, sitting: Sitting, work: Update | Send) -> Outcome:
        """Have something done, after what was ordered before."""
        async with self._one:
            if sitting is not self._sitting:
                raise RunError("another attempt has begun", where="aggregator")
            config, bundle = self._row.config, self._row.bundle
            checkpoint = sitting.saved.checkpoint
            job = Job(self._row.id, sitting.number, sitting.attempt, bundle, config, checkpoint, work)
            digest = await self._work(self._share_job, job)
            async with self._orders.placed(digest) as answer:
                while True:
                    outcome = await answer()
                    try:
                        return await self._work(self._read, outcome, digest)
                    except (StoreError, CodecError) as error:  # anybody can say that it is done
                        log.warning("job %s is not done: %s", digest[:16], error)

    def _read(self, outcome: str, job: str) -> Outcome:
        return read_outcome(self._depot.read(outcome), job)

    def _offer(self, sha256: str) -> BlobRef:
        """Bring a download here, so that devices can fetch it."""
        return self._vault.offer(bytes(self._depot.read(sha256)))

    def _share_job(self, job: Job) -> str:
        """Put a job and what it starts from into the store; the job's digest."""
        if job.bundle not in self._shared:
            self._depot.keep(self._vault.offered.read(job.bundle))
        for sha256 in job.checkpoint.blobs - self._shared if job.checkpoint.whole else ():
            self._depot.keep(self._vault.private.read(sha256))
        self._shared = {job.bundle, *job.checkpoint.blobs}
        return self._depot.keep(pieces.encode(job))

    def _share_upload(self, device: str, sha256: str) -> None:
        try:
            data = self._vault.private.read(sha256)
        except StoreError as error:  # its loss costs an attempt, not the service
            raise CodecError(str(error), where=f"upload of {device}") from error
        self._depot.keep(data)

    @property
    def _now(self) -> Sitting:
        if self._sitting is None:
            raise RunError("no round was begun", where="aggregator")
        return self._sitting

    async def _work(self, function: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, function, *arguments)


def _unexpected(outcome: Outcome) -> RunError:
    """The error of an outcome that is not what was ordered."""
    if isinstance(outcome, Refused):
        return RunError(outcome.why, where="aggregator")
    return RunError(f"the aggregators gave {type(outcome).__name__} of something else", where="aggregator")
