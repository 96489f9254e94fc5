"""From the history form to the lean one, in the memory that the uploads had."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coordinator.fusion._blocks import BLOCK, Displaced, tiles
from coordinator.fusion._pages import Pages
from coordinator.fusion.history import History
from edgepfl.algorithms._fusion import Columns, Form
from edgepfl.tree import Tree, Trees

_LARGEST = 1 << 22  # numbers in a block
_SHARE = 16  # of all uploads, where that is more than a usual block


@dataclass(frozen=True)
class _Side:
    """The part of one device's uploads in its pairs.

    Attributes:
        rows: where its uploads are, in the order of the owners.
        pairs: which of the pairs it is in, ``(n,)``.
        weights: of its uploads in each, ``(n, rows)``, with the sign of its side.
    """

    rows: slice
    pairs: Tensor
    weights: Tensor


def lean_state(history: History) -> Trees:
    """The same pairs as :class:`~coordinator.fusion.lean.Lean` dumps them.

    The vectors take the place of the uploads, a block of columns at a time, so ``history`` is of no use after it.
    """
    ledger, columns, pages = history.ledger, history.columns, history.pages
    models = history.omega(range(history.count))
    i, j = history.needed.triu(1).nonzero().T
    slots = torch.full_like(ledger.c, -1, dtype=torch.int64)
    slots[i, j] = slots[j, i] = torch.arange(len(i), device=i.device)
    return {
        "form": Form.LEAN.slot(models),
        "numbers": ledger.dump(),
        "omega": Tree.scalar(models),
        "slots": Tree.scalar(slots),
        "vectors": _vectors(pages, i, j, columns),
    }


def _vectors(pages: Pages, i: Tensor, j: Tensor, columns: Columns) -> Tree:
    """``delta`` of the pairs ``(i, j)``, in slabs."""
    ids, owners, weights = pages.sorted_by_owner()
    pages.forget()
    sides = _sides(owners, weights, i, j)
    uploads, size = pages.uploads, pages.uploads.rows
    while len(uploads.parts) * size < len(i):
        uploads.add()
    slabs = list(uploads.parts.values())
    where = list(uploads.by_slab(ids))
    block = max(BLOCK, min(_LARGEST, len(ids) * len(columns.first) // _SHARE))
    blocks = list(tiles(len(columns.first), len(ids) + len(i), i.device, block=block))
    displaced = Displaced(columns, size * max((cols.stop - cols.start for cols in blocks), default=0), paired=True)
    for cols in blocks:
        rows = weights.new_empty((len(ids), cols.stop - cols.start))
        for key, some in where:
            here = displaced(uploads.parts[key], cols)
            rows[some] = here.index_select(0, ids[some] - key * size)
        found = rows.new_zeros((len(i), rows.shape[1]))
        for side in sides:
            found.index_add_(0, side.pairs, side.weights @ rows[side.rows])
        for slab, vectors in zip(slabs, torch.split(found, size), strict=False):  # some slabs are left over
            slab[: len(vectors), cols] = vectors
    used = -(-len(i) // size)
    return Tree({f"{key:09d}": slab for key, slab in enumerate(slabs[:used])})


def _sides(owners: Tensor, weights: Tensor, i: Tensor, j: Tensor) -> list[_Side]:
    """Each device's part in its pairs.

    Args:
        owners: of the uploads, ascending.
        weights: of each upload in its owner's pairs, ``(R, m)``.
        i: the pairs' first devices.
        j: their second devices.
    """
    sides, start = [], 0
    found, counts = torch.unique_consecutive(owners, return_counts=True)
    for device, count in zip(found.tolist(), counts.tolist(), strict=True):
        rows = slice(start, start + count)
        first, second = ((end == device).nonzero()[:, 0] for end in (i, j))
        shares = torch.cat([weights[rows, j[first]], -weights[rows, i[second]]], 1).T
        sides.append(_Side(rows, torch.cat([first, second]), shares.contiguous()))
        start += count
    return sides
