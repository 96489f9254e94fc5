"""A rank's columns of an upload, without the rest of it.

Tensors lie one after the other in safetensors, so a rank's columns of each are one range of bytes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from coordinator.aggregator.shards import span
from coordinator.storage.depot import Depot, Span
from edgepfl import codec
from edgepfl.codec import Expected
from edgepfl.plan import TensorSpec
from edgepfl.tree import Tree

Array: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[Any]]

WHOLE = 1 << 20
"""Bytes up to which a blob is read at once, and verified: a request costs more than they do."""

HEAD = 16 << 10
"""Bytes to ask for first: most headers fit, at 100 bytes a tensor."""


def columns_of(
    depot: Depot, sha256: str, expected: Expected, cut: Collection[str], *, rank: int, ranks: int, where: str = "upload"
) -> dict[str, Tree]:
    """A rank's part of an upload, as NumPy trees in memory that may be written to.

    Nothing in the upload is trusted: :func:`edgepfl.codec.decode` says what is checked.  The digest is verified only
    where the whole upload is read, up to :data:`WHOLE` bytes; the coordinator verified it when it came.

    Args:
        depot: where it is.
        sha256: its digest.
        expected: slots and tensors that it must have.
        cut: slots of which only this rank's columns are wanted; the others are whole.
        rank: this one, from 0.
        ranks: how many there are.
        where: the place for errors.

    Returns:
        For a cut slot, elements [n*rank//ranks, n*(rank+1)//ranks) of each of its tensors of n, flat.

    Raises:
        StoreError: it is missing, or the store failed.
        CodecError: it is not what was expected.
    """
    size = depot.size(sha256)
    if size <= WHOLE:
        trees = codec.decode(depot.read(sha256), expected, where=where)
        return {slot: _cut(tree, rank, ranks) if slot in cut else tree for slot, tree in trees.items()}
    begins = codec.places(_head(depot, sha256, size, where), size, expected, where=where)
    wanted = [
        _Wanted(slot, name, spec, begins[f"{slot}/{name}"], span(spec.size, rank, ranks) if slot in cut else None)
        for slot, specs in expected.items()
        for name, spec in specs.items()
    ]
    parts = depot.read_ranges(sha256, [each.range for each in wanted])
    found: dict[str, dict[str, Array]] = {slot: {} for slot in expected}
    for each, part in zip(wanted, parts, strict=True):
        found[each.slot][each.name] = each.array(part)
    return {slot: Tree(tensors) for slot, tensors in found.items()}


@dataclass(frozen=True)
class _Wanted:
    """A tensor, or some of its columns.

    Attributes:
        begin: offset of its first byte.
        columns: of the flat tensor; None: all of it, in its shape.
    """

    slot: str
    name: str
    spec: TensorSpec
    begin: int
    columns: slice | None

    @property
    def range(self) -> Span:
        """Where it lies."""
        columns = self.columns or slice(0, self.spec.size)
        width = self.spec.nbytes // self.spec.size
        return self.begin + columns.start * width, (columns.stop - columns.start) * width

    def array(self, data: memoryview) -> Array:
        """What lies there, in memory of its own."""
        flat = np.frombuffer(data, np.dtype(self.spec.dtype).newbyteorder("<")).astype(self.spec.dtype)
        return flat if self.columns is not None else flat.reshape(self.spec.shape)


def _cut(tree: Tree, rank: int, ranks: int) -> Tree:
    return tree.map(lambda tensor: tensor.reshape(-1)[span(tensor.size, rank, ranks)])


def _head(depot: Depot, sha256: str, size: int, where: str) -> memoryview:
    """The bytes before the tensors, at least."""
    head = depot.read_range(sha256, 0, min(HEAD, size))
    needed = codec.head_size(head, size, where=where)
    return head if needed <= len(head) else depot.read_range(sha256, 0, needed)
