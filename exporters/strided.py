"""Writing into a part of a tensor, without writing: what stays and what is new are put together.

Assigning to a slice has a gradient in terms of strides in memory.  A graph has no memory, so the strides are read back
as slices, or refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edgepfl.errors import ExportError
from exporters.windows import Axis, gather, scatter

_REMEDY = "Build the tensor by torch.cat, torch.stack or torch.where instead of assigning to a part of it"

Slices = list[tuple[int, int, int]]
"""Start, stop and step along each axis."""


def slice_scatter(
    x: Tensor, part: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """``aten.slice_scatter``: ``x`` with ``part`` in place of ``x[start:end:step]`` along an axis."""
    size = x.shape[dim]
    first, stop, _ = slice(start, end).indices(size)
    if step == 1:
        after = x.narrow(dim, stop, size - stop) if stop < size else None
        parts = [x.narrow(dim, 0, first) if first else None, part, after]
        return torch.cat([each for each in parts if each is not None], dim)
    spread = _spread(part, dim, first, step, size)
    here = _spread(torch.ones_like(part), dim, first, step, size)
    return x * (1 - here) + spread


def _spread(part: Tensor, dim: int, first: int, step: int, size: int) -> Tensor:
    """The elements of ``part`` a step apart along an axis of zeros."""
    dim %= part.dim()
    gaps = torch.constant_pad_nd(part.unsqueeze(dim + 1), [*[0, 0] * (part.dim() - dim - 1), 0, step - 1])
    apart = gaps.flatten(dim, dim + 1)
    apart = apart.narrow(dim, 0, min(apart.shape[dim], size - first))
    return torch.constant_pad_nd(apart, [*[0, 0] * (part.dim() - dim - 1), first, size - first - apart.shape[dim]])


def as_strided(x: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None) -> Tensor:
    """``aten.as_strided`` where it is a slice of ``x``.

    Raises:
        ExportError: it is something else.
    """
    for dim, (start, stop, step) in enumerate(_slices(x, size, stride, offset)):
        x = torch.ops.aten.slice.Tensor(x, dim, start, stop, step)
    return x.reshape(list(size))


def as_strided_scatter(
    x: Tensor, part: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> Tensor:
    """``aten.as_strided_scatter`` likewise: ``x`` with ``part`` in place of that slice."""
    slices = _slices(x, size, stride, offset)
    parents = [x]
    for dim, (start, stop, step) in enumerate(slices):
        parents.append(torch.ops.aten.slice.Tensor(parents[-1], dim, start, stop, step))
    found = part.reshape(parents[-1].shape)
    for dim in range(x.dim() - 1, -1, -1):
        start, stop, step = slices[dim]
        if parents[dim].shape != parents[dim + 1].shape:
            found = slice_scatter(parents[dim], found, dim, start, stop, step)
    return found


def blank(like: Tensor, size: Sequence[int], stride: Sequence[int], **options: Any) -> Tensor:  # noqa: ANN401  aten's own
    """``aten.new_empty_strided``: zeros, laid out as it asks, because strides of what is written next refer to that.

    Raises:
        ExportError: the layout leaves gaps.
    """
    order = sorted(range(len(size)), key=lambda axis: (-stride[axis], -size[axis]))
    zeros = torch.zeros([size[axis] for axis in order], dtype=options.get("dtype") or like.dtype)
    found = zeros.permute([order.index(axis) for axis in range(len(size))])
    if any(length > 1 and a != b for length, a, b in zip(size, found.stride(), stride, strict=True)):
        raise ExportError("memory with gaps cannot be exported", where="aten.new_empty_strided", remedy=_REMEDY)
    return found


def diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """``aten.diagonal``: in a row after row, its elements are a row and one element apart."""
    lines, start, length = _diagonal(x, offset, dim1, dim2)
    step = x.shape[dim2] + 1
    found: Tensor = torch.ops.aten.slice.Tensor(lines, -1, start, start + (length - 1) * step + 1, step)
    return found


def diagonal_scatter(x: Tensor, part: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """``aten.diagonal_scatter``: ``x`` with ``part`` on a diagonal."""
    lines, start, length = _diagonal(x, offset, dim1, dim2)
    step = x.shape[dim2] + 1
    found = slice_scatter(lines, part, lines.dim() - 1, start, start + (length - 1) * step + 1, step)
    square = found.reshape(*found.shape[:-1], x.shape[dim1], x.shape[dim2])
    return torch.movedim(square, (-2, -1), (dim1, dim2))


def _diagonal(x: Tensor, offset: int, dim1: int, dim2: int) -> tuple[Tensor, int, int]:
    """The two axes as one, and where the diagonal begins there, and how long it is."""
    rows, columns = x.shape[dim1], x.shape[dim2]
    length = min(rows + min(offset, 0), columns - max(offset, 0))
    start = offset if offset >= 0 else -offset * columns
    return x.movedim((dim1, dim2), (-2, -1)).flatten(-2), start, length


def unfold(x: Tensor, dim: int, size: int, step: int) -> Tensor:
    """``aten.unfold``: windows of ``size`` along an axis, ``step`` apart, on a new last axis."""
    dim %= x.dim()
    rest = [n for i, n in enumerate(x.shape) if i != dim]
    windows = torch.cat(gather(_lines(x, dim), [Axis(size, step)]), -1)  # (lines, places, size)
    return windows.reshape(*rest, *windows.shape[1:]).movedim(-2, dim)


def unfold_backward(grad: Tensor, sizes: Sequence[int], dim: int, size: int, step: int) -> Tensor:
    """``aten.unfold_backward``: each element added where it was taken from."""
    dim %= len(sizes)
    taps = [_lines(tap, dim) for tap in grad.unbind(-1)]
    rest = [n for i, n in enumerate(sizes) if i != dim]
    return scatter(taps, [Axis(size, step)], [sizes[dim]]).reshape(*rest, sizes[dim]).movedim(-1, dim)


def _lines(x: Tensor, dim: int) -> Tensor:
    """``(lines along dim, size, 1)``."""
    return x.movedim(dim, -1).reshape(-1, x.shape[dim], 1)


def _slices(x: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None) -> Slices:
    places = np.full(tuple(size), offset or 0, np.int64)
    for axis, (length, apart) in enumerate(zip(size, stride, strict=True)):
        steps = np.arange(length) * apart
        places += steps.reshape([-1 if i == axis else 1 for i in range(len(size))])
    flat = _order(x)
    inside = (places.min(initial=0) >= 0) and places.max(initial=0) < flat.size
    if inside:
        found = flat[places]
        slices = [_slice(np.unique(index)) for index in np.unravel_index(found, tuple(x.shape))]
        whole = np.arange(x.numel()).reshape(x.shape)[tuple(slice(*each) for each in slices)]
        if whole.size == found.size and (whole.reshape(found.shape) == found).all():
            return slices
    raise ExportError(
        "this way of writing into a part of a tensor cannot be exported",
        where="aten.as_strided",
        remedy=_REMEDY,
    )


def _order(x: Tensor) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """For each place in memory the number of the element there; ``x`` is dense."""
    index = np.zeros(tuple(x.shape), np.int64)
    for axis, apart in enumerate(x.stride()):
        index += (np.arange(x.shape[axis]) * apart).reshape([-1 if i == axis else 1 for i in range(x.dim())])
    order = np.zeros(int(index.max(initial=0)) + 1, np.int64)
    order[index.ravel()] = np.arange(index.size)
    return order


def _slice(values: np.ndarray[tuple[int], np.dtype[np.int64]]) -> tuple[int, int, int]:
    step = int(values[1] - values[0]) if values.size > 1 else 1
    return int(values[0]), int(values[-1]) + 1, step
