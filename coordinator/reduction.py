"""Folding uploads: each one once, when its turn comes, in O(d) memory.

MEAN and SUM slots, and what the algorithm rebuilds from an upload, are accumulated in float64.  Floating-point addition
is not associative, so uploads are folded in the order of the devices' names: at once while every earlier member of the
cohort has been folded, at close otherwise.  What must wait stays on disk.  The same set of uploads gives the same bits
in whatever order they arrive.  :mod:`coordinator.exact` adds up without rounding instead, which needs no order and
gives the same bits for any grouping, at a multiple of the time: see docs/bench.md.

Tensors are added as they lie in the received bytes.  A weight times a float32 number is exact in float64 up to a
weight of 2^29.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from coordinator.exact import Exact, Grid
from coordinator.robust import Clip, Rule
from coordinator.transfer import Rows, Transfer
from edgepfl.algorithms import Across, Algorithm, Cohort, whole
from edgepfl.errors import RunError
from edgepfl.plan import Reduce, SlotPlan, Weighting
from edgepfl.tree import Tree, Trees

_BLOCK = 1 << 18  # numbers converted at a time: 2 MiB


@dataclass(frozen=True)
class Upload:
    """A screened upload that waits to be folded.

    Attributes:
        examples: how many the device trains on.
        steps: minibatch steps it took.
        load: reads its UP slots, as NumPy trees.
        scale: what its MEAN slots are multiplied by, as if the device had sent them so: 1 but for late reports
            (:mod:`coordinator.staleness`).  Its share in the divisor of the mean stays as it is.
    """

    examples: int
    steps: int
    load: Callable[[], Trees]
    scale: float = 1.0


class Sum(Protocol):
    """What trees are added to."""

    def add(self, tree: Tree, weight: float = 1.0) -> None:
        """Add ``weight`` times a tree."""
        ...

    def total(self, weight: float = 1.0) -> Tree:
        """The sum over ``weight``, float64."""
        ...


class InOrder:
    """A sum in float64 whose bits depend on the order in which trees are added.

    Args:
        like: a tree of the same shapes, on the device where the sum is to be.
        scratch: float64 numbers to convert into, so many at a time; None where the device adds float32 to float64
            without a copy, as a GPU does.
    """

    def __init__(self, like: Tree, scratch: Tensor | None = None) -> None:
        self._sum = like.map(lambda x: torch.zeros_like(x, dtype=torch.float64))
        self._scratch = scratch

    def add(self, tree: Tree, weight: float = 1.0) -> None:
        """See :class:`Sum`."""
        self._sum.zip(lambda total, x: self._add(total, x, weight), tree)

    def _add(self, total: Tensor, x: Tensor, weight: float) -> Tensor:
        if self._scratch is None or x.dtype == torch.float64:
            return total.add_(x, alpha=weight)
        flat, size = total.view(-1), len(self._scratch)
        for start in range(0, x.numel(), size):
            block = x.reshape(-1)[start : start + size]
            flat[start : start + size].add_(self._scratch[: len(block)].copy_(block), alpha=weight)
        return total

    def total(self, weight: float = 1.0) -> Tree:
        """See :class:`Sum`."""
        return self._sum / weight


class Reduction:
    """The one mutable thing of a round: what has been folded so far.

    Args:
        slots: the plan's UP slots.
        cohort: everyone who may still report.
        weighting: of MEAN slots.
        device: where the accumulators live ("cpu", "cuda").
        algorithm: that of the round, which may rebuild further slots from an upload.
        exact: the grid of exact sums, which take each upload when it comes; None folds in the devices' order.
        rule: how MEAN slots are combined in place of their mean: a round keeps all uploads of them; or how each upload
            of them is clipped.
        across: makes sums over columns whole where the server is sharded.
    """

    def __init__(
        self,
        slots: Mapping[str, SlotPlan],
        cohort: Iterable[str],
        weighting: Weighting,
        device: str = "cpu",
        algorithm: Algorithm | None = None,
        *,
        exact: Grid | None = None,
        rule: Rule | Clip | None = None,
        across: Across = whole,
    ) -> None:
        sent = {name: slot.reduce for name, slot in slots.items()}
        self._algorithm = algorithm
        self._reduce = {**sent, **algorithm.rebuilt} if algorithm is not None else sent
        self._order = sorted(cohort)
        self._weighting = weighting
        self._transfer = Transfer(device)
        self._scratch = (
            None if torch.device(device).type == "cuda" else torch.empty(_BLOCK, dtype=torch.float64, device=device)
        )
        self._exact, self._rule, self._across = exact, rule, across
        self._offered: set[str] = set()
        self._waiting: dict[str, Upload] = {}
        self._folded: list[tuple[str, Upload, float]] = []
        self._next = 0
        self._sums: dict[str, Sum] = {}
        self._rows: dict[str, Rows] = {}
        self._vectors = Rows(len(self._order))
        self._shapes: dict[str, dict[str, torch.Size]] = {}

    def offer(self, device: str, upload: Upload) -> None:
        """Take an upload and fold those whose turn it is; a device's second is ignored."""
        if device in self._offered:
            return
        self._offered.add(device)
        self._waiting[device] = upload
        if self._exact is not None:
            self._fold(device)
            return
        while self._next < len(self._order) and self._order[self._next] in self._waiting:
            self._fold(self._order[self._next])
            self._next += 1

    def close(
        self,
        devices: Sequence[str],
        *,
        number: int = 1,
        fleet: Iterable[str] = (),
        statistics: tuple[str, ...] = (),
    ) -> Cohort:
        """Fold what waits and give the result over ``devices``, which must all have been offered.

        Args:
            devices: whose reports count.
            number: of the round.
            fleet: every other device that the run knows.
            statistics: the running statistics among the model's tensors.

        Raises:
            RunError: an upload is missing, one was folded that is not to count, or they are too few for the rule.
        """
        for device in sorted(self._waiting.keys() & set(devices)):
            self._fold(device)
        self._transfer.wait()
        order = sorted(range(len(self._folded)), key=lambda place: self._folded[place][0])
        folded = [self._folded[place] for place in order]
        names = tuple(name for name, _, _ in folded)
        if names != tuple(sorted(devices)):
            raise RunError(f"folded {len(names)} uploads, and {len(devices)} reports count", where="reduction")
        weights = [weight for _, _, weight in folded]
        return Cohort(
            devices=names,
            examples=tuple(upload.examples for _, upload, _ in folded),
            steps=tuple(upload.steps for _, upload, _ in folded),
            total={**self._totals(sum(weights)), **self._combined(order, weights)},
            stack={name: rows.taken(order) for name, rows in self._rows.items()},
            number=number,
            fleet=tuple(sorted({*fleet, *names})),
            statistics=statistics,
            across=self._across,
        )

    def _fold(self, device: str) -> None:
        upload = self._waiting.pop(device)
        weight = 1.0 if self._weighting is Weighting.UNIFORM else float(upload.examples)
        trees = self._trees(upload)
        means = {name: trees[name] for name, reduce in sorted(self._reduce.items()) if reduce is Reduce.MEAN}
        clip = self._rule(means, self._across) if isinstance(self._rule, Clip) else 1.0
        for name, reduce in self._reduce.items():
            match reduce:
                case Reduce.STACK:
                    self._rows.setdefault(name, Rows(len(self._order))).put(trees[name])
                case Reduce.MEAN if not isinstance(self._rule, Rule):
                    self._sum_of(name, trees[name]).add(trees[name], weight * clip * upload.scale)
                case Reduce.SUM:
                    self._sum_of(name, trees[name]).add(trees[name])
        if isinstance(self._rule, Rule):
            self._put(means)
        self._folded.append((device, upload, weight))

    def _put(self, means: Trees) -> None:
        """The MEAN slots of one upload as one vector."""
        self._shapes = {name: {key: x.shape for key, x in tree.items()} for name, tree in means.items()}
        parts = [x.reshape(-1).float() for tree in means.values() for x in tree.values()]
        if parts:
            self._vectors.put(Tree.scalar(torch.cat(parts)))

    def _sum_of(self, name: str, like: Tree) -> Sum:
        if name not in self._sums:
            self._sums[name] = InOrder(like, self._scratch) if self._exact is None else _exactly(like, self._exact)
        return self._sums[name]

    def _trees(self, upload: Upload) -> Trees:
        """The slots of one upload, as they came, and what the algorithm rebuilds from them in float64."""
        trees = self._transfer(upload.load())
        if self._algorithm is None or not self._algorithm.rebuilt:
            return trees
        exact = {name: tree.map(torch.Tensor.double) for name, tree in trees.items()}
        return {**trees, **self._algorithm.rebuild(exact, upload.steps)}

    def _totals(self, weight: float) -> dict[str, Tree]:
        return {
            name: each.total(weight if self._reduce[name] is Reduce.MEAN else 1.0).map(torch.Tensor.float)
            for name, each in self._sums.items()
        }

    def _combined(self, order: list[int], weights: Sequence[float]) -> Trees:
        """The MEAN slots by the rule."""
        if not isinstance(self._rule, Rule):
            return {}
        sizes = [shape.numel() for shapes in self._shapes.values() for shape in shapes.values()]
        if not sizes:
            return {name: Tree({}) for name in self._shapes}
        rows = self._vectors.taken(order).value
        found = self._rule(rows, torch.tensor(weights, dtype=torch.float64, device=rows.device), self._across)
        parts = iter(torch.split(found.float(), sizes))
        return {
            name: Tree({key: next(parts).view(shape) for key, shape in shapes.items()})
            for name, shapes in self._shapes.items()
        }


def _exactly(like: Tree, grid: Grid) -> Exact:
    devices: list[torch.device] = [tensor.device for tensor in like.values() if isinstance(tensor, Tensor)]
    return Exact.zeros(like, grid, devices[0] if devices else "cpu")
