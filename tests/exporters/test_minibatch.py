from __future__ import annotations

import pytest
import torch
from _models import tiny_cnn
from _training import Around, doubled, normal, stepped
from _training import minibatch as double_minibatch
from torch import Tensor, nn
from torch.nn import functional

from edgepfl.errors import ExportError
from edgepfl.tree import Tree
from exporters import zoo
from exporters.minibatch import ModelMinibatch, Pass, weighted_mean
from exporters.model import Model, model_of, seeded
from exporters.objectives import mixed

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


def _around(layer: nn.Module, view: tuple[int, ...] = (6,)) -> Model:
    return model_of(seeded(lambda: Around(layer, view), 0), [(5,)], batch=6)


ROWS, LABELS = normal(6, 5), torch.tensor([0, 1, 2, 0, 1, 1])
WEIGHT = [1.0, 1.0, 1.0, 1.0, 1.0, 0.0]


def test_the_parts_are_every_so_many_rows() -> None:
    batch = _minibatch([1, 1, 1, 0])
    for count in (1, 2, 3, 4):
        parts = batch.parts(count)
        assert len(parts) == count
        for place, part in enumerate(parts):
            for found, whole in ((part.x[0], batch.x[0]), (part.y, batch.y), (part.weight, batch.weight)):
                assert torch.equal(found, whole[torch.arange(4) % count == place])
    with pytest.raises(ExportError, match="a minibatch of 4 cannot be parted in 5") as caught:
        batch.parts(5)
    assert caught.value.remedy == "Export with --batch 5 or more"


def test_the_parts_gradients_come_to_the_wholes() -> None:
    batch = double_minibatch(_around(nn.Tanh()), ROWS, LABELS, WEIGHT)
    params = doubled(_around(nn.Tanh()))
    parts = batch.parts(3)
    total = sum(float(part.weight.sum()) for part in parts)
    shares = [float(part.weight.sum()) / total * part.grad(params) for part in parts]
    _assert_close(sum(shares[1:], shares[0]), batch.grad(params))
    assert total == 5


def test_the_loss_is_that_of_the_first_gradient_of_any_part() -> None:
    batch = _minibatch([1, 1, 1, 1])
    first, second = batch.parts(2)
    assert (batch.loss, first.loss) == (None, None)
    second.grad(PARAMS)
    wanted = second.mean(second.losses(second.outputs(PARAMS)))
    first.grad(PARAMS)
    for each in (batch, first, second):
        assert each.loss is not None
        torch.testing.assert_close(each.loss, wanted)


@pytest.mark.parametrize(
    ("layer", "view", "noises"),
    [
        pytest.param(nn.Dropout(0.4), (6,), [(6, 6)], id="an entry for each row"),
        pytest.param(nn.Dropout(0.4), (2, 3), [(6, 2, 3)], id="several in each row"),
    ],
)
def test_a_part_draws_what_its_rows_draw_in_the_whole(
    layer: nn.Module, view: tuple[int, ...], noises: list[tuple[int, ...]]
) -> None:
    model, noise = _around(layer, view), [normal(*shape, seed=2) for shape in noises]
    params = doubled(model)
    whole = double_minibatch(model, ROWS, LABELS, noise=noise)
    outputs = whole.outputs(params)
    assert torch.equal(outputs, whole.outputs(params))  # every pass of a step drops the same
    assert not torch.allclose(outputs, Pass(model, (ROWS,)).outputs(params))
    for place, part in enumerate(whole.parts(4)):
        torch.testing.assert_close(part.outputs(params), outputs[place::4])
        own = double_minibatch(model, ROWS[place::4], LABELS[place::4], noise=[each[place::4] for each in noise])
        _assert_close(part.grad(params), own.grad(params))


