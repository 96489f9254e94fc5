"""Rows of one width in slabs of a fixed size: memory grows and shrinks by a slab and is never copied as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from edgepfl.tree import Tree

_MOST = 32 << 20  # bytes of a slab, unless one row is more
_LEAST = 2 << 20  # bytes of a slab of short rows: below half of it a checkpoint does not store a tensor apart
_ROWS = 64  # of a slab, where they are neither short nor long
_MOST_ROWS = 1024  # of a slab: each has coefficients for every device, which for short rows would be most of the memory


def rows_of_slab(row: Tensor) -> int:
    """How many rows like this one a slab has."""
    size = max(row.nbytes, 1)
    return max(min(_MOST // size, _MOST_ROWS, max(_ROWS, -(-_LEAST // size))), 1)


class Slabs:
    """Rows by id: row ``id`` is in slab ``id // rows``.

    Attributes:
        rows: of a slab.
        parts: the slabs by their number, ``(rows, d)``.
    """

    def __init__(self, like: Tensor, tree: Tree | None = None) -> None:
        """Slabs of rows like ``like``, ``(d,)``; those of a tree that :meth:`dump` gave."""
        self._like = like
        self.rows = rows_of_slab(like)
        self.parts: dict[int, Tensor] = {int(name): slab for name, slab in (tree or Tree({})).items()}
        self._changed: set[int] = set()

    def add(self) -> int:
        """A new slab of zeros behind the last one; its number."""
        key = max(self.parts, default=-1) + 1
        self.parts[key] = self._like.new_zeros((self.rows, len(self._like)))
        return key

    def written(self, key: int) -> Tensor:
        """A slab that is about to change."""
        self._changed.add(key)
        return self.parts[key]

    def remove(self, key: int) -> None:
        """Give up a slab."""
        del self.parts[key]
        self._changed.discard(key)

    def read(self, ids: Tensor) -> Tensor:
        """Some rows, ``(k, d)``, a copy."""
        out = self._like.new_empty((len(ids), len(self._like)))
        for key, where in self.by_slab(ids):
            out[where] = self.parts[key].index_select(0, ids[where] - key * self.rows)
        return out

    def write(self, ids: Tensor, rows: Tensor) -> None:
        """Change some rows."""
        for key, where in self.by_slab(ids):
            self.written(key).index_copy_(0, ids[where] - key * self.rows, rows.index_select(0, where))

    def by_slab(self, ids: Tensor) -> Iterator[tuple[int, Tensor]]:
        """The slabs that hold some rows, and which of ``ids`` each one holds, in their order."""
        order = torch.argsort(ids // self.rows, stable=True)
        return ((key, where) for key, _, where in self.groups(ids[order], order))

    def groups(self, ids: Tensor, *others: Tensor) -> Iterator[tuple[Any, ...]]:
        """Rows slab by slab: the slab's number, the rows' places in it, and the shares of tensors as long as ``ids``.

        Args:
            ids: the rows, those of one slab next to each other.
            others: tensors to cut alike.
        """
        keys = ids // self.rows
        found, counts = torch.unique_consecutive(keys, return_counts=True)
        sizes = counts.tolist()
        parts = [torch.split(tensor, sizes) for tensor in (ids - keys * self.rows, *others)]
        yield from zip(found.tolist(), *parts, strict=True)

    def dump(self) -> Tree:
        """The slabs, those that changed since the last time as new objects."""
        for key in self._changed:
            self.parts[key] = self.parts[key].view_as(self.parts[key])
        self._changed.clear()
        return Tree({f"{key:09d}": slab for key, slab in self.parts.items()})
