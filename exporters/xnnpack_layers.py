"""Convolution and max pooling, forward and backward, as XNNPACK runs them fastest; the rest is as everywhere.

XNNPACK's own convolution wants weights that never change, and its pooling gives no gradient.  So convolution is one
product over windows (:mod:`exporters.convolution` has the equations), and pooling compares one axis after the other,
the last one first: then of several greatest values the first in memory wins, as in torch.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from exporters.decompositions import Table, complete
from exporters.pooling import pooled_axes
from exporters.windows import Axis, axes_of, channels_first, channels_last
from exporters.xnnpack_windows import gather, scatter, taps, untaps

aten = torch.ops.aten

_STEEP = 3e38  # near the greatest float: a positive difference times this is more than 1
_LEAST = torch.finfo(torch.float32).min  # padding that is never the maximum; of infinities there is no difference
_ONE = Axis(1)

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


@functools.cache
def table() -> Table:
    """What to trace with for this runtime, in place of :func:`exporters.decompositions.complete`."""
    return {
        **complete(),
        aten.convolution.default: convolution,
        aten.convolution_backward.default: convolution_backward,
        aten.max_pool2d_with_indices.default: max_pool,
        aten.max_pool2d_with_indices_backward.default: max_pool_backward,
    }


def convolution(  # aten's own signature
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,  # noqa: FBT001  likewise
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    """``(rows, in, *sizes)``, ``(out, in, *kernel)`` -> ``(rows, out, *lengths)``."""
    if transposed or groups > 1 or x.dim() != weight.dim():
        whole: Tensor = complete()[aten.convolution.default](
            x, weight, bias, stride, padding, dilation, transposed, output_padding, groups
        )
        return whole
    windows = gather(channels_last(x), axes_of(weight.shape[2:], stride, padding, dilation))
    product = windows.flatten(0, -2) @ _matrix(weight)
    product = product if bias is None else product + bias
    return channels_first(product.reshape(*windows.shape[:-1], -1))


def convolution_backward(  # aten's own signature
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,  # noqa: FBT001  likewise
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> Gradients:
    """The gradients of :func:`convolution` in ``x``, ``weight`` and ``bias``, those that the mask asks for."""
    if transposed or groups > 1 or x.dim() != weight.dim():
        whole: Gradients = complete()[aten.convolution_backward.default](
            grad, x, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask
        )
        return whole
    axes = axes_of(weight.shape[2:], stride, padding, dilation)
    last = channels_last(grad)
    flat = last.flatten(0, -2)  # (positions, out)
    in_x = in_weight = None
    if output_mask[0]:
        windows = (flat @ _matrix(weight).t()).reshape(*last.shape[:-1], -1)
        in_x = channels_first(scatter(windows, axes, x.shape[2:]))
    if output_mask[1]:
        # the smaller factor is the one to transpose: (out, positions) (positions, kernel * in)
        matrix = flat.t() @ gather(channels_last(x), axes).flatten(0, -2)
        in_weight = matrix.reshape(weight.shape[0], -1, weight.shape[1]).permute(0, 2, 1).reshape(weight.shape)
    return in_x, in_weight, flat.sum(0) if output_mask[2] else None


def max_pool(  # aten's own signature
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,  # noqa: FBT001, FBT002  likewise
) -> tuple[Tensor, Tensor]:
    """``aten.max_pool2d_with_indices``; the stand-in for the indices is :func:`exporters.pooling.max_pool`'s."""
    if ceil_mode or x.dim() != 4:  # noqa: PLR2004  rows, channels and two sizes
        both: tuple[Tensor, Tensor] = complete()[aten.max_pool2d_with_indices.default](
            x, kernel, stride, padding, dilation, ceil_mode
        )
        return both
    pooled = channels_last(x)
    for dim, axis in _pooled(kernel, stride, padding, dilation):
        pooled = functools.reduce(torch.maximum, taps(pooled, dim, axis, _LEAST))
    whole = channels_first(pooled)
    return whole, torch.zeros_like(whole, dtype=torch.bool)


def max_pool_backward(  # aten's own signature
    grad: Tensor,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,  # noqa: FBT001  likewise
    indices: Tensor,
) -> Tensor:
    """``aten.max_pool2d_with_indices_backward``: the gradient goes to the first maximum of each window."""
    if ceil_mode or x.dim() != 4:  # noqa: PLR2004  as above
        whole: Tensor = complete()[aten.max_pool2d_with_indices_backward.default](
            grad, x, kernel, stride, padding, dilation, ceil_mode, indices
        )
        return whole
    coming, pooled = channels_last(grad), channels_last(x)
    undo: list[tuple[int, Axis, int, list[Tensor]]] = []
    for dim, axis in _pooled(kernel, stride, padding, dilation):
        size = pooled.shape[dim]
        pooled, masks = _first_maximum(taps(pooled, dim, axis, _LEAST))
        undo.append((dim, axis, size, masks))
    for dim, axis, size, masks in reversed(undo):
        coming = untaps(_shares(coming, masks), dim, axis, size)
    return channels_first(coming)


def _first_maximum(values: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """The maximum, and for each value but the first a mask: 1 where it is greater than all before it."""
    greatest, masks = values[0], []
    for value in values[1:]:
        masks.append(torch.clamp((value - greatest) * _STEEP, 0.0, 1.0))
        greatest = torch.maximum(greatest, value)
    return greatest, masks


def _shares(coming: Tensor, masks: Sequence[Tensor]) -> list[Tensor]:
    """The gradient to the last value where its mask is 1; what is left to the one before it, and so on."""
    shares = []
    for mask in reversed(masks):
        shares.append(coming * mask)
        coming = coming - shares[-1]
    return [coming, *reversed(shares)]


def _pooled(
    kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> list[tuple[int, Axis]]:
    axes = pooled_axes(kernel, stride, padding, dilation)
    return [(dim, axis) for dim, axis in reversed(list(enumerate(axes, start=1))) if axis != _ONE]


def _matrix(weight: Tensor) -> Tensor:
    """``(out, in, *kernel)`` -> ``(kernel * in, out)``."""
    return weight.flatten(2).permute(2, 1, 0).flatten(0, 1)
