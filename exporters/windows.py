"""Sliding windows as shifted slices, and their adjoint.

Convolution and pooling, forward and backward, are arithmetic on the *taps* of a window: for each position inside the
kernel, the tensor of the values that stand there.  Slices, sums and concatenations are exact on every runtime and keep
no indices, where the runtimes' own backward operators are missing, slow or wrong.

Tensors here are channels-last, ``(rows, *sizes, channels)``: then a tap is a copy of whole contiguous rows and a
convolution is one matrix product over all positions of all examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Axis:
    """A window along one axis, in elements."""

    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    def length(self, size: int) -> int:
        """How many places the window has along an axis of this size."""
        return (size + 2 * self.padding - self.dilation * (self.kernel - 1) - 1) // self.stride + 1


def repeated(setting: Sequence[int], count: int) -> list[int]:
    """A setting of each axis; aten gives a single value for all of them."""
    return list(setting) * count if len(setting) == 1 else list(setting)


def axes_of(
    kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> list[Axis]:
    """The window of each axis of ``kernel``, the settings as aten gives them."""
    settings = (repeated(setting, len(kernel)) for setting in (stride, padding, dilation))
    return [Axis(*values) for values in zip(kernel, *settings, strict=True)]


def channels_last(x: Tensor) -> Tensor:
    """``(rows, channels, *sizes)`` -> ``(rows, *sizes, channels)``."""
    return x.permute(0, *range(2, x.dim()), 1)


def channels_first(x: Tensor) -> Tensor:
    """The inverse of :func:`channels_last`."""
    return x.permute(0, x.dim() - 1, *range(1, x.dim() - 1))


def gather(x: Tensor, axes: Sequence[Axis], *, fill: float = 0.0, first: int = 1) -> list[Tensor]:
    """The taps of a window.

    Args:
        x: ``(rows, *sizes, channels)``.
        axes: one for each of ``sizes``.
        fill: the value of padding.
        first: the first of ``sizes``, where they do not begin at 1.

    Returns:
        One ``(rows, *lengths, channels)`` for each position in the kernel, the last axis fastest.
    """
    taps = [x]
    for dim, axis in enumerate(axes, start=first):
        taps = [tap for tensor in taps for tap in _gather(tensor, dim, axis, fill)]
    return taps


def scatter(taps: Sequence[Tensor], axes: Sequence[Axis], sizes: Sequence[int], *, first: int = 1) -> Tensor:
    """The adjoint of :func:`gather` with zero fill: each tap added where it was taken from.

    Args:
        taps: as :func:`gather` gives them.
        axes: one for each of ``sizes``.
        sizes: of what was gathered from.
        first: the first of ``sizes``, where they do not begin at 1.

    Returns:
        ``(rows, *sizes, channels)``.
    """
    parts = list(taps)
    for i in reversed(range(len(axes))):
        axis, size = axes[i], sizes[i]
        groups = [parts[start : start + axis.kernel] for start in range(0, len(parts), axis.kernel)]
        parts = [_scatter(group, first + i, axis, size) for group in groups]
    (whole,) = parts
    return whole


def _gather(x: Tensor, dim: int, axis: Axis, fill: float) -> list[Tensor]:
    span = (axis.length(x.shape[dim]) - 1) * axis.stride + 1
    padded = _pad(x, dim, axis.padding, axis.padding, fill)
    starts = [i * axis.dilation for i in range(axis.kernel)]
    return [_slice(padded, dim, start, start + span, axis.stride) for start in starts]


def _scatter(taps: Sequence[Tensor], dim: int, axis: Axis, size: int) -> Tensor:
    # Positions that differ by a multiple of the stride belong to one phase; the phases are interleaved at the end.
    length = taps[0].shape[dim]
    phase_length = -(-(size + 2 * axis.padding) // axis.stride)
    phases: list[Tensor | None] = [None] * axis.stride
    for i, tap in enumerate(taps):
        shift, phase = divmod(i * axis.dilation, axis.stride)
        placed = _pad(tap, dim, shift, phase_length - length - shift, 0.0)
        before = phases[phase]
        phases[phase] = placed if before is None else before + placed
    return _slice(_interleave(phases, dim), dim, axis.padding, axis.padding + size, 1)


def _interleave(phases: Sequence[Tensor | None], dim: int) -> Tensor:
    known = next(phase for phase in phases if phase is not None)
    if len(phases) == 1:
        return known
    stacked = torch.stack([torch.zeros_like(known) if phase is None else phase for phase in phases], dim + 1)
    return stacked.flatten(dim, dim + 1)


def _pad(x: Tensor, dim: int, before: int, after: int, fill: float) -> Tensor:
    if before == 0 and after == 0:
        return x
    amounts = [0, 0] * (x.dim() - dim - 1) + [before, after]  # torch counts from the last axis
    return torch.constant_pad_nd(x, amounts, fill)


def _slice(x: Tensor, dim: int, start: int, stop: int, step: int) -> Tensor:
    if start == 0 and stop >= x.shape[dim] and step == 1:
        return x
    sliced: Tensor = torch.ops.aten.slice.Tensor(x, dim, start, stop, step)
    return sliced
