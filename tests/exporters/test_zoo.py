from __future__ import annotations

import pytest
import torch
from torch import nn

from edgepfl.plan import ExampleSpec
from exporters import zoo
from exporters.admission import admit
from exporters.forward import Forward
from exporters.model import Model, dry_run

PARAMETERS = {
    "mlp": 4_810,
    "lenet": 61_706,
    "cnn1d": 7_287,
    "tcn": 11_959,
    "gru": 8_135,
    "ds_cnn": 24_332,
    "mobilenet": 23_770,
    "resnet": 78_714,
    "vit": 48_538,
}


def size(model: Model) -> int:
    return sum(spec.size for spec in model.specs.values())


@pytest.mark.parametrize("name", zoo.ZOO)
def test_each_model_is_seeded_and_of_its_size_and_has_a_head(name: str) -> None:
    model, again, other = zoo.ZOO[name](seed=1), zoo.ZOO[name](seed=1), zoo.ZOO[name](seed=2)
    assert size(model) == PARAMETERS[name]
    weights = [each.parameters["head.weight"] for each in (model, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert zoo.ZOO[name](personal=("head.*",)).personal_names == ("head.bias", "head.weight")


@pytest.mark.parametrize("name", zoo.ZOO)
def test_each_model_is_admitted_and_is_a_classifier(name: str) -> None:
    model = zoo.ZOO[name](batch=3)
    admit(model)
    assert dry_run(model).shape == (3, model.target.high)
    assert model.target == ExampleSpec((), "int64", high=model.target.high)
    assert set(model.metrics) == {"accuracy"}


@pytest.mark.parametrize("name", ["ds_cnn", "mobilenet", "resnet"])
def test_group_normalisation_has_no_running_statistics(name: str) -> None:
    batch, group = zoo.ZOO[name](norm="batch"), zoo.ZOO[name](norm="group")
    assert batch.statistics
    assert not group.statistics
    assert size(batch) - size(group) == sum(batch.specs[each].size for each in batch.statistics)


def test_a_causal_network_sees_nothing_that_comes_later() -> None:
    model = zoo.tcn(batch=1)
    early = torch.randn(1, 6, 100)
    late = early.clone()
    late[..., 60:] += 1.0
    module = model.module
    assert isinstance(module, nn.Module)
    before, after = (module.blocks(module.stem(x)) for x in (early, late))  # type: ignore[operator]  # attributes of a module
    torch.testing.assert_close(before[..., :60], after[..., :60])
    assert not torch.allclose(before[..., 60:], after[..., 60:])


def test_a_deep_perceptron_names_its_layers_in_order() -> None:
    model = zoo.mlp(inputs=3, hidden=(5, 4), classes=2)
    assert [model.specs[name].shape for name in ("body.weight", "body2.weight", "head.weight")] == [
        (5, 3),
        (4, 5),
        (2, 4),
    ]
    forward = Forward(torch.ones(16))
    assert model.outputs(model.parameters, (torch.zeros(16, 3),), forward).shape == (16, 2)
