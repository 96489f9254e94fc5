"""Convolution in one, two or three dimensions as one matrix product over windows, and its gradients.

With ``rows`` the windows as a matrix and ``W`` the kernel as one: ``y = rows W + b``, ``dW = rows^T dy``,
``drows = dy W^T``, and ``dx`` adds each row of ``drows`` where it was taken from.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from edgepfl.errors import ExportError
from exporters.windows import Axis, axes_of, channels_first, channels_last, gather, scatter

_FEW = 8
"""Below one channel to so many positions along the last axis, windows are faster to copy position by position: a copy
of so few channels at a time costs 450 microseconds instead of 150 for 32 pictures of 28x28 and a kernel of 5x5."""


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,  # noqa: FBT001  aten's own signature
    output_padding: Sequence[int],  # noqa: ARG001  likewise
    groups: int,
) -> Tensor:
    """``(rows, in, *sizes)``, ``(out, in / groups, *kernel)`` -> ``(rows, out, *lengths)``."""
    axes = _axes(weight, stride, padding, dilation, transposed=transposed)
    lengths = [axis.length(size) for axis, size in zip(axes, x.shape[2:], strict=True)]
    rows, matrix = _rows(x, axes, groups), _matrix(weight, groups)
    if groups == 1 and bias is not None:
        return _unflattened(torch.addmm(bias, rows, matrix), x.shape[0], lengths)
    product = _join(rows @ matrix)
    return _unflattened(product if bias is None else product + bias, x.shape[0], lengths)


def convolution_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,  # noqa: ARG001  aten's own signature
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,  # noqa: FBT001  likewise
    output_padding: Sequence[int],  # noqa: ARG001  likewise
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of :func:`convolution` in ``x``, ``weight`` and ``bias``, those that the mask asks for."""
    axes = _axes(weight, stride, padding, dilation, transposed=transposed)
    flat = channels_last(grad).flatten(0, -2)  # (positions, out)
    split = flat if groups == 1 else flat.reshape(flat.shape[0], groups, -1).permute(1, 0, 2)
    in_x = in_weight = in_bias = None
    if output_mask[0]:
        rows = split @ _matrix(weight, groups).transpose(-1, -2)
        in_x = _unrows(rows, axes, groups, x.shape, grad.shape[2:])
    if output_mask[1]:
        rows = _rows(x, axes, groups)
        # Either product gives the same; a transposition costs least on the side that was made by it.
        few = _few(x, axes, groups)
        matrix = rows.transpose(-1, -2) @ split if few else (split.transpose(-1, -2) @ rows).transpose(-1, -2)
        in_weight = _unmatrix(matrix, weight.shape, groups)
    if output_mask[2]:
        in_bias = flat.sum(0)
    return in_x, in_weight, in_bias


def _axes(
    weight: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], *, transposed: bool
) -> list[Axis]:
    if transposed:
        raise ExportError(
            "transposed convolution cannot be exported",
            where="aten.convolution",
            remedy="Use nn.Upsample and an ordinary convolution",
        )
    return axes_of(weight.shape[2:], stride, padding, dilation)


def _rows(x: Tensor, axes: Sequence[Axis], groups: int) -> Tensor:
    """The windows: ``(positions, kernel * in)``, or with a leading axis of groups."""
    if _few(x, axes, groups):
        taps = gather(x.transpose(0, 1), axes, first=2)
        return torch.cat([tap.flatten(1) for tap in taps]).transpose(0, 1)
    taps = gather(channels_last(x), axes)
    if groups == 1:
        return torch.cat(taps, -1).flatten(0, -2)
    stacked = torch.stack(taps, -2).flatten(0, -3)  # (positions, kernel, in)
    return stacked.reshape(*stacked.shape[:2], groups, -1).permute(2, 0, 1, 3).flatten(2)


def _few(x: Tensor, axes: Sequence[Axis], groups: int) -> bool:
    return groups == 1 and x.shape[1] * _FEW <= axes[-1].length(x.shape[-1])


def _unrows(rows: Tensor, axes: Sequence[Axis], groups: int, shape: torch.Size, lengths: torch.Size) -> Tensor:
    """The adjoint of :func:`_rows`."""
    channels, sizes = shape[1], shape[2:]
    if groups > 1:
        rows = rows.reshape(*rows.shape[:2], -1, channels // groups).permute(1, 2, 0, 3).flatten(1)
    taps = torch.split(rows.reshape(shape[0], *lengths, -1), channels, -1)
    return channels_first(scatter(taps, axes, sizes))


def _matrix(weight: Tensor, groups: int) -> Tensor:
    """``(out, in / groups, *kernel)`` -> ``(kernel * in, out)``, or with a leading axis of groups."""
    if groups == 1:
        return weight.flatten(2).permute(0, 2, 1).flatten(1).transpose(0, 1)
    return weight.reshape(groups, -1, weight.shape[1], weight[0, 0].numel()).permute(0, 3, 2, 1).flatten(1, 2)


def _unmatrix(matrix: Tensor, shape: torch.Size, groups: int) -> Tensor:
    """The inverse of :func:`_matrix`."""
    if groups == 1:
        return matrix.transpose(0, 1).reshape(shape[0], -1, shape[1]).permute(0, 2, 1).reshape(shape)
    return matrix.reshape(groups, -1, shape[1], matrix.shape[2]).permute(0, 3, 2, 1).reshape(shape)


def _join(product: Tensor) -> Tensor:
    """``(groups, positions, out / groups)`` -> ``(positions, out)``."""
    return product.permute(1, 0, 2).flatten(1) if product.dim() == 3 else product  # noqa: PLR2004  with groups


def _unflattened(flat: Tensor, rows: int, lengths: Sequence[int]) -> Tensor:
    return channels_first(flat.reshape(rows, *lengths, -1))
