"""The operators whose gradients are missing, slow or wrong on a runtime, written in ones that are right on all.

* ``convolution_backward`` has no ONNX translation.
* ``max_pool2d_with_indices`` is translated to two poolings and a scatter; its backward in ExecuTorch's portable kernels
  adds to what an earlier call left in the output buffer.
* ReLU's backward is translated to a ``Where`` that is slower than all the matrix products of a small network.

All are arithmetic on :mod:`exporters.windows` here, checked against torch's own gradients in the tests.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from exporters import activations, adaptive, lookup, overhang, padding, strided, transposed
from exporters.attention import attention, attention_backward
from exporters.refusals import REFUSALS
from exporters.resampling import Interpolation

aten = torch.ops.aten


def threshold_backward(grad: Tensor, result: Tensor, threshold: float) -> Tensor:
    """ReLU's gradient as a product with a mask; 0 at 0, as torch has it."""
    return grad * (result > threshold).to(grad.dtype)


def blank(size: Sequence[int], *_: object, **options: Any) -> Tensor:  # noqa: ANN401  aten's own options
    """Zeros for memory that aten leaves as it is, because it is about to be written: graphs have no such thing."""
    return torch.zeros(list(size), dtype=options.get("dtype"))


Table: TypeAlias = Mapping[torch._ops.OpOverload[..., Any], Callable[..., Any]]  # noqa: SLF001  torch gives the type no public name

_POOLING: Table = {
    aten._adaptive_avg_pool2d.default: adaptive.average,  # noqa: SLF001  its name
    aten._adaptive_avg_pool2d_backward.default: adaptive.average_backward,  # noqa: SLF001  likewise
    aten.adaptive_max_pool2d.default: adaptive.maximum,
    aten.adaptive_max_pool2d_backward.default: adaptive.maximum_backward,
    aten.avg_pool2d.default: overhang.avg_pool,
    aten.avg_pool2d_backward.default: overhang.avg_pool_backward,
    aten.max_pool2d_with_indices.default: overhang.max_pool,
    aten.max_pool2d_with_indices_backward.default: overhang.max_pool_backward,
}

_PADDING: Table = {
    **{
        operator: functools.partial(padding.pad, padding.reflected)
        for operator in (aten.reflection_pad1d.default, aten.reflection_pad2d.default)
    },
    **{
        operator: functools.partial(padding.pad_backward, padding.reflected)
        for operator in (aten.reflection_pad1d_backward.default, aten.reflection_pad2d_backward.default)
    },
    **{
        operator: functools.partial(padding.pad, padding.replicated)
        for operator in (aten.replication_pad1d.default, aten.replication_pad2d.default)
    },
    **{
        operator: functools.partial(padding.pad_backward, padding.replicated)
        for operator in (aten.replication_pad1d_backward.default, aten.replication_pad2d_backward.default)
    },
}


def _interpolations() -> Table:
    names = {
        "upsample_nearest1d": "nearest",
        "upsample_nearest2d": "nearest",
        "_upsample_nearest_exact1d": "nearest-exact",
        "_upsample_nearest_exact2d": "nearest-exact",
        "upsample_linear1d": "linear",
        "upsample_bilinear2d": "linear",
        "upsample_bicubic2d": "cubic",
    }
    table: dict[torch._ops.OpOverload[..., Any], Callable[..., Any]] = {}
    for name, mode in names.items():
        interpolation, operator = Interpolation(mode), getattr(aten, name)
        table[operator.default] = interpolation.forward
        table[operator.vec] = interpolation.vector
        table[getattr(aten, f"{name}_backward").default] = interpolation.backward
    return table


OWN: Table = {
    **_POOLING,
    **_PADDING,
    **_interpolations(),
    aten._scaled_dot_product_flash_attention_for_cpu.default: attention,  # noqa: SLF001  likewise
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: attention_backward,  # noqa: SLF001  likewise
    aten._trilinear.default: activations.trilinear,  # noqa: SLF001  likewise
    aten.as_strided.default: strided.as_strided,
    aten.as_strided_scatter.default: strided.as_strided_scatter,
    aten.convolution.default: transposed.either,
    aten.convolution_backward.default: transposed.either_backward,
    aten.cumprod.default: activations.cumulative_product,
    aten.diagonal.default: strided.diagonal,
    aten.diagonal_scatter.default: strided.diagonal_scatter,
    aten.embedding_dense_backward.default: lookup.embedding_backward,
    aten.empty.memory_format: blank,
    aten.empty_permuted.default: blank,
    aten.hardshrink_backward.default: activations.shrink_backward,
    aten.index.Tensor: lookup.index,
    aten.index_put.default: lookup.index_put,
    aten.native_batch_norm.default: activations.batch_norm,
    aten.new_empty_strided.default: strided.blank,
    aten.prod.default: activations.product,
    aten.prod.dim_int: activations.product_along,
    aten.slice_scatter.default: strided.slice_scatter,
    aten.softshrink_backward.default: activations.shrink_backward,
    aten.threshold_backward.default: threshold_backward,
    aten.unfold.default: strided.unfold,
    aten.unfold_backward.default: strided.unfold_backward,
}
"""Operator to the function that replaces it while a graph is traced."""


@functools.cache
def complete() -> Table:
    """:data:`OWN` over torch's own decompositions to its core operators.

    Without the latter ``nll_loss`` would reach the translation to ONNX, which gets its gradient wrong.
    """
    return {**torch.export.default_decompositions(), **REFUSALS, **OWN}
