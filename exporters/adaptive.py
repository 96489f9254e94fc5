"""Adaptive pooling: equal windows as ordinary pooling, others as a matrix (average) or as taps (maximum).

Place ``i`` of ``out`` along an axis of ``n`` looks at ``floor(i n / out) <= j < ceil((i + 1) n / out)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from exporters.along import matrix_of, mix, select, unselect
from exporters.pooling import _first_maximum  # pooling's own, and no part of its face


def average(x: Tensor, out: Sequence[int]) -> Tensor:
    """``aten._adaptive_avg_pool2d``: ``(..., *sizes)`` -> ``(..., *out)``."""
    for dim, target in _axes(x, out):
        x = _mean(x, dim, target)
    return x


def average_backward(grad: Tensor, x: Tensor) -> Tensor:
    """``aten._adaptive_avg_pool2d_backward``."""
    for dim in (x.dim() - 1, x.dim() - 2):
        size, target = x.shape[dim], grad.shape[dim]
        if size % target == 0:
            share = size // target
            shape = [-1] * (grad.dim() + 1)
            shape[dim + 1] = share
            grad = (grad / share).unsqueeze(dim + 1).expand(shape).flatten(dim, dim + 1)
        else:
            grad = mix(grad, dim, _matrix(size, target, x.dtype).transpose(0, 1))
    return grad


def maximum(x: Tensor, out: Sequence[int]) -> tuple[Tensor, Tensor]:
    """``aten.adaptive_max_pool2d``: the maximum, and a stand-in for the indices as in :mod:`exporters.pooling`."""
    pooled = reduce(torch.maximum, _taps(x, out))
    return pooled, torch.zeros_like(pooled, dtype=torch.bool)


def maximum_backward(grad: Tensor, x: Tensor, indices: Tensor) -> Tensor:  # noqa: ARG001  recomputed by comparison
    """``aten.adaptive_max_pool2d_backward``: the gradient goes to the first maximum of each window."""
    out = grad.shape[-2:]
    shares = [grad * mask for mask in _first_maximum(_taps(x, out))]
    columns = _windows(x.shape[-1], out[1])
    rows = _windows(x.shape[-2], out[0])
    parts = []
    for i, row in enumerate(rows):
        line = shares[i * len(columns) : (i + 1) * len(columns)]
        wide = reduce(
            torch.add, (unselect(s, x.dim() - 1, at, x.shape[-1]) for s, at in zip(line, columns, strict=True))
        )
        parts.append(unselect(wide, x.dim() - 2, row, x.shape[-2]))
    return reduce(torch.add, parts)


def _axes(x: Tensor, out: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip(range(x.dim() - len(out), x.dim()), out, strict=True))


def _mean(x: Tensor, dim: int, target: int) -> Tensor:
    size = x.shape[dim]
    if size % target == 0:
        return x.reshape(*x.shape[:dim], target, size // target, *x.shape[dim + 1 :]).mean(dim + 1)
    return mix(x, dim, _matrix(size, target, x.dtype))


def _matrix(size: int, target: int, dtype: torch.dtype) -> Tensor:
    return matrix_of(lambda identity: torch.nn.functional.adaptive_avg_pool1d(identity, target), size, dtype)


def _taps(x: Tensor, out: Sequence[int]) -> list[Tensor]:
    """What stands at each place of the window, row by row; a short window shows its last element again.

    An element shown again is never the first of the greatest, so it gets no gradient twice.
    """
    rows = [select(x, x.dim() - 2, row) for row in _windows(x.shape[-2], out[0])]
    return [select(row, x.dim() - 1, column) for row in rows for column in _windows(x.shape[-1], out[1])]


def _windows(size: int, target: int) -> list[list[int]]:
    """For each place in the widest window, the index that each output sees there."""
    starts = [i * size // target for i in range(target)]
    stops = [-(-(i + 1) * size // target) for i in range(target)]
    widest = max(stop - start for start, stop in zip(starts, stops, strict=True))
    return [[min(a + k, b - 1) for a, b in zip(starts, stops, strict=True)] for k in range(widest)]
