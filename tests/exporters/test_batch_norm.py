"""Batch normalisation in training mode: torch's own, on the rows that count."""

from __future__ import annotations

import copy

import pytest
import torch
from _training import assert_same, by_torch, doubled, minibatch, normal, seeded_around, stepped
from torch import Tensor, nn
from torch.nn import functional

from edgepfl import algorithms
from edgepfl.errors import ExportError
from edgepfl.plan import Entry
from exporters.admission import admit
from exporters.binding import Binding
from exporters.entries import entry_functions
from exporters.forward import Forward
from exporters.graph import trace
from exporters.model import Model, model_of, seeded

SIZE = 6
Y = torch.tensor([0, 1, 2, 0, 1, 1])
LAYERS = [
    pytest.param(nn.BatchNorm1d(6), (6,), id="1d flat"),
    pytest.param(nn.BatchNorm1d(2), (2, 4), id="1d"),
    pytest.param(nn.BatchNorm2d(2), (2, 3, 2), id="2d"),
    pytest.param(nn.BatchNorm3d(2), (2, 1, 2, 3), id="3d"),
    pytest.param(nn.BatchNorm1d(6, momentum=0.7, eps=0.1), (6,), id="momentum and eps"),
    pytest.param(nn.BatchNorm1d(6, momentum=1.0), (6,), id="no memory"),
    pytest.param(nn.BatchNorm1d(6, momentum=0.0), (6,), id="nothing but memory"),
    pytest.param(nn.BatchNorm1d(6, affine=False), (6,), id="not affine"),
    pytest.param(nn.BatchNorm1d(6).eval(), (6,), id="frozen"),
    pytest.param(nn.Sequential(nn.BatchNorm1d(6), nn.ReLU(), nn.BatchNorm1d(6)), (6,), id="two"),
]


def _model(layer: nn.Module, view: tuple[int, ...] = (6,)) -> Model:
    return model_of(seeded_around(layer, view), [(5,)], batch=SIZE)


@pytest.mark.parametrize(("layer", "view"), LAYERS)
def test_a_step_on_a_full_minibatch_is_torchs(layer: nn.Module, view: tuple[int, ...]) -> None:
    model = _model(layer, view)
    params, x = doubled(model), normal(SIZE, 5)
    batch = minibatch(model, x, Y)
    found, wanted = stepped(params, batch.grad(params)), by_torch(model, params, x, Y)
    assert_same(found, wanted.tensors)
    assert batch.loss is not None
    torch.testing.assert_close(batch.loss, wanted.loss)


@pytest.mark.parametrize("real", [2, 3, 5])
@pytest.mark.parametrize(("layer", "view"), LAYERS)
def test_padding_rows_count_for_nothing(layer: nn.Module, view: tuple[int, ...], real: int) -> None:
    model = _model(layer, view)
    params, x = doubled(model), normal(SIZE, 5)
    x[real:] = 50 * x[real:] + 7
    weight = [1.0] * real + [0.0] * (SIZE - real)
    found = stepped(params, minibatch(model, x, Y, weight).grad(params))
    wanted = by_torch(model, params, x[:real], Y[:real])
    assert_same(found, wanted.tensors)
    assert not torch.equal(found["body.weight"], params["body.weight"])


@pytest.mark.parametrize(("layer", "view"), LAYERS)
def test_nothing_but_padding_moves_nothing(layer: nn.Module, view: tuple[int, ...]) -> None:
    model = _model(layer, view)
    params = doubled(model)
    found = stepped(params, minibatch(model, normal(SIZE, 5), Y, [0.0] * SIZE).grad(params))
    for name, tensor in params.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0)
    assert set(found) == set(model.specs)


def test_one_row_alone_is_finite_and_moves_the_mean() -> None:
    """Torch refuses it; a data set of 17 rows in minibatches of 16 asks for it."""
    model = _model(nn.BatchNorm1d(6))
    params, x = doubled(model), normal(SIZE, 5)
    found = stepped(params, minibatch(model, x, Y, [1.0] + [0.0] * 5).grad(params))
    row = functional.linear(x[:1], params["body.weight"], params["body.bias"])[0]
    torch.testing.assert_close(found["layer.running_mean"], 0.9 * params["layer.running_mean"] + 0.1 * row)
    assert all(torch.isfinite(tensor).all() for tensor in found.values())


