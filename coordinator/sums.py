"""Sums over some of a round's devices, which add up to the sums over all of them, bit for bit.

A hub sends the bins of :mod:`coordinator.exact` for every slot that is summed: of the UP slots, and of what the
algorithm rebuilds from each upload.  As bytes they are three int64 trees a slot, ``SLOT.0`` to ``SLOT.2``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch

from coordinator.exact import BINS, Exact, Grid
from coordinator.reduction import Reduction, Upload
from edgepfl import codec
from edgepfl.algorithms import Algorithm, Cohort
from edgepfl.errors import CodecError, RunError
from edgepfl.plan import Plan, Reduce, Role, SlotPlan, TensorSpec, Weighting
from edgepfl.tree import Tree
from edgepfl.wire import Part, Report

_SLACK = 1 + 1e-6  # of a norm that is summed up in float64


class Form:
    """What the sums of a round look like.

    Args:
        plan: of the run.
        algorithm: that of the round, which may rebuild further slots from an upload.
        grid: where the bins lie.
    """

    def __init__(self, plan: Plan, algorithm: Algorithm, grid: Grid) -> None:
        sent = plan.by_role(Role.UP)
        self.grid = grid
        self.algorithm = algorithm
        self.sent = frozenset(sent)
        self.reduce = {**{name: slot.reduce for name, slot in sent.items()}, **algorithm.rebuilt}
        self.specs = {name: dict(slot.tensors) for name, slot in sent.items()} | _rebuilt(plan, algorithm)

    @property
    def most_bytes(self) -> int:
        """The most that the sums have as bytes."""
        return codec.HEADER_LIMIT + sum(spec.nbytes for specs in self._declared().values() for spec in specs.values())

    def empty(self, device: str = "cpu") -> dict[str, Exact]:
        """Nothing summed yet."""
        return {name: Exact.zeros(specs, self.grid, device) for name, specs in self.specs.items()}

    def weight_of(self, slot: str, examples: int) -> float:
        """The weight of one upload in a slot's sum."""
        averaged = self.reduce[slot] is Reduce.MEAN
        uniform = not averaged or self.algorithm.weighting is Weighting.UNIFORM
        return 1.0 if uniform else float(examples)

    def encode(self, sums: Mapping[str, Exact]) -> bytes:
        """The bytes of sums."""
        bins = {name: exact.bins() for name, exact in sums.items()}
        return codec.encode(
            {
                f"{name}.{k}": tree.map(lambda part: part.cpu().numpy())
                for name, trees in bins.items()
                for k, tree in enumerate(trees)
            }
        )

    def decode(self, data: codec.Buffer, count: int, *, where: str, device: str = "cpu") -> dict[str, Exact]:
        """The sums over ``count`` devices.

        Raises:
            CodecError: not the declared tensors, or no sums of so many.
        """
        trees = codec.decode(data, self._declared(), where=where)
        bins = {
            name: tree.map(lambda part: torch.from_numpy(np.array(part)).to(device)) for name, tree in trees.items()
        }
        try:
            return {
                name: Exact.from_bins([bins[f"{name}.{k}"] for k in range(BINS)], self.grid, count)
                for name in self.specs
            }
        except RunError as error:
            raise CodecError(error.what, where=where) from error

    def _declared(self) -> dict[str, dict[str, TensorSpec]]:
        return {
            f"{name}.{k}": {tensor: TensorSpec(spec.shape, "int64") for tensor, spec in specs.items()}
            for name, specs in self.specs.items()
            for k in range(BINS)
        }


def screen(data: bytes, form: Form, report: Report, *, max_norm: float) -> None:
    """Refuse sums that no uploads of the report's members can have.

    Args:
        data: the bytes.
        form: what was declared.
        report: of the hub, checked.
        max_norm: the greatest Euclidean norm that a slot of one upload may have: a sum has no more than the sum of the
            weights times that.

    Raises:
        CodecError: with the reason.
    """
    where = f"sums of {report.device}"
    for slot, exact in form.decode(data, len(report.members), where=where).items():
        weight = sum(form.weight_of(slot, part.examples) for part in report.members)
        total = exact.total(weight)
        norm = float(total.dot(total)) ** 0.5
        if slot in form.sent and not norm <= max_norm * _SLACK:
            raise CodecError(f"the mean {slot} has norm {norm:.3g}, at most {max_norm:g} is allowed", where=where)


class Exactly(Reduction):
    """A reduction to which hubs add their sums, and that can be added to another's.

    Args:
        form: of the sums.
        slots: the plan's UP slots.
        cohort: everyone who may still report.
        device: where the sums live.
    """

    def __init__(self, form: Form, slots: Mapping[str, SlotPlan], cohort: Iterable[str], device: str = "cpu") -> None:
        algorithm = form.algorithm
        super().__init__(slots, cohort, algorithm.weighting, device, algorithm, exact=form.grid)
        self._form = form
        self._where = device
        self._below: dict[str, tuple[str, ...]] = {}

    def merge(self, hub: str, members: Sequence[Part], data: codec.Buffer) -> None:
        """Take the sums of a hub, screened; its second are ignored.

        Raises:
            CodecError: they are none.
        """
        if hub in self._offered:
            return
        self._offered.add(hub)
        for name, exact in self._form.decode(data, len(members), where=f"sums of {hub}", device=self._where).items():
            own = self._exact_sum(name)
            own.merge(exact)
        uniform = self._weighting is Weighting.UNIFORM
        for part in members:
            upload = Upload(part.examples, part.steps, dict)  # its tensors are in the sums
            self._folded.append((f"{hub}/{part.device}", upload, 1.0 if uniform else float(part.examples)))
        self._below[hub] = tuple(f"{hub}/{part.device}" for part in members)

    def encoded(self, devices: Sequence[str]) -> bytes:
        """The sums over ``devices``, for a parent.

        Raises:
            RunError: see :meth:`close`.
        """
        self.close(devices)
        return self._form.encode({name: self._exact_sum(name) for name in self._form.specs})

    def close(
        self,
        devices: Sequence[str],
        *,
        number: int = 1,
        fleet: Iterable[str] = (),
        statistics: tuple[str, ...] = (),
    ) -> Cohort:
        """See :meth:`Reduction.close`; a hub among ``devices`` stands for its members."""
        names = [name for device in devices for name in self._below.get(device, (device,))]
        return super().close(names, number=number, fleet=fleet, statistics=statistics)

    def _exact_sum(self, name: str) -> Exact:
        """The sum of a slot, begun if it is not there."""
        found = self._sums.get(name)
        if not isinstance(found, Exact):
            found = self._sums[name] = Exact.zeros(self._form.specs[name], self._form.grid, self._where)
        return found


def _rebuilt(plan: Plan, algorithm: Algorithm) -> dict[str, dict[str, TensorSpec]]:
    """The tensors of what the algorithm rebuilds, found by rebuilding it from nothing."""
    if not algorithm.rebuilt:
        return {}
    nothing = {
        name: Tree({tensor: torch.zeros(spec.shape, dtype=torch.float64) for tensor, spec in slot.tensors.items()})
        for name, slot in plan.by_role(Role.UP).items()
    }
    found = algorithm.rebuild(nothing, 1)
    return {
        name: {tensor: TensorSpec(tuple(value.shape)) for tensor, value in found[name].items()}
        for name in algorithm.rebuilt
    }
