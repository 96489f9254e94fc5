"""Gradients of look-ups: what was taken from one place several times must be added there as often.

A product with a one-hot matrix where that is small, or else ``scatter_add``, which both runtimes carry out one element
after another; ``index_put`` with accumulation leaves to the runtime what its threads do to the same element.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from edgepfl.errors import ExportError

aten = torch.ops.aten

ONE_HOT_LIMIT = 1 << 16
"""Elements of a one-hot matrix, 256 KiB; with a larger one zeros and a scatter are faster."""


def embedding_backward(
    grad: Tensor,
    indices: Tensor,
    count: int,
    padding_idx: int,
    scale_grad_by_freq: bool,  # noqa: FBT001  aten's own signature
) -> Tensor:
    """``aten.embedding_dense_backward``: ``(..., size)``, ``(...)`` -> ``(count, size)``."""
    flat, rows = indices.reshape(-1), grad.reshape(-1, grad.shape[-1])
    if padding_idx >= 0:
        rows = rows * (flat != padding_idx).to(rows.dtype).unsqueeze(1)
    added = add_rows(rows, flat, count)
    if scale_grad_by_freq:
        added = added / add_rows(torch.ones_like(rows[:, :1]), flat, count).clamp(min=1)
    return added


def add_rows(rows: Tensor, places: Tensor, count: int) -> Tensor:
    """The rows that share a place, added up.

    Args:
        rows: ``(n, size)``.
        places: int64 ``(n,)``, each in ``0 .. count - 1``.
        count: of places.

    Returns:
        ``(count, size)``.
    """
    if places.shape[0] * count <= ONE_HOT_LIMIT:
        at = (torch.arange(count).unsqueeze(1) == places.unsqueeze(0)).to(rows.dtype)
        return at @ rows
    return rows.new_zeros(count, rows.shape[1]).scatter_add(0, places.unsqueeze(1).expand_as(rows), rows)


def index_put(target: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:  # noqa: FBT001, FBT002  aten's own signature
    """``aten.index_put`` where it accumulates, as it does in the gradient of indexing; left alone where it does not.

    Raises:
        ExportError: the index is a mask.
    """
    if not accumulate:
        _refuse_masks(indices)
        return NotImplemented  # type: ignore[no-any-return]  # it tells the tracer to keep the operator
    given = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    _refuse_masks([index for _, index in given])
    dims = [dim for dim, _ in given]
    others = [dim for dim in range(target.dim()) if dim not in dims]
    shape: torch.Size = torch.broadcast_shapes(*(index.shape for _, index in given))  # type: ignore[no-untyped-call]  # torch left it untyped
    first = dims[0] if dims == list(range(dims[0], dims[-1] + 1)) else 0
    wanted = [target.shape[dim] for dim in others]
    wanted[first:first] = shape
    lines = values.expand(wanted).movedim(list(range(first, first + len(shape))), list(range(len(shape))))
    sizes = [target.shape[dim] for dim in dims]
    added = add_rows(lines.reshape(prod(shape), -1), _linear([i for _, i in given], sizes, shape), prod(sizes))
    whole = added.reshape(*sizes, *(target.shape[dim] for dim in others))
    return target + whole.permute([[*dims, *others].index(dim) for dim in range(target.dim())])


def index(_: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """``aten.index``, left alone unless it is by a mask.

    Raises:
        ExportError: by a mask: how many elements that gives depends on their values.
    """
    _refuse_masks(indices)
    return NotImplemented  # type: ignore[no-any-return]  # likewise


def _linear(indices: Sequence[Tensor], sizes: Sequence[int], shape: Sequence[int]) -> Tensor:
    place: Tensor | None = None
    for index_, size in zip(indices, sizes, strict=True):
        positive = index_ + (index_ < 0).to(torch.int64) * size
        place = positive if place is None else place * size + positive
    assert place is not None  # noqa: S101  an index has at least one tensor
    return place.expand(shape).reshape(-1)


def _refuse_masks(indices: Sequence[Tensor | None]) -> None:
    if any(index is not None and index.dtype in {torch.bool, torch.uint8} for index in indices):
        raise ExportError(
            "indexing by a mask cannot be exported: the shape would depend on the data",
            where="aten.index",
            remedy="Use torch.where, or multiply by the mask",
        )
