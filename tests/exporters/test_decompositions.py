from __future__ import annotations

import torch
from torch import nn
from torch.func import functionalize, grad
from torch.fx.experimental.proxy_tensor import make_fx

from exporters.decompositions import OWN, complete

aten = torch.ops.aten


def test_the_gradient_of_relu_at_zero_is_zero() -> None:
    x = torch.tensor([-1.0, 0.0, -0.0, 2.0])

    def tripled(z: torch.Tensor) -> torch.Tensor:
        return (3 * z.relu()).sum()

    gradient = make_fx(grad(tripled), decomposition_table=dict(complete()))(x)
    assert gradient(x).tolist() == [0, 0, 0, 3]
    assert not any("threshold" in str(node.target) or "where" in str(node.target) for node in gradient.graph.nodes)


def test_nothing_that_a_runtime_gets_wrong_is_left_in_a_trace() -> None:
    module = nn.Sequential(
        nn.Conv1d(1, 2, 3), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(2, 2, 1), nn.AvgPool1d(2), nn.SiLU()
    )
    params = {name: tensor.detach() for name, tensor in module.named_parameters()}

    def loss(tensors: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        logits = torch.func.functional_call(module, tensors, (x,)).flatten(1)
        return nn.functional.cross_entropy(logits, torch.zeros(2, dtype=torch.int64))

    traced = make_fx(functionalize(grad(loss)), decomposition_table=dict(complete()))(params, torch.randn(2, 1, 12))
    left = {node.target for node in traced.graph.nodes}
    assert not left & set(OWN)
    assert not left & {aten.nll_loss_forward.default, aten.nll_loss_backward.default}


def test_our_decompositions_go_before_torchs() -> None:
    table = complete()
    assert len(table) > len(OWN)
    assert all(table[operator] is function for operator, function in OWN.items())
