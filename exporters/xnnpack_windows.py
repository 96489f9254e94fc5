"""Sliding windows in the few large copies that XNNPACK is fast at; see :mod:`exporters.windows` for the plain form.

The windows of several axes are gathered one axis after the other, so a kernel of ``5 x 5`` takes ten slices, not
thirty, and two concatenations of five parts, which is as many as the delegate joins at once.  A step along an axis is a
view: the axis is split into rows of the step's length.

Tensors here are channels-last, ``(rows, *sizes, channels)``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from exporters.windows import Axis

aten = torch.ops.aten


def gather(x: Tensor, axes: Sequence[Axis]) -> Tensor:
    """All windows.

    Args:
        x: ``(rows, *sizes, channels)``.
        axes: one for each of ``sizes``.

    Returns:
        ``(rows, *lengths, kernel * channels)``: positions in the kernel with the last axis fastest, then channels.
    """
    for dim in range(len(axes), 0, -1):
        x = torch.cat(taps(x, dim, axes[dim - 1]), -1)
    return x


def scatter(windows: Tensor, axes: Sequence[Axis], sizes: Sequence[int]) -> Tensor:
    """The adjoint of :func:`gather`.

    Returns:
        ``(rows, *sizes, channels)``.
    """
    for dim, (axis, size) in enumerate(zip(axes, sizes, strict=True), start=1):
        windows = untaps(torch.split(windows, windows.shape[-1] // axis.kernel, -1), dim, axis, size)
    return windows


def taps(x: Tensor, dim: int, axis: Axis, fill: float = 0.0) -> list[Tensor]:
    """For each position in the kernel the values that stand there, ``x`` with ``length`` in place of its size."""
    length, step = axis.length(x.shape[dim]), axis.stride
    x = _padded(x, dim, axis.padding, axis.padding, fill)
    starts = [i * axis.dilation for i in range(axis.kernel)]
    if step == 1:
        return [_part(x, dim, start, start + length) for start in starts]
    rows = max(starts) // step + length
    x = _padded(x, dim, 0, max(0, rows * step - x.shape[dim]), fill)
    outer, inner = x.shape[:dim], x.shape[dim + 1 :]
    width = math.prod(inner)
    split = _part(x, dim, 0, rows * step).reshape(*outer, rows, step * width)
    phases = {start % step: _part(split, dim + 1, start % step * width, (start % step + 1) * width) for start in starts}
    found = [_part(phases[start % step], dim, start // step, start // step + length) for start in starts]
    return [tap.reshape(*outer, length, *inner) for tap in found]


def untaps(parts: Sequence[Tensor], dim: int, axis: Axis, size: int) -> Tensor:
    """The adjoint of :func:`taps`: each part added where it was taken from, along an axis of this size."""
    length, step = parts[0].shape[dim], axis.stride
    rows = max(-(-(size + 2 * axis.padding) // step), (axis.kernel - 1) * axis.dilation // step + length)
    phases: list[Tensor | None] = [None] * step
    for i, part in enumerate(parts):
        shift, phase = divmod(i * axis.dilation, step)
        placed = _padded(part, dim, shift, rows - length - shift, 0.0)
        before = phases[phase]
        phases[phase] = placed if before is None else before + placed
    return _part(_interleaved(phases, dim), dim, axis.padding, axis.padding + size)


def _interleaved(phases: Sequence[Tensor | None], dim: int) -> Tensor:
    known = next(phase for phase in phases if phase is not None)
    if len(phases) == 1:
        return known
    outer, (rows, *inner) = known.shape[:dim], known.shape[dim:]
    used = max(i for i, phase in enumerate(phases) if phase is not None) + 1
    flat = [(torch.zeros_like(known) if x is None else x).reshape(*outer, rows, -1) for x in phases[:used]]
    missing = (len(phases) - used) * math.prod(inner)
    return _padded(torch.cat(flat, -1), dim + 1, 0, missing, 0.0).reshape(*outer, rows * len(phases), *inner)


def _padded(x: Tensor, dim: int, before: int, after: int, fill: float) -> Tensor:
    if before == after == 0:
        return x
    return torch.constant_pad_nd(x, [0, 0] * (x.dim() - dim - 1) + [before, after], fill)  # from the last axis


def _part(x: Tensor, dim: int, start: int, stop: int) -> Tensor:
    if stop - start == x.shape[dim]:
        return x
    part: Tensor = aten.slice.Tensor(x, dim, start, stop)
    return part
