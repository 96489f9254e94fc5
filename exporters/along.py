"""Linear maps along one axis of a tensor, and their adjoints: no index tensors, no scatter.

Padding by reflection picks elements, interpolation and adaptive averaging mix them.  Both are the same map at every
place of the other axes, so the gradient is the same map transposed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes


@dataclass(frozen=True)
class _Run:
    """Indices ``start, start + step, ...``; ``count`` of them, ``step`` one of -1, 0 and 1."""

    start: int
    step: int
    count: int

    def take(self, x: Tensor, dim: int) -> Tensor:
        if self.step == 0:
            shape = [self.count if axis == dim else -1 for axis in range(x.dim())]
            return x.narrow(dim, self.start, 1).expand(shape)
        taken = x.narrow(dim, min(self.start, self.start + self.step * (self.count - 1)), self.count)
        return taken.flip(dim) if self.step < 0 else taken

    def give(self, part: Tensor, dim: int, size: int) -> Tensor:
        if self.step == 0:
            part, first, count = part.sum(dim, keepdim=True), self.start, 1
        else:
            part = part.flip(dim) if self.step < 0 else part
            first, count = min(self.start, self.start + self.step * (self.count - 1)), self.count
        amounts = [0, 0] * (part.dim() - dim - 1) + [first, size - first - count]
        return torch.constant_pad_nd(part, amounts) if any(amounts) else part


def select(x: Tensor, dim: int, indices: Sequence[int]) -> Tensor:
    """The elements at these places of an axis; a slice for each run of neighbours."""
    parts = [run.take(x, dim) for run in _runs(indices)]
    return torch.cat(parts, dim) if len(parts) > 1 else parts[0]


def unselect(grad: Tensor, dim: int, indices: Sequence[int], size: int) -> Tensor:
    """The adjoint of :func:`select` from an axis of ``size``: each element added where it was taken from."""
    runs = _runs(indices)
    parts = torch.split(grad, [run.count for run in runs], dim)
    whole, *others = (run.give(part, dim, size) for run, part in zip(runs, parts, strict=True))
    for other in others:
        whole = whole + other
    return whole


def _runs(indices: Sequence[int]) -> list[_Run]:
    runs: list[_Run] = []
    for index in indices:
        last = runs[-1] if runs else None
        if last is None:
            runs.append(_Run(index, 1, 1))
        elif last.count == 1 and index - last.start in {-1, 0, 1}:
            runs[-1] = _Run(last.start, index - last.start, 2)
        elif last.count > 1 and index == last.start + last.step * last.count:
            runs[-1] = _Run(last.start, last.step, last.count + 1)
        else:
            runs.append(_Run(index, 1, 1))
    return runs


def matrix_of(operator: Callable[[Tensor], Tensor], size: int, dtype: torch.dtype) -> Tensor:
    """The matrix of a linear operator along the last axis: what it makes of the identity.

    Args:
        operator: ``(size, size)`` -> ``(size, out)``, each row by itself.
        size: of the axis.
        dtype: of the matrix.

    Returns:
        ``(size, out)``, a constant: the operator itself is not traced.
    """
    with _disable_current_modes(), torch.no_grad():
        return operator(torch.eye(size, dtype=torch.float64)).to(dtype).contiguous()


def mix(x: Tensor, dim: int, matrix: Tensor) -> Tensor:
    """Each line of ``x`` along ``dim`` times a matrix ``(size, out)``."""
    lines = x.transpose(dim, -1)
    mixed = lines.reshape(-1, lines.shape[-1]) @ matrix
    return mixed.reshape(*lines.shape[:-1], matrix.shape[1]).transpose(dim, -1)
