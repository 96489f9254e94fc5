"""The UP slots of a plan as one vector of whole numbers, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepfl.coding import Encoded
from edgepfl.errors import CodecError
from edgepfl.plan import Plan, Role, TensorSpec
from edgepfl.secagg.fixed import FixedPoint, Words
from edgepfl.secagg.terms import Terms
from edgepfl.tree import Tree, Trees


@dataclass(frozen=True)
class Sums:
    """What the coordinator learns of a round.

    Attributes:
        weight: the sum of the devices' examples.
        trees: by UP slot, the sum of the devices' tensors, times their examples where the terms say so; float64.
    """

    weight: int
    trees: Trees


@dataclass(frozen=True)
class Layout:
    """Where each number of an upload lies: slots by name, in each the tensors by name, and last the device's examples.

    Attributes:
        terms: of the run.
        slots: the plan's UP slots.
    """

    terms: Terms
    slots: Mapping[str, Mapping[str, TensorSpec]]

    @classmethod
    def of(cls, terms: Terms, plan: Plan) -> Layout:
        """That of a plan's uploads."""
        return cls(terms, {name: slot.tensors for name, slot in sorted(plan.by_role(Role.UP).items())})

    @property
    def fixed(self) -> FixedPoint:
        """How numbers are encoded."""
        return FixedPoint(self.terms.bits, self.terms.fraction, self.terms.clip, self.terms.most)

    @property
    def size(self) -> int:
        """Numbers in an upload."""
        return 1 + sum(spec.size for specs in self.slots.values() for spec in specs.values())

    @property
    def nbytes(self) -> int:
        """Bytes of an upload."""
        return self.size * self.terms.bits // 8

    def encode(self, upload: Trees, examples: int, *, where: str = "upload") -> Words:
        """One device's vector, not masked yet.

        Args:
            upload: its UP slots, NumPy.
            examples: its weight.
            where: the place for errors.

        Raises:
            CodecError: a number or the weight is outside its bounds.
        """
        fixed, parts = self.fixed, []
        for slot, specs in self.slots.items():
            weight = examples if slot in self.terms.weighted else 1
            for name in sorted(specs):
                flat = np.asarray(upload[slot][name]).reshape(-1)
                parts.append(fixed.encode(flat, weight, where=f"{where}, {slot}/{name}"))
        if not 1 <= examples <= fixed.most:
            raise CodecError(f"{examples} examples, and the run allows 1 to {fixed.most}", where=where)
        return np.concatenate([*parts, np.array([examples], fixed.dtype)])

    def decode(self, total: Words) -> Sums:
        """What a sum of vectors, without masks, stands for."""
        return Sums(int(total[-1]), self._trees(self.fixed.decode(total[:-1])))

    def arrived(self, vector: Words, examples: int) -> Trees:
        """What one device's vector stands for, by itself: its UP slots with the rounding that they suffer."""
        trees = self._trees(self.fixed.decode(vector[:-1]))
        weights = {slot: examples if slot in self.terms.weighted else 1 for slot in self.slots}
        return {
            slot: tree.map(lambda x, w=weights[slot]: (x / w).astype(np.float32))  # type: ignore[misc]  # mypy: a default in a lambda
            for slot, tree in trees.items()
        }

    def _trees(self, numbers: NDArray[Any]) -> dict[str, Tree]:
        found, place = {}, 0
        for slot, specs in self.slots.items():
            tensors = {}
            for name in sorted(specs):
                spec = specs[name]
                tensors[name] = numbers[place : place + spec.size].reshape(spec.shape)
                place += spec.size
            found[slot] = Tree(tensors)
        return found


@dataclass(frozen=True)
class Vectors:
    """One device's uploads as such vectors, in the place of a codec."""

    layout: Layout
    examples: int

    def encode(self, upload: Trees, seed: int, residual: Trees) -> Encoded:  # noqa: ARG002  a codec's, of which this rounds alone
        """The vector's bytes, not masked yet, and what the coordinator makes of it among the others.

        Raises:
            CodecError: a number is outside its bounds.
        """
        vector = self.layout.encode(upload, self.examples)
        return Encoded(vector.tobytes(), self.layout.arrived(vector, self.examples))


def read(data: bytes | bytearray | memoryview, layout: Layout, *, where: str) -> Words:
    """The vector in an upload's bytes.

    Raises:
        CodecError: not of the declared length.
    """
    if len(data) != layout.nbytes:
        raise CodecError(f"a masked upload of {len(data)} bytes, and {layout.nbytes} are due", where=where)
    return np.frombuffer(data, layout.fixed.dtype)
