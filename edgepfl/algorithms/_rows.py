"""Trees as rows of a matrix, one row a device, for servers that compare whole models."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from edgepfl.tree import Tensor, Tree


def rows_of(stack: Tree) -> Tensor:
    """A STACK slot as ``(devices, d)``: each device's tensors behind each other, in the order of their names."""
    parts = [tensor.reshape(len(tensor), -1) for tensor in stack.values()]
    rows = parts[0].new_empty((len(parts[0]), sum(part.shape[1] for part in parts)))
    at = 0
    for part in parts:
        rows[:, at : at + part.shape[1]] = part
        at += part.shape[1]
    return rows


def row_of(tree: Tree) -> Tensor:
    """One device's tensors as ``(d,)``."""
    return rows_of(tree.map(lambda tensor: tensor[None]))[0]


def shaped(row: Tensor, like: Tree) -> Tree:
    """The tree of a row ``(d,)``, with the names and shapes of another."""
    tensors, at = {}, 0
    for name, tensor in like.items():
        size = tensor.numel()
        tensors[name] = row[at : at + size].reshape(tensor.shape)
        at += size
    return Tree(tensors)


def columns_of(tree: Tree, names: Collection[str]) -> NDArray[np.bool_]:
    """Which columns of a tree's row are these tensors', ``(d,)``."""
    parts = [np.full(tensor.numel(), name in names) for name, tensor in tree.items()]
    return np.concatenate(parts)


def by_device(devices: Sequence[str], rows: Tensor) -> Tree:
    """Rows as a tree whose names are the devices'."""
    return Tree(dict(zip(devices, rows, strict=True)))


def matrix(rows: Tree, width: int, like: Tensor) -> Tensor:
    """A tree of :func:`by_device` as ``(devices, width)``, in the order of their names.

    Args:
        rows: by device, possibly none.
        width: of a row.
        like: a tensor of the same kind.
    """
    stacked = like.new_empty((len(rows), width))
    for place, row in enumerate(rows.values()):
        stacked[place] = row
    return stacked
