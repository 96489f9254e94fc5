"""A step in training mode by this package and by torch's own modules, in double precision."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgepfl.tree import Tree
from exporters.minibatch import ModelMinibatch
from exporters.model import Model, seeded
from exporters.statistics import Measured

LR = 0.5


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def doubled(model: Model, *, moved: float = 0.1) -> Tree:
    """Its initial tensors in double precision, moved so that no scale is 1 and no mean 0."""
    source = torch.Generator().manual_seed(3)
    return model.parameters.map(lambda t: t.double() + moved * torch.rand(t.shape, generator=source).double())


def minibatch(
    model: Model, x: Tensor, y: Tensor, weight: Sequence[float] | None = None, noise: Sequence[Tensor] = ()
) -> ModelMinibatch:
    weights = torch.ones(len(y)) if weight is None else torch.tensor(weight)
    return ModelMinibatch(model, (x,), y, weights.double(), noise)


def stepped(params: Tree, gradient: Tree) -> dict[str, Tensor]:
    """``params - LR * gradient`` as it would be stored."""
    moved = params - LR * gradient
    return {name: tensor.resolved() if isinstance(tensor, Measured) else tensor for name, tensor in moved.items()}


@dataclass(frozen=True)
class Torchs:
    """One step by torch alone.

    Attributes:
        loss: before it.
        tensors: every parameter and running statistic after it.
    """

    loss: Tensor
    tensors: dict[str, Tensor]


def by_torch(model: Model, params: Tree, x: Tensor, y: Tensor) -> Torchs:
    """SGD on torch's own modules in their own modes, the mean cross-entropy."""
    module = copy.deepcopy(model.module).double()
    module.load_state_dict(dict(params.items()), strict=False)
    loss = functional.cross_entropy(module(x), y)
    loss.backward()  # type: ignore[no-untyped-call]  # torch left it untyped
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.sub_(LR * parameter.grad)
    found = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return Torchs(loss.detach(), {name: found[name].detach() for name in params})


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in found.items():
        assert torch.allclose(tensor, wanted[name], rtol=1e-9, atol=1e-12), (name, tensor, wanted[name])


class Around(nn.Module):
    """A linear layer, something on ``(batch, 6)`` or what it is viewed as, and a head of three classes."""

    def __init__(self, layer: nn.Module, view: tuple[int, ...] = (6,)) -> None:
        super().__init__()
        self.body = nn.Linear(5, 6 if view == (6,) else int(torch.tensor(view).prod()))
        self.layer = layer
        self.head = nn.Linear(self.body.out_features, 3)
        self.view = view

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(self.body(x).reshape(-1, *self.view))
        return self.head(h.flatten(1))  # type: ignore[no-any-return]  # torch's untyped call


def seeded_around(layer: nn.Module, view: tuple[int, ...] = (6,)) -> nn.Module:
    return seeded(lambda: Around(layer, view), 0)
