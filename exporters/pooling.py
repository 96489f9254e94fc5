"""Pooling and its gradients by comparison and arithmetic: no index output, no scatter.

torch gives one-dimensional pooling as two-dimensional with a first size of 1; that size is dropped here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from edgepfl.errors import ExportError
from exporters.windows import Axis, axes_of, gather, repeated, scatter

_ONE = Axis(1)


def max_pool(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,  # noqa: FBT001, FBT002  aten's own signature
) -> tuple[Tensor, Tensor]:
    """``aten.max_pool2d_with_indices``: the maximum, and a stand-in for the indices.

    Only the backward pass takes the indices, and it has no need of them.  The stand-in is of a dtype that no operator
    takes for indices, so a model that asks for them fails to trace.
    """
    flat, axes = _flat(x, pooled_axes(kernel, stride, padding, dilation))
    _refuse_ceil(flat, axes, ceil_mode=ceil_mode)
    pooled = _stages(flat, axes)[0]
    whole = _whole(pooled, x.dim())
    return whole, torch.zeros_like(whole, dtype=torch.bool)


def max_pool_backward(
    grad: Tensor,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,  # noqa: ARG001, FBT001  aten's own signature; the forward pass refused it
    indices: Tensor,  # noqa: ARG001  recomputed by comparison
) -> Tensor:
    """``aten.max_pool2d_with_indices_backward``: the gradient goes to the first maximum of each window."""
    flat, axes = _flat(x, pooled_axes(kernel, stride, padding, dilation))
    coming, _ = _flat(grad, [_ONE, _ONE], squeezed=len(axes) == 1)
    stages = _stages(flat, axes)
    for dim, axis in enumerate(axes, start=1):
        greatest, before = stages[dim - 1], stages[dim]
        taps = gather(before, [axis], fill=-torch.inf, first=dim)
        coming = scatter(_shares(coming, taps, greatest), [axis], [before.shape[dim]], first=dim)
    return _whole(coming, x.dim())


def avg_pool(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,  # noqa: FBT001, FBT002  aten's own signature
    count_include_pad: bool = True,  # noqa: FBT001, FBT002  likewise
    divisor_override: int | None = None,
) -> Tensor:
    """``aten.avg_pool2d``."""
    flat, axes = _flat(x, pooled_axes(kernel, stride, padding, (1,)))
    _refuse_ceil(flat, axes, ceil_mode=ceil_mode)
    total = reduce(torch.add, gather(flat, axes))
    return _whole(total / _divisor(axes, divisor_override, count_include_pad=count_include_pad), x.dim())


def avg_pool_backward(
    grad: Tensor,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,  # noqa: ARG001, FBT001  aten's own signature; the forward pass refused it
    count_include_pad: bool,  # noqa: FBT001  likewise
    divisor_override: int | None,
) -> Tensor:
    """``aten.avg_pool2d_backward``."""
    flat, axes = _flat(x, pooled_axes(kernel, stride, padding, (1,)))
    coming, _ = _flat(grad, [_ONE, _ONE], squeezed=len(axes) == 1)
    share = coming / _divisor(axes, divisor_override, count_include_pad=count_include_pad)
    count = 1
    for axis in axes:
        count *= axis.kernel
    return _whole(scatter([share] * count, axes, flat.shape[1:-1]), x.dim())


def pooled_axes(
    kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> list[Axis]:
    """The windows of a pooling over two sizes; without a stride they touch."""
    return axes_of(repeated(kernel, 2), stride or kernel, padding, dilation)


def _stages(flat: Tensor, axes: Sequence[Axis]) -> list[Tensor]:
    """The maxima along every axis, along all but the first, ..., along none.

    Axis by axis from the last one, the first of a window's maxima is still the one that torch takes, and there are
    fewer taps than positions in the window.
    """
    stages = [flat]
    for dim in range(len(axes), 0, -1):
        taps = gather(stages[0], [axes[dim - 1]], fill=-torch.inf, first=dim)
        stages.insert(0, reduce(torch.maximum, taps))
    return stages


def _shares(coming: Tensor, taps: Sequence[Tensor], greatest: Tensor) -> list[Tensor]:
    """What each tap gets of the gradient: all of it where it is the first of the greatest, and else nothing."""
    shares: list[Tensor] = []
    for tap in taps[:-1]:
        shares.append(coming * (tap >= greatest).to(tap.dtype))
        coming = coming - shares[-1]
    return [*shares, coming]


def _first_maximum(taps: Sequence[Tensor]) -> list[Tensor]:
    """A mask for each tap: 1 where it is the first of the window's greatest."""
    greatest = reduce(torch.maximum, taps)
    masks: list[Tensor] = []
    free: Tensor | None = None  # 1 where no earlier tap was the greatest
    for tap in taps[:-1]:
        equal = (tap >= greatest).to(tap.dtype)
        masks.append(equal if free is None else equal * free)
        free = 1 - equal if free is None else free - masks[-1]
    return [*masks, torch.ones_like(greatest) if free is None else free]


def _flat(x: Tensor, axes: list[Axis], *, squeezed: bool | None = None) -> tuple[Tensor, list[Axis]]:
    """Channels last; without the first of two sizes where a one-dimensional pooling came in disguise."""
    if x.dim() != 4:  # noqa: PLR2004  rows, channels and two sizes
        raise ExportError("pooling without a batch axis cannot be exported", where="aten.max_pool2d_with_indices")
    alone = x.shape[2] == 1 and axes[0].kernel == 1 and axes[0].padding == 0
    if alone if squeezed is None else squeezed:
        return x.squeeze(2).permute(0, 2, 1), axes[1:]
    return x.permute(0, 2, 3, 1), axes


def _whole(flat: Tensor, dims: int) -> Tensor:
    """The inverse of :func:`_flat`."""
    if flat.dim() < dims:
        return flat.permute(0, 2, 1).unsqueeze(2)
    return flat.permute(0, 3, 1, 2)


def _divisor(axes: Sequence[Axis], override: int | None, *, count_include_pad: bool) -> int:
    if not count_include_pad and any(axis.padding for axis in axes):
        raise ExportError(
            "average pooling that leaves padding out of its count cannot be exported",
            where="aten.avg_pool2d",
            remedy="Set count_include_pad=True",
        )
    size = 1
    for axis in axes:
        size *= axis.kernel
    return override or size


def _refuse_ceil(flat: Tensor, axes: Sequence[Axis], *, ceil_mode: bool) -> None:
    if not ceil_mode:
        return
    for axis, size in zip(axes, flat.shape[1:-1], strict=True):
        if (size + 2 * axis.padding - axis.dilation * (axis.kernel - 1) - 1) % axis.stride:
            raise ExportError(
                "pooling over windows that stick out (ceil_mode=True) cannot be exported",
                where="aten.max_pool2d_with_indices",
                remedy="Set ceil_mode=False",
            )
