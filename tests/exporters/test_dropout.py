"""Dropout draws from the noise that it is given, and is torch's own otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar

import pytest
import torch
from _training import doubled, minibatch, normal, seeded_around
from torch import Tensor, nn
from torch.nn import functional

from edgepfl import algorithms
from edgepfl.algorithms.fedavg import FedAvg
from edgepfl.errors import ExportError, PlanError
from edgepfl.plan import Entry, Role, Slot, TensorSpec, noise
from exporters.binding import DROPOUT, Binding
from exporters.build import build
from exporters.eager import EagerRunner
from exporters.entries import entry_functions
from exporters.forward import Forward
from exporters.graph import trace
from exporters.model import Model, model_of, seeded

SIZE = 6
Y = torch.tensor([0, 1, 2, 0, 1, 1])


def _run(layer: Callable[[Tensor], Tensor], x: Tensor, *noise: Tensor) -> Tensor:
    with Forward(torch.ones(len(x)), noise):
        return layer(x)


def _kept(noise: Tensor, p: float) -> Tensor:
    return (noise > NormalDist().inv_cdf(p)).to(noise.dtype)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_mask_follows_the_noise_and_what_is_kept_is_scaled(p: float) -> None:
    x, noise = normal(SIZE, 40), normal(SIZE, 40, seed=1)
    found = _run(nn.Dropout(p), x, noise)
    torch.testing.assert_close(found, x * _kept(noise, p) / (1 - p))
    assert 0 < torch.count_nonzero(found) < found.numel()


@pytest.mark.parametrize("p", [0.05, 0.3, 0.5, 0.8])
def test_its_rate_is_p(p: float) -> None:
    noise = normal(200, 500)
    dropped = float((_run(nn.Dropout(p), torch.ones(200, 500).double(), noise) == 0).double().mean())
    assert abs(dropped - p) < 5 * math.sqrt(p * (1 - p) / noise.numel())
    assert _run(nn.Dropout(p), torch.ones(200, 500).double(), noise).mean() == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Dropout1d(0.5), (SIZE, 8, 5)),
        (nn.Dropout2d(0.5), (SIZE, 8, 3, 4)),
        (nn.Dropout3d(0.5), (SIZE, 8, 2, 3, 2)),
        (nn.FeatureAlphaDropout(0.5), (SIZE, 8, 3, 4)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whole_channels_of_an_example_are_dropped(layer: nn.Module, shape: tuple[int, ...]) -> None:
    forward = Forward(torch.ones(SIZE))
    with forward:
        layer(torch.ones(shape))
    noise = normal(*forward.shapes[0], seed=2)
    found = _run(layer, torch.ones(shape, dtype=torch.float64), noise).flatten(2)
    assert forward.shapes == [(SIZE, 8, *[1] * (len(shape) - 2))]
    assert (found == found[:, :, :1]).all()
    assert len(set(found.flatten().tolist())) == 2


def test_alpha_dropout_keeps_mean_and_variance() -> None:
    x = normal(400, 500)
    found = _run(nn.AlphaDropout(0.3), x, normal(400, 500, seed=1))
    assert abs(float(found.mean())) < 0.01
    assert float(found.var()) == pytest.approx(1, abs=0.02)
    assert float((found == found.min()).double().mean()) < 0.31


def test_alpha_dropout_is_torchs_formula() -> None:
    """What torch gives for a unit that it keeps and for one that it drops, found by asking it."""
    torchs = nn.AlphaDropout(0.3)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        drawn = torchs(torch.full((1000,), 0.7, dtype=torch.float64)).unique()
    noise = torch.tensor([[9.0, -9.0]], dtype=torch.float64)
    found = _run(torchs, torch.full((1, 2), 0.7, dtype=torch.float64), noise)
    assert sorted(found[0].tolist()) == pytest.approx(sorted(drawn.tolist()), rel=1e-12)
    assert found[0, 0] > found[0, 1]


@pytest.mark.parametrize("layer", [nn.Dropout, nn.AlphaDropout, nn.Dropout1d])
def test_with_p_of_1_nothing_is_left_and_with_p_of_0_all(layer: type[nn.Dropout]) -> None:
    x, noise = normal(SIZE, 4, 3), normal(SIZE, 4, 1 if layer.__name__ == "Dropout1d" else 3, seed=1)
    assert torch.count_nonzero(_run(layer(1.0), x, noise)) == 0
    assert torch.equal(_run(layer(0.0), x), x)
    assert torch.equal(_run(layer(0.9).eval(), x), x)


def test_each_call_has_noise_of_its_own() -> None:
    layer = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.2))
    x, first, second = normal(SIZE, 40), normal(SIZE, 40, seed=1), normal(SIZE, 40, seed=2)
    found = _run(layer, x, first, second)
    torch.testing.assert_close(found, x * _kept(first, 0.5) / 0.5 * _kept(second, 0.2) / 0.8)
    assert not torch.equal(found, _run(layer, x, second, first))


def test_its_gradient_goes_through_what_is_kept() -> None:
    x, noise = normal(SIZE, 40).requires_grad_(), normal(SIZE, 40, seed=1)
    (slope,) = torch.autograd.grad(_run(nn.Dropout(0.4), x, noise).sum(), x)
    torch.testing.assert_close(slope, _kept(noise, 0.4) / 0.6)
    assert slope.shape == x.shape


class _Attention(nn.Module):
    def __init__(self, *, need_weights: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, dropout=0.3, batch_first=True)
        self.need_weights = need_weights

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=self.need_weights)[0]  # type: ignore[no-any-return]  # untyped


def _attention_by_hand(attention: nn.MultiheadAttention, x: Tensor, noise: Tensor) -> Tensor:
    """The equations, a head at a time, with one mask for each head's shares."""
    q, k, v = (
        functional.linear(x, w, b)
        for w, b in zip(attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3), strict=True)
    )
    masks = _kept(noise, 0.3).reshape(len(x), 2, x.shape[1], x.shape[1]) / 0.7
    heads = []
    for head in range(2):
        part = slice(3 * head, 3 * head + 3)
        shares = torch.softmax(q[..., part] @ k[..., part].transpose(1, 2) / 3**0.5, -1) * masks[:, head]
        heads.append(shares @ v[..., part])
    return attention.out_proj(torch.cat(heads, -1))  # type: ignore[no-any-return]  # torch's untyped call


