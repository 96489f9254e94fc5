from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from edgepfl.errors import ExportError
from exporters.pooling import avg_pool, avg_pool_backward, max_pool, max_pool_backward

CASES = list(itertools.product([2, 3], [1, 2, 3], [0, 1]))
SIZES = [(1, 13), (9, 11)]  # one-dimensional pooling arrives with a first size of 1


def _settings(size: tuple[int, int], kernel: int, stride: int, padding: int) -> tuple[list[int], list[int], list[int]]:
    if size[0] == 1:
        return [1, kernel], [1, stride], [0, padding]
    return [kernel] * 2, [stride] * 2, [padding] * 2


def _tied(size: tuple[int, int]) -> Tensor:
    """Three values only, so that nearly every window has ties."""
    torch.manual_seed(0)
    return torch.randint(-1, 2, (2, 3, *size)).double().requires_grad_()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("kernel", "stride", "padding"), CASES)
def test_max_pooling_gives_ties_to_the_first_as_torch_does(
    size: tuple[int, int], kernel: int, stride: int, padding: int
) -> None:
    x = _tied(size)
    window = _settings(size, kernel, stride, padding)
    wanted = functional.max_pool2d(x, *window)
    grad = torch.randn_like(wanted)
    (gradient,) = torch.autograd.grad(wanted, x, grad)
    with torch.no_grad():
        found, indices = max_pool(x, *window)
        back = max_pool_backward(grad, x, *window, [1, 1], False, indices)  # noqa: FBT003  aten's own signature
    assert torch.equal(found, wanted)
    torch.testing.assert_close(back, gradient)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("kernel", "stride", "padding"), CASES)
def test_average_pooling_is_torchs(size: tuple[int, int], kernel: int, stride: int, padding: int) -> None:
    x = _tied(size)
    window = _settings(size, kernel, stride, padding)
    wanted = functional.avg_pool2d(x, *window)
    grad = torch.randn_like(wanted)
    (gradient,) = torch.autograd.grad(wanted, x, grad)
    with torch.no_grad():
        found = avg_pool(x, *window)
        back = avg_pool_backward(grad, x, *window, False, True, None)  # noqa: FBT003  aten's own signature
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(back, gradient)


def test_dilated_max_pooling_is_torchs() -> None:
    x = _tied((1, 13))
    wanted = functional.max_pool1d(x[:, :, 0], 3, 2, 1, 2)
    (gradient,) = torch.autograd.grad(wanted.sum(), x)
    with torch.no_grad():
        window = ([1, 3], [1, 2], [0, 1], [1, 2], False)
        found, indices = max_pool(x, *window)
        back = max_pool_backward(torch.ones_like(found), x, *window, indices)
    assert torch.equal(found[:, :, 0], wanted)
    torch.testing.assert_close(back, gradient)


def test_windows_that_stick_out_are_refused_only_where_they_do() -> None:
    with pytest.raises(ExportError, match="ceil_mode"):
        max_pool(_tied((1, 13)), [1, 2], [1, 2], [0, 0], [1, 1], True)  # noqa: FBT003  aten's own signature
    found, _ = max_pool(_tied((1, 12)), [1, 2], [1, 2], [0, 0], [1, 1], True)  # noqa: FBT003  likewise
    assert found.shape == (2, 3, 1, 6)


def test_average_pooling_that_leaves_padding_out_is_refused() -> None:
    with pytest.raises(ExportError, match="padding") as caught:
        avg_pool(_tied((1, 13)), [1, 2], [1, 2], [0, 1], False, False)  # noqa: FBT003  aten's own signature
    assert "count_include_pad=True" in str(caught.value)
