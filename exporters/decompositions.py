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

from exporters.convolution import convolution, convolution_backward
from exporters.pooling import avg_pool, avg_pool_backward, max_pool, max_pool_backward

aten = torch.ops.aten


def threshold_backward(grad: Tensor, result: Tensor, threshold: float) -> Tensor:
    """ReLU's gradient as a product with a mask; 0 at 0, as torch has it."""
    return grad * (result > threshold).to(grad.dtype)


def blank(size: Sequence[int], *_: object, **options: Any) -> Tensor:  # noqa: ANN401  aten's own options
    """Zeros for memory that aten leaves as it is, because it is about to be written: graphs have no such thing."""
    return torch.zeros(list(size), dtype=options.get("dtype"))


Table: TypeAlias = Mapping[torch._ops.OpOverload[..., Any], Callable[..., Any]]  # noqa: SLF001  torch gives the type no public name

OWN: Table = {
    aten.avg_pool2d.default: avg_pool,
    aten.avg_pool2d_backward.default: avg_pool_backward,
    aten.convolution.default: convolution,
    aten.convolution_backward.default: convolution_backward,
    aten.empty.memory_format: blank,
    aten.empty_permuted.default: blank,
    aten.max_pool2d_with_indices.default: max_pool,
    aten.max_pool2d_with_indices_backward.default: max_pool_backward,
    aten.threshold_backward.default: threshold_backward,
}
"""Operator to the function that replaces it while a graph is traced."""


@functools.cache
def complete() -> Table:
    """:data:`OWN` over torch's own decompositions to its core operators.

    Without the latter ``nll_loss`` would reach the translation to ONNX, which gets its gradient wrong.
    """
    return {**torch.export.default_decompositions(), **OWN}