class Folded(nn.Module):
    """Drops units of rows and positions folded into one axis, or what is the same for the whole minibatch."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.body, self.head, self.drop, self.kind = nn.Linear(5, 8), nn.Linear(8, 3), nn.Dropout(0.4), kind

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        if not self.training:
            return self.head(h)  # type: ignore[no-any-return]  # torch's untyped call
        match self.kind:
            case "positions":
                h = self.drop(h.reshape(-1, 2)).reshape(len(x), 8)
            case "once":
                h = h * torch.randn(1, 8, dtype=h.dtype)
            case "crossed":
                h = self.drop(h.T).T
        return self.head(h)  # type: ignore[no-any-return]  # likewise


@pytest.mark.parametrize(("kind", "shape"), [("positions", (24, 2)), ("once", (1, 8))])
def test_a_part_draws_alike_where_a_layer_has_more_or_fewer_entries_than_rows(
    kind: str, shape: tuple[int, ...]
) -> None:
    model = model_of(seeded(lambda: Folded(kind), 0), [(5,)], batch=6)
    assert [spec.shape for spec in model.noise] == [shape]
    params = doubled(model)
    whole = double_minibatch(model, ROWS, LABELS, noise=[normal(*shape, seed=4)])
    outputs = whole.outputs(params)
    for count in (2, 4):
        for place, part in enumerate(whole.parts(count)):
            assert torch.allclose(part.outputs(params), outputs[place::count], rtol=1e-12)
    assert not torch.allclose(outputs, Pass(model, (ROWS,)).outputs(params))


def test_a_layer_whose_first_axis_is_not_the_examples_is_refused_in_parts() -> None:
    model = model_of(seeded(lambda: Folded("crossed"), 0), [(5,)], batch=6)
    whole = double_minibatch(model, ROWS, LABELS, noise=[normal(8, 6)])
    params = doubled(model)
    assert whole.outputs(params).shape == (6, 3)
    with pytest.raises(ExportError, match=r"it draws \[8, 3\] random numbers") as caught:
        whole.parts(2)[0].outputs(params)
    assert caught.value.remedy == "Keep the examples on the first axis"


def test_a_part_measures_the_statistics_of_its_own_rows_that_count() -> None:
    model = _around(nn.BatchNorm1d(6))
    params = doubled(model)
    part = double_minibatch(model, ROWS, LABELS, WEIGHT).parts(2)[1]  # rows 1, 3 and 5, which is padding
    hidden = ROWS[[1, 3]] @ params["body.weight"].T + params["body.bias"]
    found = stepped(params, part.grad(params))
    for name, measured in (("mean", hidden.mean(0)), ("var", hidden.var(0))):
        before = params[f"layer.running_{name}"]
        torch.testing.assert_close(found[f"layer.running_{name}"], before + 0.1 * (measured - before))


def test_a_gradient_where_another_parts_led() -> None:
    """As Per-FedAvg takes it: the statistics go on from those that the first part moved."""
    model = _around(nn.BatchNorm1d(6))
    params = doubled(model)
    first, second = double_minibatch(model, ROWS, LABELS).parts(2)
    led = Tree(stepped(params, first.grad(params)))
    found = stepped(params, second.grad(params - 0.5 * first.grad(params)))
    wanted = double_minibatch(model, ROWS[1::2], LABELS[1::2]).grad(led)
    for name, tensor in stepped(params, wanted).items():
        torch.testing.assert_close(found[name], tensor)
    assert not torch.allclose(found["layer.running_mean"], stepped(params, second.grad(params))["layer.running_mean"])


def test_one_number_for_each_row_and_their_mean() -> None:
    batch = double_minibatch(_around(nn.Tanh()), ROWS, LABELS, WEIGHT)
    params = doubled(_around(nn.Tanh()))
    losses = batch.losses(batch.outputs(params))
    torch.testing.assert_close(losses, functional.cross_entropy(batch.outputs(params), LABELS, reduction="none"))
    torch.testing.assert_close(batch.mean(losses), losses[:5].mean())
    assert double_minibatch(_around(nn.Tanh()), ROWS, LABELS, [0.0] * 6).mean(losses) == 0
    value, _ = batch.value_and_grad(lambda tree: batch.mean(batch.losses(batch.outputs(tree))), params)
    torch.testing.assert_close(value, losses[:5].mean())


def test_several_models_outputs_are_mixed_as_their_loss_calls_for() -> None:
    batch = double_minibatch(_around(nn.Tanh()), ROWS, LABELS)
    outputs = [normal(6, 3, seed=seed) for seed in (1, 2)]
    shares = torch.tensor([0.25, 0.75], dtype=torch.float64)
    found = batch.mixture(outputs, shares)
    probabilities = 0.25 * outputs[0].softmax(1) + 0.75 * outputs[1].softmax(1)
    torch.testing.assert_close(found.softmax(1), probabilities)
    assert not torch.allclose(found, mixed(functional.mse_loss, outputs, shares))
    assert torch.equal(found, Pass(zoo.mlp(inputs=5, classes=3, batch=6), (ROWS,)).mixture(outputs, shares))


def test_predicting_draws_nothing_and_takes_the_running_statistics() -> None:
    module = nn.Sequential(nn.BatchNorm1d(6), nn.Dropout(0.5))
    model = _around(module)
    params = doubled(model)
    found = Pass(model, (ROWS,)).outputs(params)
    torch.testing.assert_close(found[:2], Pass(model, (ROWS[:2],)).outputs(params))  # each row by itself
    training = double_minibatch(model, ROWS, LABELS, noise=[normal(6, 6)])
    assert not torch.allclose(training.outputs(params), found)
