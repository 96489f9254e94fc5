"""Gradients of activations that a runtime lacks, and other operators in a few plain ones."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def shrink_backward(grad: Tensor, x: Tensor, lambd: float) -> Tensor:
    """``aten.softshrink_backward`` and ``aten.hardshrink_backward``: nothing passes where the output is zero."""
    return grad * (x.abs() > lambd).to(grad.dtype)


def trilinear(
    first: Tensor,
    second: Tensor,
    third: Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,  # noqa: ARG001  aten's own signature
) -> Tensor:
    """``aten._trilinear``, of ``nn.Bilinear``: the product of three tensors summed over some axes."""
    product: Tensor | None = None
    for factor, expand in ((first, expand1), (second, expand2), (third, expand3)):
        for dim in expand:
            factor = factor.unsqueeze(dim)  # noqa: PLW2901  one axis after another
        product = factor if product is None else product * factor
    assert product is not None  # noqa: S101  there are three
    return product.sum(list(sumdim)) if sumdim else product


def product(x: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    """``aten.prod``: of all elements, by halves."""
    return product_along(x.reshape(-1), 0, dtype=dtype)


def product_along(x: Tensor, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:  # noqa: FBT001, FBT002  aten's own signature
    """``aten.prod.dim_int`` as products of halves: as many multiplications, and no operator of its own."""
    x = x if dtype is None else x.to(dtype)
    while (size := x.shape[dim]) > 1:
        half = size // 2
        x_next = x.narrow(dim, 0, half) * x.narrow(dim, half, half)
        x = torch.cat([x_next, x.narrow(dim, size - 1, 1)], dim) if size % 2 else x_next
    return x if keepdim else x.squeeze(dim)


def cumulative_product(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """``aten.cumprod`` by doubling: each pass multiplies by what stands as far before as was covered already."""
    x = x if dtype is None else x.to(dtype)
    size, covered = x.shape[dim], 1
    dim %= x.dim()
    while covered < size:
        amounts = [0, 0] * (x.dim() - dim - 1) + [covered, 0]
        x = x * torch.constant_pad_nd(x.narrow(dim, 0, size - covered), amounts, 1.0)
        covered *= 2
    return x


def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,  # noqa: FBT001  aten's own signature
    momentum: float,  # noqa: ARG001  likewise
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """``aten.native_batch_norm``, which ExecuTorch would make a convolution of, where it moves no statistics.

    Returns:
        The output; mean and inverse deviation for the backward pass, empty where the running statistics are taken.
    """
    shape = (1, -1, *[1] * (x.dim() - 2))
    if training and running_mean is not None:
        return NotImplemented  # type: ignore[no-any-return]  # it tells the tracer to keep the operator
    if training or running_mean is None or running_var is None:
        over = [0, *range(2, x.dim())]
        mean = x.mean(over)
        scale = torch.rsqrt((x - mean.reshape(shape)).square().mean(over) + eps)
        saved = mean, scale
    else:
        mean, scale = running_mean, torch.rsqrt(running_var + eps)
        saved = x.new_zeros(0), x.new_zeros(0)
    found = (x - mean.reshape(shape)) * (scale if weight is None else scale * weight).reshape(shape)
    return found if bias is None else found + bias.reshape(shape), *saved
