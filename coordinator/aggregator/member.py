"""The work of one rank."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from coordinator import pieces, updater
from coordinator.aggregator import job as jobs
from coordinator.aggregator.crew import Crew
from coordinator.aggregator.job import Given, Job, Outcome, Refused, Send, Sent, Update, Updated
from coordinator.aggregator.shards import cut_slots, divided, flattened, joined, placed, places
from coordinator.checkpoint import offerable, state_in
from coordinator.exact import Grid
from coordinator.journal import Checkpoint
from coordinator.pieces import Manifest, Shard
from coordinator.reduction import Upload
from coordinator.robust import rule_of
from coordinator.slices import columns_of
from coordinator.storage.depot import Depot
from edgepfl import codec
from edgepfl.algorithms import Algorithm, Cohort
from edgepfl.bundle import Bundle, unpack
from edgepfl.errors import CodecError, RunError, StoreError
from edgepfl.plan import Plan, Role
from edgepfl.tree import Tree, Trees

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Held:
    """This rank's shard of a state that is stored.

    Attributes:
        digest: of the checkpoint's own blob.
        state: torch, on this rank's device.
        shard: where it is stored; None where a whole state is.
    """

    digest: str
    state: Trees
    shard: Shard | None


class Member:
    """One rank: keeps its shard of the state from job to job.

    Args:
        crew: this rank and the others.
        depot: the store that all ranks and the coordinator share.
        device: where this rank calculates.
    """

    def __init__(self, crew: Crew, depot: Depot, device: str = "cpu") -> None:
        self._crew = crew
        self._depot = depot
        self._device = device
        self._held: _Held | None = None
        self._bundle: tuple[str, Bundle] | None = None

    def do(self, digest: str, data: bytes) -> str:
        """Do a job, as every other rank does at the same time.

        Args:
            digest: of its blob.
            data: the blob.

        Returns:
            The digest of its outcome at rank 0; empty elsewhere, and where a store failed: then it may be tried again.

        Raises:
            Scattered: another rank is gone.
        """
        try:
            outcome = self._tried(digest, data)
            return self._depot.keep(pieces.encode(outcome)) if self._crew.rank == 0 and outcome is not None else ""
        except StoreError as error:
            log.error("job %s cannot be done now: %s", digest[:16], error)  # noqa: TRY400  no fault of ours to trace
            return ""

    def _tried(self, digest: str, data: bytes) -> Outcome | None:
        try:
            return self._crew.together(partial(self._outcome, digest, data))
        except RunError as error:
            log.warning("job %s cannot be done: %s", digest[:16], error)
            return Refused(digest, str(error)[: jobs.ERROR_LIMIT])

    def _outcome(self, digest: str, data: bytes) -> Outcome | None:
        job = jobs.read_job(data)
        bundle = self._opened(job.bundle)
        algorithm = updater.of_round(
            updater.algorithm_of(bundle.plan, job.config.hyper),
            bundle.plan,
            number=max(job.number, 1),
            seed=job.config.seed,
            decay=job.config.decay,
        )
        before = self._state(job.checkpoint, algorithm, bundle)
        match job.work:
            case Update():
                return self._update(digest, job, job.work, algorithm, bundle.plan, before)
            case Send(devices):
                sent = self._downloads(algorithm, bundle.plan, before.state, devices)
                return Sent(digest, sent) if self._crew.rank == 0 else None

    def _update(
        self, digest: str, job: Job, work: Update, algorithm: Algorithm, plan: Plan, before: _Held
    ) -> Outcome | None:
        got = self._folded(job, work, algorithm, plan)
        self._held = None  # an algorithm may change it in place
        server = updater.server_of(algorithm, plan, job.config.server_optimizer)
        after = updater.next_state(algorithm, before.state, got, last=work.last, server=server)
        shard = pieces.put(self._depot, after, (before.state, before.shard) if before.shard is not None else None)
        shards = self._crew.collect(pieces.encode(shard))
        download = None if updater.addressed(algorithm) else self._downloads(algorithm, plan, after, ("",)).get("")
        manifest = Manifest(tuple(map(jobs.read_shard, shards)), download) if shards else None
        stored = self._depot.keep(pieces.encode(manifest)) if manifest else ""
        state = self._crew.told(stored.encode()).decode()
        self._held = _Held(state, after, shard)
        if manifest is None:
            return None
        return Updated(digest, Checkpoint(job.number, state, manifest.parts, whole=False), download)

    def _folded(self, job: Job, work: Update, algorithm: Algorithm, plan: Plan) -> Cohort:
        """What the round brought in, of this rank's columns."""
        devices = tuple(given.device for given in work.uploads)
        reduction = updater.reduction(
            algorithm,
            plan,
            devices,
            self._device,
            rule_of(job.config.robust),
            exact=Grid(work.grid) if work.grid is not None else None,
            across=self._crew.across,
        )
        for given in work.uploads:
            reduction.offer(given.device, self._upload(given, algorithm, plan))
        return reduction.close(devices, number=job.number, fleet=work.fleet, statistics=plan.statistics)

    def _upload(self, given: Given, algorithm: Algorithm, plan: Plan) -> Upload:
        expected = {name: slot.tensors for name, slot in plan.by_role(Role.UP).items()}

        def load() -> Trees:
            try:
                return columns_of(
                    self._depot,
                    given.upload,
                    expected,
                    cut_slots(algorithm),
                    rank=self._crew.rank,
                    ranks=self._crew.ranks,
                    where=f"upload of {given.device}",
                )
            except StoreError as error:  # its loss costs an attempt: trying again would not bring it back
                raise CodecError(str(error), where=f"upload of {given.device}") from error

        return Upload(given.examples, given.steps, load, given.scale)

    def _downloads(self, algorithm: Algorithm, plan: Plan, state: Trees, devices: Sequence[str]) -> dict[str, str]:
        """The digests of some devices' downloads at rank 0, stored; nothing elsewhere."""
        slots, made = cut_slots(algorithm), {}
        for device, own in updater.each_downloads(algorithm, state, devices).items():
            columns = self._crew.collect(flattened(own, plan, slots, self._crew.rank, self._crew.ranks))
            if columns:
                made[device] = self._depot.keep(offerable(codec.encode(joined(own, columns, plan, slots))))
        return made

    # The state before.

    def _state(self, checkpoint: Checkpoint, algorithm: Algorithm, bundle: Bundle) -> _Held:
        if self._held is None or self._held.digest != checkpoint.state:
            self._held = None  # so that two states are never in memory
            self._held = self._loaded(checkpoint, algorithm, bundle)
        return self._held

    def _loaded(self, checkpoint: Checkpoint, algorithm: Algorithm, bundle: Bundle) -> _Held:
        rank, ranks = self._crew.rank, self._crew.ranks
        if checkpoint.whole:
            whole = state_in(self._depot, checkpoint)
            return _Held(checkpoint.state, self._here(self._cut(whole, algorithm, bundle)), None)
        shards = jobs.read_manifest(self._depot.read(checkpoint.state)).shards
        if len(shards) == ranks:
            return _Held(checkpoint.state, pieces.take(self._depot, shards[rank], self._device), shards[rank])
        log.info("the state of %d ranks is divided among %d", len(shards), ranks)
        own = divided(self._depot, shards, places(algorithm, bundle.plan), rank, ranks)
        return _Held(checkpoint.state, self._here(own), None)

    def _cut(self, whole: Trees, algorithm: Algorithm, bundle: Bundle) -> Trees:
        """This rank's shard of a state that the coordinator made; its own tensors, not views of the whole."""
        found, rank, ranks = places(algorithm, bundle.plan), self._crew.rank, self._crew.ranks
        return {
            slot: Tree(
                {name: placed(found, (slot, name), [tensor], rank, ranks).clone() for name, tensor in tree.items()}
            )
            for slot, tree in whole.items()
        }

    def _opened(self, digest: str) -> Bundle:
        if self._bundle is None or self._bundle[0] != digest:
            self._bundle = digest, unpack(bytes(self._depot.read(digest)), where="bundle", golden=False)
        return self._bundle[1]

    def _here(self, state: Trees) -> Trees:
        return {slot: tree.map(lambda tensor: tensor.to(self._device)) for slot, tree in state.items()}
