from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from edgepfl.errors import ExportError
from exporters.convolution import convolution, convolution_backward

CASES = [
    *itertools.product([1], [1, 2, 5], [1, 2, 3], [0, 2], [1, 2], [1]),
    *itertools.product([2], [1, 3], [1, 2], [0, 1], [1, 2], [1]),
    *itertools.product([1, 2], [3], [1, 2], [1], [1], [2, 4]),
]


def _tensors(dims: int, kernel: int, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    sizes = (13, 11)[:dims]  # odd, so that strides leave a remainder
    x = torch.randn(3, 4, *sizes, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(8, 4 // groups, *(kernel,) * dims, dtype=torch.float64, requires_grad=True)
    return x, weight, torch.randn(8, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize(("dims", "kernel", "stride", "padding", "dilation", "groups"), CASES)
def test_values_and_gradients_are_torchs(
    dims: int, kernel: int, stride: int, padding: int, dilation: int, groups: int
) -> None:
    x, weight, bias = _tensors(dims, kernel, groups)
    conv = functional.conv1d if dims == 1 else functional.conv2d
    wanted = conv(x, weight, bias, stride, padding, dilation, groups)
    grad = torch.randn_like(wanted)
    gradients = torch.autograd.grad(wanted, (x, weight, bias), grad)
    settings = ([stride] * dims, [padding] * dims, [dilation] * dims, False, [0] * dims, groups)
    with torch.no_grad():
        found = convolution(x, weight, bias, *settings)
        back = convolution_backward(grad, x, weight, [8], *settings, [True, True, True])
    torch.testing.assert_close(found, wanted)
    for ours, theirs in zip(back, gradients, strict=True):
        assert ours is not None
        torch.testing.assert_close(ours, theirs)


def test_without_bias_and_only_what_the_mask_asks_for() -> None:
    x, weight, _ = _tensors(1, 3, 1)
    settings = ([1], [0], [1], False, [0], 1)
    with torch.no_grad():
        found = convolution(x, weight, None, *settings)
        back = convolution_backward(found, x, weight, None, *settings, [False, True, False])
    torch.testing.assert_close(found, functional.conv1d(x, weight))
    assert [part is None for part in back] == [True, False, True]


def test_transposed_convolution_is_refused_by_name() -> None:
    x, weight, bias = _tensors(1, 3, 1)
    with pytest.raises(ExportError, match="transposed convolution") as caught:
        convolution(x, weight, bias, [1], [0], [1], True, [0], 1)  # noqa: FBT003  aten's own signature
    assert caught.value.where == "aten.convolution"
