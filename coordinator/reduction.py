"""Folding uploads: each one once, when its turn comes, in O(d) memory.

MEAN and SUM slots, and what the algorithm rebuilds from an upload, are accumulated in float64.  Floating-point addition
is not associative, so uploads are folded in the order of the devices' names: at once while every earlier member of the
cohort has been folded, at close otherwise.  What must wait stays on disk.  The same set of uploads gives the same bits
in whatever order they arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from edgepfl.algorithms import Algorithm, Cohort
from edgepfl.errors import RunError
from edgepfl.plan import Reduce, SlotPlan, Weighting
from edgepfl.tree import Tree, Trees


@dataclass(frozen=True)
class Upload:
    """A screened upload that waits to be folded.

    Attributes:
        examples: how many the device trains on.
        steps: minibatch steps it took.
        load: reads its UP slots, as NumPy trees.
    """

    examples: int
    steps: int
    load: Callable[[], Trees]


class Reduction:
    """The one mutable thing of a round: what has been folded so far.

    Args:
        slots: the plan's UP slots.
        cohort: everyone who may still report.
        weighting: of MEAN slots.
        device: where the accumulators live ("cpu", "cuda").
        algorithm: that of the round, which may rebuild further slots from an upload.
    """

    def __init__(
        self,
        slots: Mapping[str, SlotPlan],
        cohort: Iterable[str],
        weighting: Weighting,
        device: str = "cpu",
        algorithm: Algorithm | None = None,
    ) -> None:
        sent = {name: slot.reduce for name, slot in slots.items()}
        self._algorithm = algorithm
        self._reduce = {**sent, **algorithm.rebuilt} if algorithm is not None else sent
        self._order = sorted(cohort)
        self._weighting = weighting
        self._device = torch.device(device)
        self._offered: set[str] = set()
        self._waiting: dict[str, Upload] = {}
        self._folded: list[tuple[str, Upload, float]] = []
        self._next = 0
        self._sums: dict[str, Tree] = {}
        self._stacks: dict[str, list[Tree]] = {
            name: [] for name, reduce in self._reduce.items() if reduce is Reduce.STACK
        }

    def offer(self, device: str, upload: Upload) -> None:
        """Take an upload and fold those whose turn it is; a device's second is ignored."""
        if device in self._offered:
            return
        self._offered.add(device)
        self._waiting[device] = upload
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
            RunError: an upload is missing, or one was folded that is not to count.
        """
        for device in sorted(self._waiting.keys() & set(devices)):
            self._fold(device)
        names = tuple(name for name, _, _ in self._folded)
        if names != tuple(sorted(devices)):
            raise RunError(f"folded {len(names)} uploads, and {len(devices)} reports count", where="reduction")
        weight = sum(weight for _, _, weight in self._folded)
        return Cohort(
            devices=names,
            examples=tuple(upload.examples for _, upload, _ in self._folded),
            steps=tuple(upload.steps for _, upload, _ in self._folded),
            total={name: self._total(name, tree, weight) for name, tree in self._sums.items()},
            stack={name: _stack(trees) for name, trees in self._stacks.items() if trees},
            number=number,
            fleet=tuple(sorted({*fleet, *names})),
            statistics=statistics,
        )

    def _fold(self, device: str) -> None:
        upload = self._waiting.pop(device)
        weight = 1.0 if self._weighting is Weighting.UNIFORM else float(upload.examples)
        rows = self._rows(upload)
        for name, reduce in self._reduce.items():
            if reduce is Reduce.STACK:
                self._stacks[name].append(rows[name].map(torch.Tensor.float))
                continue
            share = rows[name].map(torch.Tensor.double) * (weight if reduce is Reduce.MEAN else 1.0)
            self._sums[name] = self._sums[name].zip(torch.Tensor.add_, share) if name in self._sums else share
        self._folded.append((device, upload, weight))

    def _rows(self, upload: Upload) -> Trees:
        """The slots of one upload, as they came, and what the algorithm rebuilds from them in float64."""
        rows = {
            name: tree.map(lambda array: torch.from_numpy(array).to(self._device))
            for name, tree in upload.load().items()
        }
        if self._algorithm is None or not self._algorithm.rebuilt:
            return rows
        exact = {name: tree.map(torch.Tensor.double) for name, tree in rows.items()}
        return {**rows, **self._algorithm.rebuild(exact, upload.steps)}

    def _total(self, name: str, tree: Tree, weight: float) -> Tree:
        scale = weight if self._reduce[name] is Reduce.MEAN else 1.0
        return (tree / scale).map(torch.Tensor.float)


def _stack(trees: Sequence[Tree]) -> Tree:
    return Tree({name: torch.stack([tree[name] for tree in trees]) for name in trees[0]})