def test_equal_weights_other_than_one_normalise_alike() -> None:
    model = _model(nn.BatchNorm1d(6))
    params, x = doubled(model), normal(SIZE, 5)
    once = minibatch(model, x, Y).grad(params)
    twice = minibatch(model, x, Y, [2.0] * SIZE).grad(params)
    torch.testing.assert_close(once["body.weight"], twice["body.weight"])
    torch.testing.assert_close(once["layer.running_mean"].value, twice["layer.running_mean"].value)


class _OverTime(nn.Module):
    """Normalises ``(batch * time, channels)``."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.BatchNorm1d(5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x.reshape(-1, 5)).reshape(x.shape)
        return self.head(h.mean(1))  # type: ignore[no-any-return]  # torch's untyped call


@pytest.mark.parametrize("real", [SIZE, 4])
def test_positions_folded_into_the_minibatch_are_rows_of_it(real: int) -> None:
    model = model_of(seeded(_OverTime, 0), [(4, 5)], batch=SIZE)
    params, x = doubled(model), normal(SIZE, 4, 5)
    weight = [1.0] * real + [0.0] * (SIZE - real)
    found = stepped(params, minibatch(model, x, Y, weight).grad(params))
    assert_same(found, by_torch(model, params, x[:real], Y[:real]).tensors)
    assert model.statistics == ("layer.running_mean", "layer.running_var")


def test_rows_that_are_no_multiple_of_the_minibatch_are_refused() -> None:
    forward = Forward(torch.ones(4))
    with forward, pytest.raises(ExportError, match="over 6 rows, and a minibatch has 4") as caught:
        functional.batch_norm(torch.zeros(6, 3), torch.zeros(3), torch.ones(3), training=True)
    assert caught.value.remedy == "Keep the examples on the first axis"


class _Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.BatchNorm1d(5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.layer(x) * 2 + 1))  # type: ignore[no-any-return]  # torch's untyped call


def test_a_layer_that_is_called_twice_moves_its_statistics_twice() -> None:
    model = model_of(seeded(_Twice, 0), [(5,)], batch=SIZE)
    params, x = doubled(model), normal(SIZE, 5)
    found, wanted = stepped(params, minibatch(model, x, Y).grad(params)), by_torch(model, params, x, Y)
    assert_same(found, wanted.tensors)
    assert not torch.allclose(found["layer.running_var"], 0.9 * params["layer.running_var"] + 0.1 * x.var(0))


def test_statistics_are_those_of_the_parameters_that_the_gradient_is_taken_at() -> None:
    """Two gradients of one step, as Ditto takes them, do not see each other's statistics."""
    model = _model(nn.BatchNorm1d(6))
    params, x = doubled(model), normal(SIZE, 5)
    other = params.map(lambda tensor: tensor * 1.5)
    batch = minibatch(model, x, Y)
    first, second = stepped(params, batch.grad(params)), stepped(other, batch.grad(other))
    assert_same(first, by_torch(model, params, x, Y).tensors)
    assert_same(second, by_torch(model, other, x, Y).tensors)


def test_exporting_leaves_the_users_module_as_it_was() -> None:
    module = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3))
    before = copy.deepcopy(module.state_dict())
    model = model_of(module, [(5,)], batch=3)
    admit(model)
    functions = entry_functions(Binding(algorithms.build("fedavg", {}), model))
    for entry in (Entry.STEP, Entry.TUNE, Entry.EVALUATE):
        assert trace(functions[entry]).ports.outputs
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert all(part.training for part in module.modules())
    assert module[1].num_batches_tracked == 0


class _Direct(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        mean, variance = torch.zeros(5), torch.ones(5)
        x = torch.batch_norm(x, None, None, mean, variance, self.training, 0.1, 1e-5, False)  # noqa: FBT003  torch's
        return self.head(x)  # type: ignore[no-any-return]  # torch's untyped call


def test_what_goes_past_the_interception_is_refused() -> None:
    with pytest.raises(ExportError, match=r"torch\.batch_norm would count padding rows") as caught:
        model_of(_Direct(), [(5,)])
    assert "nn.BatchNorm" in caught.value.remedy
    assert model_of(_Direct().eval(), [(5,)]).statistics == ()
