"""What a module draws besides dropout comes from the noise that it is given: stochastic depth and its like."""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist

import pytest
import torch
from _training import assert_same, by_torch, doubled, minibatch, normal, seeded_around, stepped
from torch import Tensor, nn
from torch.nn import functional

from edgepfl import algorithms
from edgepfl.errors import ExportError
from edgepfl.plan import Entry
from exporters.binding import DROPOUT
from exporters.build import build
from exporters.forward import Forward
from exporters.model import model_of

SIZE, KEEP = 6, 0.7


def _in_place(x: Tensor) -> Tensor:
    """As vision models write it."""
    mask = torch.empty([len(x)] + [1] * (x.dim() - 1), dtype=x.dtype)
    mask = mask.bernoulli_(KEEP)
    mask.div_(KEEP)
    return x * mask


def _floored(x: Tensor) -> Tensor:
    """As language models write it."""
    mask = KEEP + torch.rand((len(x),) + (1,) * (x.dim() - 1), dtype=x.dtype, device=x.device)
    return x.div(KEEP) * mask.floor_()


def _compared(x: Tensor) -> Tensor:
    return x * (torch.rand_like(x[:, :1]) < KEEP) / KEEP


class _Draws(nn.Module):
    def __init__(self, draw: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, x: Tensor) -> Tensor:
        return x + self.draw(torch.tanh(x)) if self.training else x + torch.tanh(x)


@pytest.mark.parametrize("draw", [_in_place, _floored, _compared])
def test_stochastic_depth_keeps_an_examples_branch_as_the_noise_says(draw: Callable[[Tensor], Tensor]) -> None:
    x, noise = normal(400, 5), normal(400, 1, seed=1)
    with Forward(torch.ones(400), [noise]) as forward:
        found = draw(x)
    kept = (found != 0).double()
    assert forward.shapes == [(400, 1)]
    assert (kept == kept[:, :1]).all()
    torch.testing.assert_close(found, x * kept / KEEP)
    low = NormalDist().inv_cdf(1 - KEEP)
    assert torch.equal(kept[:, :1] == 1, noise < -low if draw is _compared else noise > low)


@pytest.mark.parametrize("draw", [_in_place, _floored, _compared])
def test_such_a_model_exports_and_predicts_without_noise(draw: Callable[[Tensor], Tensor]) -> None:
    model = model_of(seeded_around(_Draws(draw)), [(5,)], batch=4)
    assert [spec.shape for spec in model.noise] == [(4, 1)]
    made = build(algorithms.build("fedavg", {}), model)
    assert any(port.group == DROPOUT for port in made.plan.graphs[Entry.STEP].inputs)
    assert not any(port.group == DROPOUT for port in made.plan.graphs[Entry.PREDICT].inputs)


def test_normal_numbers_are_the_noise_itself() -> None:
    first, second = normal(3, 2), normal(SIZE, 4, seed=1)
    with Forward(torch.ones(SIZE), [first, second]) as forward:
        found = torch.randn(3, 2, dtype=torch.float64), torch.randn_like(second)
    assert torch.equal(found[0], first)
    assert torch.equal(found[1], second)
    assert forward.shapes == [(3, 2), (SIZE, 4)]


@pytest.mark.parametrize("sizes", [(4, 2), ([4, 2],), (torch.Size((4, 2)),)])
def test_uniform_numbers_are_from_0_to_1(sizes: tuple[int, ...]) -> None:
    noise = torch.tensor([[0.0, 9.0], [-9.0, 1.0]] * 2)
    with Forward(torch.ones(SIZE), [noise]):
        found = torch.rand(*sizes)
    torch.testing.assert_close(found[:2], torch.tensor([[0.5, 1.0], [0.0, 0.841345]]))
    assert found.dtype is torch.float32


def test_probabilities_of_a_tensor_are_refused() -> None:
    with Forward(torch.ones(2)), pytest.raises(ExportError, match="a tensor of probabilities") as caught:
        torch.empty(2).bernoulli_(torch.tensor([0.1, 0.9]))
    assert caught.value.remedy


class _Standardised(nn.Linear):
    """As convolutions standardise their weights: by batch normalisation of what is no minibatch."""

    def forward(self, x: Tensor) -> Tensor:
        rows = self.weight.reshape(1, self.out_features, -1)
        scale = torch.linspace(0.5, 1.5, self.out_features, dtype=x.dtype)
        weight = functional.batch_norm(rows, None, None, weight=scale, training=True, momentum=0.0, eps=1e-3)
        return functional.linear(x, weight.reshape(self.weight.shape), self.bias)


def test_weights_that_are_standardised_train_as_torch() -> None:
    model = model_of(seeded_around(_Standardised(6, 6)), [(5,)], batch=SIZE)
    params, x, y = doubled(model), normal(SIZE, 5), torch.tensor([0, 1, 2, 0, 1, 1])
    found = stepped(params, minibatch(model, x, y).grad(params))
    assert_same(found, by_torch(model, params, x, y).tensors)
    assert build(algorithms.build("fedavg", {}), model).graphs["onnx"]
