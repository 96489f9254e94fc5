"""Padding with what is inside: by reflection, by the border, and around."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from torch import Tensor

from exporters.along import select, unselect

Indices = Callable[[int, int, int], list[int]]
"""(size, before, after) -> where the elements of the padded axis come from."""


def reflected(size: int, before: int, after: int) -> list[int]:
    """As in a mirror that stands on the first and on the last element."""
    return [*range(before, 0, -1), *range(size), *range(size - 2, size - 2 - after, -1)]


def replicated(size: int, before: int, after: int) -> list[int]:
    """The first and the last element again and again."""
    return [0] * max(before, 0) + list(range(max(-before, 0), size - max(-after, 0))) + [size - 1] * max(after, 0)


def circular(size: int, before: int, after: int) -> list[int]:
    """The other end of the axis."""
    return [(i - before) % size for i in range(before + size + after)]


def pad(indices: Indices, x: Tensor, amounts: Sequence[int]) -> Tensor:
    """Pad the last axes.

    Args:
        indices: the kind of padding.
        x: any shape.
        amounts: before and after, the last axis first, as torch has them.
    """
    for dim, before, after in _axes(x, amounts):
        x = select(x, dim, indices(x.shape[dim], before, after))
    return x


def pad_backward(indices: Indices, grad: Tensor, x: Tensor, amounts: Sequence[int]) -> Tensor:
    """The gradient of :func:`pad` in ``x``."""
    for dim, before, after in reversed(_axes(x, amounts)):
        size = x.shape[dim]
        grad = unselect(grad, dim, indices(size, before, after), size)
    return grad


def _axes(x: Tensor, amounts: Sequence[int]) -> list[tuple[int, int, int]]:
    pairs = list(pairwise(amounts))[::2]
    return [(x.dim() - 1 - i, before, after) for i, (before, after) in enumerate(pairs) if before or after]
