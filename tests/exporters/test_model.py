from __future__ import annotations

import pytest
import torch
from _models import around, fedavg, tiny_cnn
from torch import nn

from edgepfl.errors import ConfigError, ExportError
from edgepfl.plan import TensorSpec
from exporters import zoo
from exporters.admission import admit
from exporters.build import build
from exporters.model import Model


def test_the_zoo_is_seeded_and_of_the_promised_size() -> None:
    watch = zoo.cnn1d(seed=3)
    assert sum(spec.size for spec in watch.specs.values()) == 7287
    assert watch.outputs(watch.parameters, torch.zeros(16, 6, 100)).shape == (16, 7)
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
        model.outputs(body, torch.zeros(4, 2, 9))
    assert caught.value.where == "tiny"


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (nn.BatchNorm1d(6), r"module 1 \(BatchNorm1d\): batch normalisation.*GroupNorm"),
        (nn.BatchNorm1d(6, track_running_stats=False).eval(), r"module 1 \(BatchNorm1d\)"),
        (nn.Dropout(0.5), r"module 1 \(Dropout\): dropout.*eval\(\)"),
        (nn.GRUCell(6, 6), r"module 1 \(GRUCell\): recurrent"),
        (nn.Linear(6, 6, dtype=torch.float64), r"parameter 1\.weight: it is torch\.float64"),
    ],
)
def test_layers_that_would_be_wrong_on_a_device_are_refused_by_name(layer: nn.Module, message: str) -> None:
    with pytest.raises(ExportError, match=message) as caught:
        admit(around(layer))
    assert caught.value.where.startswith(("module 1", "parameter 1"))


def test_the_same_layers_in_evaluation_are_admitted() -> None:
    for layer in (nn.BatchNorm1d(6).eval(), nn.Dropout(0.5).eval(), nn.Dropout(0.0)):
        model = around(layer)
        admit(model)
        assert model.module.get_submodule("1") is layer


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Model(nn.Linear(5, 3), (6,), 3), "does not take inputs of shape"),
        (Model(nn.Linear(5, 3), (5,), 4), r"gives \[16, 3\], not \[16, 4\]"),
        (Model(nn.Identity(), (5,), 5), None),
    ],
)
def test_shapes_are_checked_before_anything_is_traced(model: Model, message: str | None) -> None:
    if message is None:
        admit(model)
        assert model.personal_names == ()
        return
    with pytest.raises(ExportError, match=message) as caught:
        admit(model)
    assert caught.value.remedy


@pytest.mark.parametrize("bad", [{"loss": "hinge"}, {"batch": 0}, {"input": (0,)}, {"classes": 0}])
def test_settings_that_cannot_be(bad: dict[str, object]) -> None:
    settings: dict[str, object] = {"input": (5,), "classes": 3} | bad
    with pytest.raises(ConfigError) as caught:
        Model(nn.Linear(5, 3), **settings)  # type: ignore[arg-type]  # wrong on purpose
    assert next(iter(bad)) in str(caught.value)


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
        (_LogGamma(), r"module 1 \(_LogGamma\): operator lgamma has no translation"),
        (_Noisy(), "draws random numbers"),
        (_Branching(), "must not branch"),
        (nn.RReLU(), "draws random numbers"),
    ],
)
def test_operators_that_no_graph_can_hold_are_named(layer: nn.Module, message: str) -> None:
    with pytest.raises(ExportError, match=message) as caught:
        build(fedavg(), around(layer))
    assert caught.value.remedy