@pytest.mark.parametrize("need_weights", [True, False])
def test_attention_drops_its_shares_by_the_noise(*, need_weights: bool) -> None:
    layer = seeded(lambda: _Attention(need_weights=need_weights), 0).double()
    x = normal(SIZE, 5, 6)
    forward = Forward(torch.ones(SIZE))
    with forward:
        layer(x)
    [shape] = forward.shapes
    noise = normal(*shape, seed=1)
    found = _run(layer, x, noise)
    torch.testing.assert_close(found, _attention_by_hand(layer.attention, x, noise))
    assert not torch.allclose(found, layer.eval()(x))


def _model(layer: nn.Module | None = None) -> Model:
    return model_of(seeded_around(layer or nn.Dropout(0.5)), [(5,)], batch=SIZE)


def test_all_gradients_of_a_step_have_the_same_mask() -> None:
    model = _model()
    params, x, noise = doubled(model), normal(SIZE, 5), [normal(SIZE, 6, seed=4)]
    batch = minibatch(model, x, Y, noise=noise)
    first, again = batch.grad(params), batch.grad(params)
    other = minibatch(model, x, Y, noise=[normal(SIZE, 6, seed=5)]).grad(params)
    for name in model.specs:
        assert torch.equal(first[name], again[name])
    assert not torch.equal(first["body.weight"], other["body.weight"])


