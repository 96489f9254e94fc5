from __future__ import annotations

from typing import Any

import pytest
import torch
from _models import around, fedavg, tiny_cnn
from torch import nn

from edgepfl.errors import ConfigError, ExportError
from edgepfl.plan import ExampleSpec, TensorSpec
from exporters import zoo
from exporters.build import build
from exporters.model import model_of
from exporters.objectives import mse


def test_the_zoo_is_seeded_and_of_the_promised_size() -> None:
    watch = zoo.cnn1d(seed=3)
    assert sum(spec.size for spec in watch.specs.values()) == 7287
    assert watch.outputs(watch.parameters, (torch.zeros(16, 6, 100),)).shape == (16, 7)
    assert torch.equal(zoo.mlp(seed=3).parameters["head.bias"], zoo.mlp(seed=3).parameters["head.bias"])
    assert not torch.equal(zoo.mlp(seed=3).parameters["head.bias"], zoo.mlp(seed=4).parameters["head.bias"])


def test_making_a_seeded_model_leaves_torchs_generator_alone() -> None:
    before = torch.random.get_rng_state()
    model = zoo.mlp(hidden=2)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert model.specs["body.weight"] == TensorSpec((2, 64))


def test_personal_patterns_name_parameters() -> None:
    assert tiny_cnn().personal_names == ("head.bias", "head.weight")
    assert tiny_cnn(()).personal_names == ()
    with pytest.raises(ExportError, match=r"no parameter matches 'tail\.\*'.*conv\.bias"):
        _ = tiny_cnn(("tail.*",)).personal_names


def test_other_parameters_than_the_models_are_refused() -> None:
    model = tiny_cnn()
    body = model.parameters.like({"conv.bias": 0, "conv.weight": 0})
    with pytest.raises(ExportError, match=r"head\.bias") as caught:
        model.outputs(body, (torch.zeros(4, 2, 9),))
    assert caught.value.where == "tiny"


def test_personal_patterns_name_running_statistics_too() -> None:
    model = model_of(nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3)), [(5,)], personal=("1.*",))
    assert model.statistics == ("1.running_mean", "1.running_var")
    assert model.personal_names == ("1.bias", "1.running_mean", "1.running_var", "1.weight")


def test_a_frozen_normalisation_has_no_statistics_that_move() -> None:
    module = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3).eval())
    model = model_of(module, [(5,)])
    assert model.statistics == ()
    assert "1.running_mean" not in model.specs
    assert not module[1].training


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"batch": 0}, "batch: 0 will not do, it must be from 1 to 65536"),
        ({"batch": (1 << 16) + 1}, "batch: 65537 will not do"),
        ({"metrics": {"loss": mse}}, "metrics: no metric may be called loss"),
        ({"metrics": {"weight": mse}}, "metrics: no metric may be called weight"),
    ],
)
def test_settings_that_cannot_be(bad: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_of(nn.Linear(5, 3), [(5,)], **bad)
    assert model_of(nn.Linear(5, 3), [(5,)]).target == ExampleSpec((), "int64", high=3)


@pytest.mark.parametrize("count", [0, 17])
def test_a_model_has_inputs_but_not_too_many(count: int) -> None:
    with pytest.raises(ConfigError, match=f"inputs: a model has 1 to 16 inputs, not {count}") as caught:
        model_of(nn.Linear(5, 3), [(5,)] * count)
    assert caught.value.where == "inputs"


def test_a_loss_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ConfigError, match="no loss 'hinge'") as caught:
        model_of(nn.Linear(5, 3), [(5,)], loss="hinge")
    assert caught.value.remedy == "Choose one of cross_entropy, mse, bce, huber"


def test_a_shape_with_nothing_in_it_is_refused() -> None:
    with pytest.raises(ValueError, match="has a dimension outside"):
        model_of(nn.Linear(5, 3), [(0,)])
    assert model_of(nn.Linear(5, 3), [(2, 5)]).target == ExampleSpec((5 - 2,), "int64", high=2)  # positions


class _LogGamma(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.lgamma(x.abs() + 1)


class _Noisy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.randn_like(x)


class _Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (_LogGamma(), r"module 1 \(_LogGamma\).*lgamma"),
        (_Noisy(), "draws random numbers"),
        (_Branching(), "must not branch"),
        (nn.RReLU(), "draws random numbers"),
    ],
)
def test_operators_that_no_graph_can_hold_are_named(layer: nn.Module, message: str) -> None:
    with pytest.raises(ExportError, match=message) as caught:
        build(fedavg(), around(layer))
    assert caught.value.remedy
