"""The server's mathematics of a run: where uploads are folded, the state is updated and downloads are made.

:class:`Local` does it in this process, in one worker thread, in order, so that the event loop never waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from coordinator import updater
from coordinator.checkpoint import Saved, Vault
from coordinator.exact import Grid
from coordinator.journal import Checkpoint
from coordinator.optimisers import Server
from coordinator.privacy.release import Bounded, Release, blurred, public
from coordinator.reduction import Reduction, Upload
from coordinator.robust import Clip, Rule
from coordinator.secagg.reduction import Masked
from coordinator.sums import Exactly, Form
from coordinator.transfer import room_for
from edgepfl import codec
from edgepfl.algorithms import Algorithm, Cohort
from edgepfl.errors import CodecError, StoreError
from edgepfl.plan import Plan, Role
from edgepfl.secagg.server import Server as Secrets
from edgepfl.secagg.vector import Layout
from edgepfl.tree import Trees
from edgepfl.wire import BlobRef, Report

T = TypeVar("T")


@dataclass(frozen=True)
class Sitting:
    """One attempt at one round, as far as the mathematics has to do with it.

    Attributes:
        number: of the round.
        attempt: at the round.
        algorithm: that of the round.
        saved: the state that it starts from.
        cohort: whoever may report.
        last: whether it is the last round that trains.
        rule: robust, by which means are made; None for the weighted mean.
        server: the optimiser that turns the mean change into a step; None for the change itself.
        grid: where exact sums lie, which have the same bits however the uploads are grouped; None for sums in order.
        layout: of masked uploads; None where none is masked.
        release: how sums are made private; None where they are not.
        scale: what the means of late reports are multiplied by, by device; 1 for whoever is not in it.
    """

    number: int
    attempt: int
    algorithm: Algorithm
    saved: Saved
    cohort: tuple[str, ...]
    last: bool = False
    grid: Grid | None = None
    rule: Rule | Clip | None = None
    server: Server | None = None
    scale: Mapping[str, float] = field(default_factory=dict)
    layout: Layout | None = None
    release: Release | None = None


class Arithmetic(Protocol):
    """Whoever does the mathematics of one run.  One sitting at a time."""

    @property
    def offered(self) -> set[str]:
        """Digests of the downloads that a device of the sitting may still fetch."""
        ...

    def restore(self, algorithm: Algorithm, checkpoint: Checkpoint) -> Saved:
        """A stored state, after a start or when an update failed half-way.

        Args:
            algorithm: of the run.
            checkpoint: where it is.

        Raises:
            StoreError: it is missing or damaged.
            CodecError: it is not what the checkpoint says.
        """
        ...

    def begin(self, sitting: Sitting) -> None:
        """Forget the last sitting, and all that was folded."""
        ...

    def fold(self, device: str, report: Report) -> None:
        """A screened upload counts; its blob is in the vault."""
        ...

    def open(self, secrets: Secrets) -> None:
        """Take what opens the sum of masked uploads, before :meth:`update`."""
        ...

    def veil(self, key: bytes) -> None:
        """Take the key of the noise of a private sum, before :meth:`update`."""
        ...

    async def update(self, devices: tuple[str, ...], fleet: tuple[str, ...]) -> Saved:
        """The state after the sitting, stored.

        Args:
            devices: whose reports count; each was folded.
            fleet: every device that the run knows.

        Raises:
            EdgepflError: it cannot be made; of these, StoreError means that the storage failed.
        """
        ...

    async def downloads(self, devices: Sequence[str]) -> Mapping[str, BlobRef]:
        """What each of these devices is to fetch; the same for all where the state has one download.

        Raises:
            EdgepflError: it cannot be made.
        """
        ...


class Local:
    """The mathematics in this process.

    Args:
        vault: where the blobs are.
        plan: of the run.
        worker: one thread.
        device: where the tensors are ("cpu", "cuda").
        run: its id.
    """

    def __init__(self, vault: Vault, plan: Plan, worker: Executor, device: str = "cpu", run: str = "") -> None:
        self._run = run
        self._vault = vault
        self._plan = plan
        self._worker = worker
        self._device = device
        self._declared = {name: slot.tensors for name, slot in plan.by_role(Role.UP).items()}

    @property
    def offered(self) -> set[str]:
        """See :class:`Arithmetic`."""
        shared = self._sitting.saved.download
        return {ref.sha256 for ref in self._own.values()} | ({shared.sha256} if shared else set())

    def restore(self, algorithm: Algorithm, checkpoint: Checkpoint) -> Saved:
        """See :class:`Arithmetic`."""
        if not checkpoint.whole:
            raise StoreError(
                "aggregators hold the state",
                where="checkpoint",
                remedy="Put [aggregator] back into the coordinator's settings until the run has ended",
            )
        return self._vault.load(algorithm, checkpoint, self._device)

    def begin(self, sitting: Sitting) -> None:
        """See :class:`Arithmetic`."""
        self._sitting = sitting
        self._reduction = self._empty(sitting)
        layout = sitting.layout
        sent = self._plan.by_role(Role.UP)
        self._masked = None if layout is None else Masked(layout, sent, self._run, self._device)
        self._folds: list[Future[None]] = []
        self._own: dict[str, BlobRef] = {}
        self._key = b""

    def fold(self, device: str, report: Report) -> None:
        """See :class:`Arithmetic`."""
        if report.upload is None:
            return
        sha256 = report.upload.sha256
        if (masked := self._masked) is not None:
            self._folds.append(self._worker.submit(lambda: masked.offer(report, self._read(device, sha256))))
            return

        def load() -> Trees:
            return self._decoded(device, sha256)

        if report.members and isinstance(self._reduction, Exactly):
            self._folds.append(self._worker.submit(self._merge, self._reduction, report, sha256))
        else:
            upload = Upload(report.examples, report.steps, load, self._sitting.scale.get(device, 1.0))
            self._folds.append(self._worker.submit(self._reduction.offer, device, upload))

    def open(self, secrets: Secrets) -> None:
        """See :class:`Arithmetic`."""
        if self._masked is not None:
            self._masked.open(secrets)

    def veil(self, key: bytes) -> None:
        """See :class:`Arithmetic`."""
        self._key = key

    async def update(self, devices: tuple[str, ...], fleet: tuple[str, ...]) -> Saved:
        """See :class:`Arithmetic`."""
        sitting, folds = self._sitting, tuple(self._folds)
        reduction = self._reduction if self._masked is None else self._masked

        def updated() -> Saved:
            for fold in folds:
                fold.result()  # all are done, and one may have failed
            got = reduction.close(devices, number=sitting.number, fleet=fleet, statistics=self._plan.statistics)
            got, memory = self._blurred(got)
            state = public(sitting.saved.state)
            after = updater.next_state(sitting.algorithm, state, got, last=sitting.last, server=sitting.server)
            return self._vault.save(sitting.algorithm, sitting.number, {**after, **memory}, sitting.saved)

        return await self._work(updated)

    async def downloads(self, devices: Sequence[str]) -> Mapping[str, BlobRef]:
        """See :class:`Arithmetic`."""
        sitting, own = self._sitting, self._own
        if sitting.saved.download is not None:
            return dict.fromkeys(devices, sitting.saved.download)
        missing = [device for device in devices if device not in own]
        if missing:
            own.update(await self._work(self._vault.downloads, sitting.algorithm, sitting.saved.state, missing))
        return {device: own[device] for device in devices}

    def _blurred(self, got: Cohort) -> tuple[Cohort, Trees]:
        """What the update may see of a private round, and what is to be remembered."""
        release, folded = self._sitting.release, self._reduction
        if release is None:
            return got, {}
        if self._masked is not None:
            sums = {slot: tree.map(lambda x: x.double() * len(got.devices)) for slot, tree in got.total.items()}
            return blurred(release, got, sums, 0, self._key)
        return blurred(release, got, got.total, folded.below if isinstance(folded, Bounded) else 0, self._key)

    def _empty(self, sitting: Sitting) -> Reduction:
        """What the sitting's uploads are folded into."""
        if sitting.release is not None:
            sent = self._plan.by_role(Role.UP)
            return Bounded(sent, sitting.cohort, sitting.release, self._device, sitting.algorithm)
        if sitting.grid is not None:
            form = Form(self._plan, sitting.algorithm, sitting.grid)
            return Exactly(form, self._plan.by_role(Role.UP), sitting.cohort, self._device)
        return updater.reduction(sitting.algorithm, self._plan, sitting.cohort, self._device, sitting.rule)

    def _merge(self, reduction: Exactly, report: Report, sha256: str) -> None:
        """Add the sums of a hub."""
        reduction.merge(report.device, report.members, self._read(report.device, sha256))

    def _decoded(self, device: str, sha256: str) -> Trees:
        """An upload that was screened when it came."""
        return codec.decode(self._read(device, sha256), self._declared, where=f"upload of {device}")

    def _read(self, device: str, sha256: str) -> memoryview:
        try:
            return self._vault.private.read_into(sha256, room_for(self._device))
        except StoreError as error:  # its loss costs an attempt, not the service
            raise CodecError(str(error), where=f"upload of {device}") from error

    async def _work(self, function: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, function, *arguments)
