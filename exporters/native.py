"""What ONNX Runtime computes faster with an operator of its own than as arithmetic on windows.

Measured on one x86-64 thread, batch 32 (microseconds; input gradient by windows, by ``ConvTranspose``)::

    conv 5x5, 16 -> 32, 12x12               1071     754
    conv 3x3, 32 -> 64, 14x14, padded       4007    2980
    conv 3x3, 32 -> 64, 16x16, stride 2     1437    1135
    depthwise conv 3x3, 32, 14x14, padded   3080     813
    conv 1x1, 32 -> 64, 14x14                267     523
    conv 7, 32 -> 24, length 23              153     250

so windows stay where they are few: along one axis, and where the kernel is a single element.

A sum over the minibatch and other axes is one over the others and then one over the minibatch.  The runtime moves
channels to the end, and then adds up one number after the other: of 8192 numbers it loses as many digits as torch does
of a million, and batch normalisation sums like that six times a layer.  In two parts a sum has a fifth of the error
and takes half of the time (8x32x32x16: 18 instead of 35 microseconds).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from exporters.decompositions import Table, complete
from exporters.windows import axes_of

aten = torch.ops.aten

_Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


@functools.cache
def onnx_table() -> Table:
    """:func:`exporters.decompositions.complete` for ONNX: transposed convolution stays, and serves as a gradient."""
    return {
        **complete(),
        aten.convolution.default: convolution,
        aten.convolution_backward.default: convolution_backward,
        aten.mean.dim: functools.partial(in_two, aten.mean.dim),
        aten.sum.dim_IntList: functools.partial(in_two, aten.sum.dim_IntList),
    }


def in_two(
    operator: Callable[..., Tensor],
    x: Tensor,
    dim: Sequence[int] | None,
    keepdim: bool = False,  # noqa: FBT001, FBT002  aten's own signature
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """A sum or a mean over the first axis and others: over the others first."""
    axes = sorted(axis % x.dim() for axis in dim or ())
    if axes[:1] != [0] or len(axes) == 1:
        return NotImplemented  # type: ignore[no-any-return]  # it tells the tracer to keep the operator
    return operator(operator(x, axes[1:], keepdim, dtype=dtype), [0], keepdim, dtype=dtype)


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,  # noqa: FBT001  aten's own signature
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    """``aten.convolution``: left as it is where it is a transposed one."""
    fits = max(output_padding) < min(stride)  # the runtime refuses more, which torch allows beside a dilation
    if transposed and fits and x.dim() == weight.dim():
        return NotImplemented  # type: ignore[no-any-return]  # it tells the tracer to keep the operator
    own = complete()[aten.convolution.default]
    found: Tensor = own(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
    return found


def convolution_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,  # noqa: FBT001  aten's own signature
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> _Gradients:
    """``aten.convolution_backward``: the gradient in ``x`` by a transposed convolution where that is faster."""
    settings = (stride, padding, dilation, transposed, output_padding, groups)
    own = complete()[aten.convolution_backward.default]
    if transposed or not output_mask[0] or x.dim() < weight.dim() or not _many_windows(weight, groups):
        found: _Gradients = own(grad, x, weight, bias_sizes, *settings, output_mask)
        return found
    _, in_weight, in_bias = own(grad, x, weight, bias_sizes, *settings, [False, *output_mask[1:]])
    lost = _lost(grad, x, weight, stride, padding, dilation)
    in_x = aten.convolution(grad, weight, None, stride, padding, dilation, True, lost, groups)  # noqa: FBT003  likewise
    return in_x, in_weight, in_bias


def _many_windows(weight: Tensor, groups: int) -> bool:
    kernel = weight.shape[2:]
    return kernel.numel() > 1 and (groups > 1 or len(kernel) > 1)


def _lost(
    grad: Tensor, x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> list[int]:
    """Elements at the end of each axis that no window reached: a transposed convolution has to add them."""
    axes = axes_of(weight.shape[2:], stride, padding, dilation)
    return [
        size - ((length - 1) * axis.stride - 2 * axis.padding + axis.dilation * (axis.kernel - 1) + 1)
        for size, length, axis in zip(x.shape[2:], grad.shape[2:], axes, strict=True)
    ]
