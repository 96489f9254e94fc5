"""What a hub makes of its devices' uploads."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from concurrent.futures import Executor

import msgspec
import torch

from coordinator import updater
from coordinator.arithmetic import Local, Sitting
from coordinator.checkpoint import Saved, Vault
from coordinator.hub.levels import Hub, Nested
from coordinator.journal import Checkpoint
from coordinator.sums import Exactly, Form
from edgepfl import codec
from edgepfl.algorithms import Algorithm
from edgepfl.bus.blobs import BlobStore
from edgepfl.errors import RunError
from edgepfl.plan import Plan, Role
from edgepfl.wire import BlobRef, Part, Task

_CENTRE, _KEPT = "centre", "kept"


class Upward(Local):
    """Exact sums of the uploads, which the parent adds to its own.

    Args:
        vault: where the devices' blobs are.
        plan: of the run.
        worker: one thread.
        upward: where the parent fetches sums.
    """

    def __init__(self, vault: Vault, plan: Plan, worker: Executor, upward: BlobStore) -> None:
        super().__init__(vault, plan, worker)
        self._upward = upward

    def restore(self, algorithm: Algorithm, checkpoint: Checkpoint) -> Saved:  # noqa: ARG002  the parent has the state
        """See :class:`Arithmetic`."""
        return Saved(checkpoint, {}, None)

    def started(self, algorithm: Algorithm, task: Task, before: Saved) -> Saved:  # noqa: ARG002  likewise
        """What the devices begin an errand with.

        Args:
            algorithm: that of its rounds.
            task: the parent's.
            before: what the last errand that counts left.

        Raises:
            EdgepflError: the parent's download cannot be used.
        """
        return dataclasses.replace(before, download=task.download)

    async def report(
        self, devices: tuple[str, ...], parts: Sequence[Part], *, trained: bool
    ) -> tuple[BlobRef | None, Saved]:
        """What the parent gets for its errand, stored, and what holds here once it has accepted it.

        Args:
            devices: whose reports count; each was folded.
            parts: whom the parent's report names.
            trained: whether there are uploads.

        Raises:
            EdgepflError: it cannot be made; of these, StoreError means that the storage failed.
        """
        sitting = self._sitting
        unchanged = msgspec.structs.replace(sitting.saved.checkpoint, round=sitting.number)
        made = dataclasses.replace(sitting.saved, checkpoint=unchanged)
        if not trained:
            return None, made
        ref, moved = await self._work(self._summed, devices, parts)
        return ref, moved or made

    def _summed(self, devices: tuple[str, ...], parts: Sequence[Part]) -> tuple[BlobRef, Saved | None]:  # noqa: ARG002  its names are the devices'
        self._wait()
        return self._offer(self._exactly.encoded(devices)), None

    def _wait(self) -> None:
        for fold in self._folds:
            fold.result()  # all are done, and one may have failed

    def _offer(self, data: bytes) -> BlobRef:
        ref = self._upward.put(data)
        self._upward.keep_only({ref.sha256})
        return ref

    def _empty(self, sitting: Sitting) -> Exactly:
        if sitting.grid is None:
            raise RunError("the parent does not say where sums lie", where="hub", remedy="Update the parent")
        self._form = Form(self._plan, sitting.algorithm, sitting.grid)
        self._exactly = Exactly(self._form, self._plan.by_role(Role.UP), sitting.cohort)
        return self._exactly


class Modelled(Upward):
    """A model of the hub's own, which its devices move for some rounds: :mod:`coordinator.hub.levels`.

    Its state is the model in the DOWN slot's place, ``centre``, the parent's in this errand, and in the nested form
    ``kept``, its own after the last errand that counted.

    Args:
        vault: where the devices' blobs are.
        plan: of the run.
        worker: one thread.
        upward: where the parent fetches sums.
        rounds: of its devices in one of the parent's.
        nested: the nested form's hyperparameters; None is the tree.
    """

    def __init__(
        self, vault: Vault, plan: Plan, worker: Executor, upward: BlobStore, *, rounds: int, nested: Nested | None
    ) -> None:
        super().__init__(vault, plan, worker, upward)
        self._rounds = rounds
        self._nested = nested
        self._of_parent = ""

    @property
    def offered(self) -> set[str]:
        """See :class:`Arithmetic`; the parent's model too, from which an errand is begun again."""
        return super().offered | {self._of_parent}

    def restore(self, algorithm: Algorithm, checkpoint: Checkpoint) -> Saved:
        """See :class:`Arithmetic`."""
        return self._vault.load(algorithm, checkpoint) if checkpoint.whole else Saved(checkpoint, {}, None)

    def started(self, algorithm: Algorithm, task: Task, before: Saved) -> Saved:
        """See :class:`Upward`."""
        down, _ = Hub(algorithm, self._rounds, self._nested).slots
        self._of_parent = task.download.sha256
        if task.steps == 0:  # the parent's model is evaluated, and the hub's stays
            return dataclasses.replace(before, download=task.download)
        sent = self._plan.slots[down].tensors
        w = codec.decode(self._vault.offered.read(task.download.sha256), {down: sent}, where="the parent's model")[down]
        centre = w.map(lambda array: torch.from_numpy(array.copy()))
        own = before.state.get(_KEPT, centre) if self._nested is not None else centre
        state = {**before.state, down: own, _CENTRE: centre}
        stored = {slot: where for slot, where in before.shard.items() if slot == _KEPT}  # the others are new
        download = self._vault.download(algorithm, state, "")
        return dataclasses.replace(before, state=state, shard=stored, download=download)

    async def update(self, devices: tuple[str, ...], fleet: tuple[str, ...]) -> Saved:  # noqa: ARG002  no method here divides by the fleet
        """See :class:`Arithmetic`: the hub's model after a round that is not an errand's last."""
        return await self._work(self._moved, devices)

    def _moved(self, devices: tuple[str, ...]) -> Saved:
        self._wait()
        sitting = self._sitting
        hub = Hub(sitting.algorithm, self._rounds, self._nested)
        down, _ = hub.slots
        u, w = (updater.numpy_of(sitting.saved.state)[name] for name in (down, _CENTRE))
        moved = hub.moved(u, w, self._exactly.close(devices, number=sitting.number, statistics=self._plan.statistics))
        state = {**sitting.saved.state, down: moved.map(torch.from_numpy)}
        return self._vault.save(sitting.algorithm, sitting.number, state, sitting.saved)

    def _summed(self, devices: tuple[str, ...], parts: Sequence[Part]) -> tuple[BlobRef, Saved | None]:
        sitting, after = self._sitting, self._moved(devices)
        hub = Hub(sitting.algorithm, self._rounds, self._nested)
        down, up = hub.slots
        sums = self._form.empty()
        state = updater.numpy_of(after.state)
        change = hub.change(state[down], state[_CENTRE]).map(torch.from_numpy)
        sums[up].add(change, sum(self._form.weight_of(up, part.examples) for part in parts))
        if self._nested is not None:
            kept = {**after.state, _KEPT: after.state[down]}
            after = self._vault.save(sitting.algorithm, sitting.number, kept, after)
        return self._offer(self._form.encode(sums)), after