def test_a_gradient_is_that_of_the_network_without_the_dropped_units() -> None:
    model = _model()
    params, x, noise = doubled(model), normal(SIZE, 5), normal(SIZE, 6, seed=4)
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in params.items()}
    hidden = (x @ leaves["body.weight"].T + leaves["body.bias"]) * _kept(noise, 0.5) * 2
    loss = functional.cross_entropy(hidden @ leaves["head.weight"].T + leaves["head.bias"], Y)
    wanted = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
    found = minibatch(model, x, Y, noise=[noise]).grad(params)
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor)
    assert set(found) == set(wanted)


def test_the_plan_has_one_noise_tensor_for_each_call() -> None:
    layer = nn.Sequential(nn.Dropout(0.5), nn.Unflatten(1, (3, 2)), nn.Dropout1d(0.2), nn.Flatten(), nn.Dropout(0.0))
    slots = Binding(algorithms.build("ditto", {}), _model(layer)).slots
    assert slots[DROPOUT].role is Role.NOISE
    assert slots[DROPOUT].tensors == {"000": TensorSpec((SIZE, 6)), "001": TensorSpec((SIZE, 3, 1))}
    assert DROPOUT not in Binding(algorithms.build("ditto", {}), _model(nn.Dropout(0.5).eval())).slots


def test_training_graphs_read_the_noise_and_the_others_do_not() -> None:
    binding = Binding(algorithms.build("fedavg", {}), _model())
    functions = entry_functions(binding)
    read = {entry: {port.group for port in trace(functions[entry]).ports.inputs} for entry in functions}
    assert {entry for entry, groups in read.items() if DROPOUT in groups} == {Entry.STEP, Entry.TUNE}
    assert read[Entry.PREDICT] == {"", "x"}


def test_a_step_is_the_same_for_the_same_noise_to_the_bit() -> None:
    model = _model()
    runner = EagerRunner(algorithms.build("fedavg", {}), model)
    step = runner.functions[Entry.STEP]
    rng = torch.Generator().manual_seed(0)
    feeds = {
        port.name: torch.zeros(port.spec.shape, dtype=torch.int64).numpy()
        if port.spec.dtype == "int64"
        else torch.randn(port.spec.shape, generator=rng).numpy()
        for port in step.inputs
    }
    once, again = runner.run(Entry.STEP, feeds), runner.run(Entry.STEP, feeds)
    assert {name: array.tobytes() for name, array in once.items()} == {n: a.tobytes() for n, a in again.items()}
    feeds[f"{DROPOUT}/000"] = -feeds[f"{DROPOUT}/000"]
    assert runner.run(Entry.STEP, feeds)["metric:loss"] != once["metric:loss"]


def test_looking_at_a_model_draws_nothing_from_torchs_generator() -> None:
    before = torch.random.get_rng_state()
    model = _model()
    assert model.noise == (TensorSpec((SIZE, 6)),)
    assert torch.equal(torch.random.get_rng_state(), before)


class _PastUs(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.dropout(x, 0.5, self.training)


def test_a_mask_that_is_drawn_elsewhere_is_refused() -> None:
    with pytest.raises(ExportError, match="draws random numbers") as caught:
        build(algorithms.build("fedavg", {}), _model(_PastUs()))
    assert "nn.Dropout" in caught.value.remedy


@dataclass(frozen=True)
class _Taken(FedAvg):
    slots: ClassVar[Mapping[str, Slot]] = {**FedAvg.slots, DROPOUT: noise(3)}


def test_an_algorithm_may_not_have_a_slot_of_that_name() -> None:
    with pytest.raises(PlanError, match="slot 'dropout' is taken for the model's dropout") as caught:
        _ = Binding(_Taken(), _model()).slots
    assert caught.value.where == "slots"
    assert Binding(_Taken(), _model(nn.Identity())).slots[DROPOUT].tensors == {"": TensorSpec((3,))}
