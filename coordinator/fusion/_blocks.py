"""Matrix products of rows in float64, a block of columns at a time, so that no float64 copy of all rows ever exists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from edgepfl.algorithms._fusion import Columns

BLOCK = 1 << 17
"""Numbers in a block on a CPU, so that it stays in the cache."""

_CUDA_BLOCK = 1 << 24  # enough for the whole card to be busy
_NARROWEST = 64  # columns: a product over fewer is slow


def tiles(width: int, rows: int, device: torch.device, *, block: int = 0) -> Iterator[slice]:
    """Blocks of columns.

    Args:
        width: how many columns there are.
        rows: how many rows each block has.
        device: where they are.
        block: numbers in one; 0 is the usual.
    """
    numbers = block or (_CUDA_BLOCK if device.type == "cuda" else BLOCK)
    step = max(numbers // max(rows, 1), _NARROWEST)
    for start in range(0, width, step):
        yield slice(start, min(start + step, width))


class Displaced:
    """How far rows are from ``omega^0``, float64, a block at a time in the same memory: fresh pages cost much.

    Args:
        columns: what is known of them.
        numbers: in the greatest block.
        paired: give 0 in the columns that take no part in pairs.
    """

    def __init__(self, columns: Columns, numbers: int, *, paired: bool = False) -> None:
        self._columns = columns
        self._memory = columns.first.new_empty(numbers, dtype=torch.float64)
        self._unpaired = columns.unpaired if paired else None

    def __call__(self, rows: Tensor, cols: slice) -> Tensor:
        """A block of rows ``(k, d)``, which the next call overwrites."""
        shape = (len(rows), cols.stop - cols.start)
        block = self._memory[: shape[0] * shape[1]].view(shape)
        block.copy_(rows[:, cols]).sub_(self._columns.first[cols])
        return block if self._unpaired is None else block.masked_fill_(self._unpaired[cols], 0)


def products(left: Tensor, rights: Sequence[Tensor], columns: Columns) -> Tensor:
    """Inner products of displacements over the columns that take part in pairs.

    Args:
        left: ``(s, d)``.
        rights: ``(k_1, d)``, ``(k_2, d)``, ...
        columns: what is known of them.

    Returns:
        ``(s, k_1 + k_2 + ...)``, float64, of the columns here.
    """
    sizes = [len(right) for right in rights]
    out = left.new_zeros((len(left), sum(sizes)), dtype=torch.float64)
    parts, blocks = torch.split(out, sizes, 1), list(tiles(left.shape[1], len(left) + max(sizes), left.device))
    ours = Displaced(columns, len(left) * _width(blocks), paired=True)
    theirs = Displaced(columns, max(sizes) * _width(blocks))
    for cols in blocks:
        block = ours(left, cols)
        for part, right in zip(parts, rights, strict=True):
            part.addmm_(block, theirs(right, cols).T)
    return out


def combined(weights: Tensor, means: Tensor, rights: Sequence[Tensor], columns: Columns) -> Tensor:
    """``omega^0`` and a combination of displacements.

    Args:
        weights: ``(p, k_1 + k_2 + ...)``, float64.
        means: the weights in the columns that take no part in pairs, ``(k_1 + k_2 + ...,)``.
        rights: ``(k_1, d)``, ``(k_2, d)``, ...
        columns: what is known of them.

    Returns:
        ``(p, d)``, of the rows' dtype.
    """
    sizes, first, unpaired = [len(right) for right in rights], columns.first, columns.unpaired
    if unpaired is not None:
        weights = torch.cat([weights, means[None]])
    count = len(weights) - (unpaired is not None)
    out = first.new_empty((count, len(first)))
    shares, blocks = (
        torch.split(weights, sizes, 1),
        list(tiles(len(first), len(weights) + max(sizes, default=0), first.device)),
    )
    theirs = Displaced(columns, max(sizes, default=0) * _width(blocks))
    memory = weights.new_empty(len(weights) * _width(blocks))
    for cols in blocks:
        block = memory[: len(weights) * (cols.stop - cols.start)].view(len(weights), -1)
        block.copy_(first[cols].expand_as(block))
        for share, right in zip(shares, rights, strict=True):
            block.addmm_(share, theirs(right, cols))
        out[:, cols] = block if unpaired is None else torch.where(unpaired[cols], block[-1], block[:-1])
    return out


def _width(blocks: Sequence[slice]) -> int:
    return max((cols.stop - cols.start for cols in blocks), default=0)


def squares(rows: Tensor) -> Tensor:
    """Squared norms over the columns here, ``(k, d)`` to ``(k,)``, float64."""
    out = rows.new_zeros(len(rows), dtype=torch.float64)
    for cols in tiles(rows.shape[1], len(rows), rows.device):
        out += torch.linalg.vector_norm(rows[:, cols], dim=1, dtype=torch.float64).square()
    return out
