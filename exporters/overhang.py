"""Pooling over windows that stick out (``ceil_mode``), and averages that leave the padding out of their count.

The input is padded first, so that every window fits, and :mod:`exporters.pooling` does the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from exporters import pooling
from exporters.windows import Axis


def max_pool(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,  # noqa: FBT001, FBT002  aten's own signature
) -> tuple[Tensor, Tensor]:
    """``aten.max_pool2d_with_indices``, as :func:`exporters.pooling.max_pool`."""
    whole, axes = _batched(x), pooling.pooled_axes(kernel, stride, padding, dilation)
    wide = _widened(whole, axes, -torch.inf, ceil_mode=ceil_mode)
    found, stand_in = pooling.max_pool(wide, kernel, stride, padding, dilation)
    return found.reshape(*x.shape[:-2], *found.shape[-2:]), stand_in.reshape(*x.shape[:-2], *found.shape[-2:])


def max_pool_backward(
    grad: Tensor,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,  # noqa: FBT001  aten's own signature
    indices: Tensor,
) -> Tensor:
    """``aten.max_pool2d_with_indices_backward``, as :func:`exporters.pooling.max_pool_backward`."""
    whole, axes = _batched(x), pooling.pooled_axes(kernel, stride, padding, dilation)
    wide = _widened(whole, axes, -torch.inf, ceil_mode=ceil_mode)
    settings = kernel, stride, padding, dilation, False
    found = pooling.max_pool_backward(_batched(grad), wide, *settings, _batched(indices))
    return _narrowed(found, x)


def avg_pool(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,  # noqa: FBT001, FBT002  aten's own signature
    count_include_pad: bool = True,  # noqa: FBT001, FBT002  likewise
    divisor_override: int | None = None,
) -> Tensor:
    """``aten.avg_pool2d``, as :func:`exporters.pooling.avg_pool`."""
    whole, axes = _batched(x), pooling.pooled_axes(kernel, stride, padding, (1,))
    even = _even(axes, whole, ceil_mode=ceil_mode, count_include_pad=count_include_pad, override=divisor_override)
    wide = _widened(whole, axes, 0.0, ceil_mode=ceil_mode)
    found = pooling.avg_pool(wide, kernel, stride, padding, divisor_override=divisor_override if even else 1)
    if not even:
        found = found * _shares(axes, whole, ceil_mode=ceil_mode, count_include_pad=count_include_pad)
    return found.reshape(*x.shape[:-2], *found.shape[-2:])


def avg_pool_backward(
    grad: Tensor,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,  # noqa: FBT001  aten's own signature
    count_include_pad: bool,  # noqa: FBT001  likewise
    divisor_override: int | None,
) -> Tensor:
    """``aten.avg_pool2d_backward``, as :func:`exporters.pooling.avg_pool_backward`."""
    whole, axes, coming = _batched(x), pooling.pooled_axes(kernel, stride, padding, (1,)), _batched(grad)
    even = _even(axes, whole, ceil_mode=ceil_mode, count_include_pad=count_include_pad, override=divisor_override)
    if not even:
        coming = coming * _shares(axes, whole, ceil_mode=ceil_mode, count_include_pad=count_include_pad)
    wide = _widened(whole, axes, 0.0, ceil_mode=ceil_mode)
    settings = kernel, stride, padding, False, True, divisor_override if even else 1
    return _narrowed(pooling.avg_pool_backward(coming, wide, *settings), x)


def _batched(x: Tensor) -> Tensor:
    return x.unsqueeze(0) if x.dim() == 3 else x  # noqa: PLR2004  channels and two sizes


def _length(axis: Axis, size: int, *, ceil_mode: bool) -> int:
    """How many windows torch places: with ``ceil_mode`` one more, if it begins inside or in the padding before."""
    length = axis.length(size)
    fits = (size + 2 * axis.padding - axis.dilation * (axis.kernel - 1) - 1) % axis.stride == 0
    more = ceil_mode and not fits and length * axis.stride < size + axis.padding
    return length + more


def _widened(x: Tensor, axes: Sequence[Axis], fill: float, *, ceil_mode: bool) -> Tensor:
    """``x`` with as much at the end of each axis as the last window sticks out."""
    amounts: list[int] = []
    for axis, size in zip(axes, x.shape[2:], strict=True):
        span = (_length(axis, size, ceil_mode=ceil_mode) - 1) * axis.stride + axis.dilation * (axis.kernel - 1) + 1
        amounts[:0] = [0, max(span - size - 2 * axis.padding, 0)]
    return torch.constant_pad_nd(x, amounts, fill) if any(amounts) else x


def _narrowed(grad: Tensor, x: Tensor) -> Tensor:
    for dim in (2, 3):
        size = x.shape[dim - 4]
        grad = grad.narrow(dim, 0, size) if grad.shape[dim] > size else grad
    return grad.reshape(x.shape)


def _even(axes: Sequence[Axis], x: Tensor, *, ceil_mode: bool, count_include_pad: bool, override: int | None) -> bool:
    """Whether every window has the same divisor."""
    if override:
        return True
    counts = [
        _counts(axis, size, ceil_mode=ceil_mode, count_include_pad=count_include_pad)
        for axis, size in zip(axes, x.shape[2:], strict=True)
    ]
    return all(set(line) == {axis.kernel} for line, axis in zip(counts, axes, strict=True))


def _counts(axis: Axis, size: int, *, ceil_mode: bool, count_include_pad: bool) -> list[int]:
    """How many places of each window count: those in the padding if they shall, never those beyond it."""
    found = []
    for i in range(_length(axis, size, ceil_mode=ceil_mode)):
        start = i * axis.stride - axis.padding
        stop = min(start + axis.kernel, size + axis.padding)
        found.append(stop - start if count_include_pad else min(stop, size) - max(start, 0))
    return found


def _shares(axes: Sequence[Axis], x: Tensor, *, ceil_mode: bool, count_include_pad: bool) -> Tensor:
    """What each window divides by, inverted: ``(*lengths)``."""
    rows, columns = (
        _counts(axis, size, ceil_mode=ceil_mode, count_include_pad=count_include_pad)
        for axis, size in zip(axes, x.shape[2:], strict=True)
    )
    return torch.tensor([[1 / (row * column) for column in columns] for row in rows], dtype=x.dtype)
