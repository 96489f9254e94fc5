from __future__ import annotations

import torch
from _models import tiny_cnn
from torch.nn import functional

from edgepfl.tree import Tree
from exporters.minibatch import ModelMinibatch, weighted_mean

MODEL = tiny_cnn()
PARAMS = MODEL.parameters


def _minibatch(weight: list[float], *, noise: float = 0.0) -> ModelMinibatch:
    torch.manual_seed(1)
    x, y = torch.randn(4, 2, 9), torch.tensor([0, 1, 1, 0])
    x[2:] += noise
    return ModelMinibatch(MODEL, (x,), y, torch.tensor(weight))


def _assert_close(a: Tree, b: Tree) -> None:
    assert list(a) == list(b)
    for name in a:
        torch.testing.assert_close(a[name], b[name])


def test_the_gradient_is_that_of_the_mean_cross_entropy() -> None:
    batch = _minibatch([1, 1, 1, 1])
    loss = functional.cross_entropy(MODEL.module(*batch.x), batch.y)
    names, tensors = zip(*MODEL.module.named_parameters(), strict=True)
    wanted = Tree(dict(zip(names, torch.autograd.grad(loss, tensors), strict=True)))
    _assert_close(batch.grad(PARAMS), wanted)
    assert batch.loss is not None
    torch.testing.assert_close(batch.loss, loss.detach())


def test_padding_rows_have_no_influence() -> None:
    padded = _minibatch([1, 1, 0, 0])
    disturbed = _minibatch([1, 1, 0, 0], noise=100.0)
    short = ModelMinibatch(MODEL, (padded.x[0][:2],), padded.y[:2], torch.ones(2))
    _assert_close(padded.grad(PARAMS), disturbed.grad(PARAMS))
    _assert_close(padded.grad(PARAMS), short.grad(PARAMS))


def test_a_minibatch_of_nothing_but_padding_changes_nothing() -> None:
    batch = _minibatch([0, 0, 0, 0])
    gradient = batch.grad(PARAMS)
    assert batch.loss == 0
    assert all(torch.count_nonzero(tensor) == 0 for tensor in gradient.values())
    assert weighted_mean(torch.tensor([1.0, 3.0]), torch.tensor([0.1, 0.1])) == 2  # small sums count in full


def test_the_loss_is_that_of_the_first_gradient() -> None:
    batch = _minibatch([1, 1, 1, 1])
    assert batch.loss is None
    batch.grad(PARAMS)
    first = batch.loss
    batch.grad(0.5 * PARAMS)
    assert batch.loss is first


def test_an_objective_of_the_algorithms_own() -> None:
    value, gradient = _minibatch([1, 1, 1, 1]).value_and_grad(lambda tree: tree.dot(tree), PARAMS)
    torch.testing.assert_close(value, PARAMS.dot(PARAMS))
    _assert_close(gradient, 2 * PARAMS)
