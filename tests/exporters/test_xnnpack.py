"""Graphs rewritten for XNNPACK compute what they did, in operators that it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from exporters.windows import Axis
from exporters.xnnpack import rewritten
from exporters.xnnpack_layers import convolution, convolution_backward, max_pool, max_pool_backward
from exporters.xnnpack_windows import gather, scatter

aten = torch.ops.aten

_OUTSIDE = {aten.gt.Tensor, aten.sum.dim_IntList, aten.mm.default, aten.addmm.default, aten._log_softmax.default}

CASES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "product": lambda x, y: x.flatten(1) @ y.flatten(1).t(),
    "product of transposed": lambda x, y: x.flatten(1).t() @ y.flatten(1),
    "addmm": lambda x, y: torch.addmm(y[:, 0, 0], x.flatten(1), y.flatten(1).t(), alpha=-1, beta=2),
    "layer": lambda x, y: torch.addmm(x[0, :4, 0], x.flatten(1), y.flatten(1).t()).relu(),
    "sum of all": lambda x, y: (x * y).sum(),
    "sum over rows": lambda x, y: x.sum(0) + y.sum((0, 1), keepdim=True),
    "sum over columns": lambda x, y: x.sum(-1) - y.mean((1, 2), keepdim=True)[:, 0],
    "sum between": lambda x, y: x.sum(1) * y.mean(1),
    "log_softmax": lambda x, y: torch.log_softmax(x * 50, -1) + torch.log_softmax(y, 1),
    "greatest": lambda x, y: x.amax(1, keepdim=True) * y.amax(2, keepdim=True),
    "masks": lambda x, y: torch.stack(
        [(f(x, y)).float() for f in (torch.gt, torch.ge, torch.lt, torch.le, torch.eq, torch.ne)]
    ),
    "mask of a number": lambda x, y: (x > 0.5).float() * (y == 0).float(),
    "labels": lambda x, _: (x[0, :, 0].round().long()[:, None] == torch.arange(3)).float(),
    "expanded": lambda x, y: x[:, :1].expand(4, 6, 5) * y + x.sum().expand(4, 6, 5),
    "constants": lambda x, y: x * torch.full_like(y, 3.0) + torch.ones(5) * torch.arange(5) - (1 - y),
    "step": lambda x, y: x[:, 1::3] + y[:, ::4, :][:, :, :5],
    "parts": lambda x, y: torch.cat([*torch.split(x, [1, 2, 3], 1)[::-1], *torch.split(y, 4, 1)], 1),
    "many parts": lambda x, y: torch.cat([x[:, i % 6, i % 5 : i % 5 + 1] for i in range(23)] + [y[:, 0]], 1),
    "stacked": lambda x, y: torch.stack([x[:, i] for i in range(6)] + [y.select(1, -1)], 1),
    "padded and cut": lambda x, y: torch.constant_pad_nd(x, [1, -2, -1, 3], 7.0).sum() + y,
    "powers": lambda x, y: (
        (x.abs() + 1) ** 0.5 + y**2 + (y * y + 1).reciprocal() + x.clamp(-0.5, 0.25) + y.clamp(min=0.1)
    ),
    "permuted": lambda x, y: ((x.permute(2, 0, 1) * 2).relu() + y.permute(2, 0, 1)).permute(1, 2, 0),
    "views": lambda x, y: x.unsqueeze(1).squeeze(1).reshape(24, 5).reshape(4, 30) + y.transpose(1, 2).flatten(1),
    "an input and twice the same": lambda x, y: (x, y + 1, y + 1, x.clone()),
}


def _flat(found: Any) -> list[Tensor]:  # noqa: ANN401  one tensor or several
    return list(found) if isinstance(found, tuple) else [found]


@pytest.mark.parametrize("name", CASES)
def test_the_numbers_stay(name: str) -> None:
    generator = torch.Generator().manual_seed(5)
    x, y = (torch.randn(4, 6, 5, generator=generator) for _ in range(2))
    y[0] = x[0]  # some are equal
    traced = make_fx(lambda a, b: tuple(_flat(CASES[name](a, b))))(x, y)
    graph = rewritten(traced, (x, y))
    found, expected = graph(x, y), _flat(CASES[name](x, y))
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-5, atol=2e-6)
    assert not {node.target for node in graph.graph.nodes} & _OUTSIDE
    outputs = graph.graph.output_node().args[0]
    assert len(set(outputs)) == len(expected)  # type: ignore[arg-type]  # a tuple of nodes


def test_permutations_that_undo_each_other_are_gone() -> None:
    x = torch.randn(2, 3, 4)
    traced = make_fx(lambda a: (torch.tanh(a.permute(0, 2, 1) * 2).relu().permute(0, 2, 1),))(x)
    graph = rewritten(traced, (x,))
    assert not graph.graph.find_nodes(op="call_function", target=aten.permute.default)
    torch.testing.assert_close(graph(x)[0], torch.tanh(x * 2).relu())


@pytest.mark.parametrize("axes", [[Axis(3)], [Axis(2, 3, 1)], [Axis(3, 2, 1, 2), Axis(1, 2)], [Axis(5), Axis(5, 1, 2)]])
def test_scattering_is_the_adjoint_of_gathering(axes: list[Axis]) -> None:
    sizes = [11, 9][: len(axes)]
    x = torch.randn(2, *sizes, 3, dtype=torch.float64, requires_grad=True)
    windows = gather(x, axes)
    coming = torch.randn_like(windows)
    (expected,) = torch.autograd.grad(windows, x, coming)
    torch.testing.assert_close(scatter(coming, axes, sizes), expected)
    assert windows.shape[1:-1] == tuple(axis.length(size) for axis, size in zip(axes, sizes, strict=True))


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding", "dilation"),
    [
        ([9], [3], [1], [1], [1]),
        ([10], [3], [2], [0], [2]),
        ([9, 8], [5, 3], [1, 1], [2, 2], [1, 1]),
        ([7, 9], [2, 3], [3, 2], [0, 1], [1, 1]),
    ],
)
def test_convolution_is_torchs(
    size: list[int], kernel: list[int], stride: list[int], padding: list[int], dilation: list[int]
) -> None:
    x, weight, bias = torch.randn(3, 2, *size), torch.randn(4, 2, *kernel), torch.randn(4)
    rest = False, [0] * len(size), 1  # not transposed, one group
    expected = aten.convolution(x, weight, bias, stride, padding, dilation, *rest)
    found = convolution(x, weight, bias, stride, padding, dilation, *rest)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    coming, mask = torch.randn_like(expected), [True] * 3
    given = coming, x, weight, [4]
    wanted = aten.convolution_backward(*given, stride, padding, dilation, *rest, mask)
    mine = convolution_backward(*given, stride, padding, dilation, *rest, mask)
    for gradient, theirs in zip(mine, wanted, strict=True):
        torch.testing.assert_close(gradient, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation"),
    [
        ([2, 2], [2, 2], [0, 0], [1, 1]),
        ([3, 2], [2, 1], [1, 0], [1, 2]),
        ([1, 4], [1, 4], [0, 0], [1, 1]),
        ([5, 5], [3, 3], [2, 2], [1, 1]),
    ],
)
def test_pooling_is_torchs_with_ties(
    kernel: list[int], stride: list[int], padding: list[int], dilation: list[int]
) -> None:
    x = torch.randint(-2, 2, (2, 3, 9, 13)).float()
    settings = (kernel, stride, padding, dilation, False)
    expected, indices = aten.max_pool2d_with_indices(x, *settings)
    assert torch.equal(max_pool(x, *settings)[0], expected)
    coming = torch.randn_like(expected)
    wanted = aten.max_pool2d_with_indices_backward(coming, x, *settings, indices)
    torch.testing.assert_close(max_pool_backward(coming, x, *settings, indices), wanted)
