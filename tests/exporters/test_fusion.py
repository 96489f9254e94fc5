from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from _models import around
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

from edgepfl import algorithms
from edgepfl.plan import Entry
from exporters.binding import Binding
from exporters.entries import entry_functions
from exporters.fusion import fuse_updates
from exporters.graph import trace
from exporters.representation import gaussian

aten = torch.ops.aten


class Given(NamedTuple):
    """A parameter, the factors of its gradient, and two hyperparameters."""

    w: Tensor
    a: Tensor
    b: Tensor
    lr: Tensor
    lam: Tensor


GIVEN = Given(torch.randn(4, 3), torch.randn(4, 2), torch.randn(2, 3), torch.tensor(0.3), torch.tensor(0.7))


def _swap(x: Tensor) -> Tensor:
    return x.permute(1, 0)


Update = Callable[[Given], Tensor]

FUSED: dict[str, Update] = {
    "descent": lambda g: g.w - g.lr * (g.a @ g.b),
    "ascent": lambda g: g.w + g.lr * (g.a @ g.b),
    "two scalars": lambda g: g.w - g.lr * (g.lam * (g.a @ g.b)),
    "scalar after": lambda g: g.w - (g.a @ g.b) * g.lr,
    "transposed": lambda g: g.w - g.lr * _swap(_swap(g.b) @ _swap(g.a)),
    "proximal": lambda g: g.w - g.lr * (g.a @ g.b + g.lam * (g.w - 1)),
    "proximal, transposed": lambda g: g.w - g.lr * (_swap(_swap(g.b) @ _swap(g.a)) + g.lam * (g.w - 1)),
    "proximal, inside": lambda g: g.w - g.lr * _swap(_swap(g.b) @ _swap(g.a) + g.lam * _swap(g.w)),
    "proximal, first": lambda g: g.w - g.lr * (g.lam * (g.w - 1) + g.a @ g.b),
    "proximal, ascent": lambda g: g.w + g.lr * (g.a @ g.b + g.lam * g.w),
}
KEPT: dict[str, Update] = {
    "no scalar": lambda g: g.w - g.a @ g.b,
    "broadcast": lambda g: g.w[0] - g.lr * (g.a @ g.b),
    "no product": lambda g: g.w - g.lr * (g.lam * g.w),
    "a sum with a factor": lambda g: torch.sub(g.w, g.lr * (g.a @ g.b), alpha=2),
    "not a scalar": lambda g: g.w - g.w * (g.a @ g.b),
    "a number": lambda g: 1 - g.lr * (g.a @ g.b),
}


def _traced(function: Callable[[Given], object]) -> fx.GraphModule:
    found: fx.GraphModule = make_fx(lambda *tensors: function(Given(*tensors)))(*GIVEN)
    return found


def _count(module: fx.GraphModule, target: object) -> int:
    return sum(node.target is target for node in module.graph.nodes)


@pytest.mark.parametrize("name", FUSED)
def test_an_update_becomes_one_product(name: str) -> None:
    traced = _traced(FUSED[name])
    fused = fuse_updates(traced)
    assert (_count(fused, aten.mm.default), _count(fused, aten.addmm.default)) == (0, 1)
    torch.testing.assert_close(fused(*GIVEN), FUSED[name](GIVEN))
    assert _count(traced, aten.addmm.default) == 0


@pytest.mark.parametrize("name", KEPT)
def test_what_is_no_update_stays(name: str) -> None:
    fused = fuse_updates(_traced(KEPT[name]))
    assert _count(fused, aten.addmm.default) == 0
    torch.testing.assert_close(fused(*GIVEN), KEPT[name](GIVEN))


def test_a_gradient_that_is_read_elsewhere_too_stays() -> None:
    def both(g: Given) -> tuple[Tensor, Tensor]:
        gradient = g.a @ g.b
        return g.w - g.lr * gradient, gradient

    fused = fuse_updates(_traced(both))
    assert _count(fused, aten.mm.default) == 1
    assert _count(fused, aten.addmm.default) == 0


@pytest.mark.parametrize(("rows", "columns"), [(2, 50), (50, 2)])
def test_the_smaller_factor_is_scaled(rows: int, columns: int) -> None:
    given = GIVEN._replace(w=torch.zeros(rows, columns), a=torch.randn(rows, 3), b=torch.randn(3, columns))
    fused = fuse_updates(make_fx(lambda *tensors: FUSED["descent"](Given(*tensors)))(*given))
    (scaled,) = (node for node in fused.graph.nodes if node.target is aten.mul.Tensor)
    assert scaled.meta["val"].numel() == 2 * 3
    torch.testing.assert_close(fused(*given), -given.lr * (given.a @ given.b))


READ_ELSEWHERE = {
    **dict.fromkeys(("fedcr", "feddc", "feddyn"), "its norm is clipped"),
    "fedprox": "its norm is told",
    **dict.fromkeys(("feddr", "proxskip", "scaffold"), "it is corrected before the step"),
    **dict.fromkeys(("pfedbred", "pfedmac", "pfedme"), "it is the inner step's"),
}
"""Algorithms whose gradient is more than what the weights step along, and why."""


@pytest.mark.parametrize("name", algorithms.names())
def test_every_algorithms_weights_are_updated_so(name: str) -> None:
    algorithm, model = algorithms.build(name, {}), around(nn.ReLU())
    functions = entry_functions(Binding(algorithm, gaussian(model) if algorithm.represented else model))
    traced = trace(functions[Entry.STEP])
    fused = fuse_updates(traced.module)
    before, after = _count(traced.module, aten.mm.default), _count(fused, aten.mm.default)
    assert (before - after < 2) == (name in READ_ELSEWHERE)
    for found, wanted in zip(fused(*traced.example), traced.module(*traced.example), strict=True):
        torch.testing.assert_close(found, wanted)
