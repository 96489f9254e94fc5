"""Models that represent their inputs by normals: made of any classifier, run in parts, refused where they cannot be."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from _models import draws_of, reference_of, tiny_cnn
from torch import Tensor, nn
from torch.nn import functional

from edgepfl import algorithms
from edgepfl.algorithms import Setting
from edgepfl.errors import ConfigError, ExportError
from edgepfl.plan import Entry
from edgepfl.tree import Tree
from exporters import onnx, zoo
from exporters.binding import Binding
from exporters.check import Checked, check
from exporters.entries import entry_functions
from exporters.fitting import fitted
from exporters.forward import Forward
from exporters.graph import trace
from exporters.minibatch import ModelMinibatch
from exporters.model import Model, model_of, seeded
from exporters.native import onnx_table
from exporters.ort import PoisonedOnnx
from exporters.representation import Gaussian, gaussian, judge_head, represent, width_of


class Net(nn.Module):
    """Batch normalisation and dropout before the last layer, whose name is not the last."""

    def __init__(self) -> None:
        super().__init__()
        self.top = nn.Linear(4, 3)
        self.body = nn.Linear(5, 4)
        self.bn = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.4)

    def forward(self, x: Tensor) -> Tensor:
        return self.top(self.drop(self.bn(self.body(x)).relu()))  # type: ignore[no-any-return]  # torch's untyped call


def net(personal: tuple[str, ...] = ()) -> Model:
    return model_of(seeded(Net, 0), [(5,)], batch=4, personal=personal, title="net")


def around(module: nn.Module, inputs: int = 5) -> Model:
    return model_of(module, [(inputs,)], batch=4, personal=())


X = torch.randn(4, 5, generator=torch.Generator().manual_seed(1))


def test_the_last_layer_that_is_called_becomes_a_representation_and_a_personal_head() -> None:
    plain = net()
    before = {name: tensor.clone() for name, tensor in plain.module.state_dict().items()}
    model = gaussian(plain, 2, seed=3)
    assert model.personal_names == ("head.bias", "head.weight")
    shapes = {name: spec.shape for name, spec in model.specs.items() if name.endswith("weight")}
    assert shapes["features.top.weight"] == (4, 4)
    assert shapes["head.weight"] == (3, 2)
    assert shapes["features.body.weight"] == (4, 5)
    for name in ("body.weight", "bn.running_var"):
        assert torch.equal(model.parameters[f"features.{name}"], plain.parameters[name])
    assert model.title == "net"
    after = plain.module.state_dict()
    assert plain.module.get_submodule("top") is not None
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    again = gaussian(plain, 2, seed=3).parameters
    assert all(torch.equal(again[name], tensor) for name, tensor in model.parameters.items())
    assert not torch.equal(gaussian(plain, 2, seed=4).parameters["head.weight"], again["head.weight"])


def test_the_width_is_what_the_layer_takes_unless_that_is_much() -> None:
    assert width_of(gaussian(net())) == 4
    assert width_of(gaussian(around(nn.Linear(5, 3)))) == 5
    assert width_of(gaussian(around(nn.Linear(300, 3), 300))) == 256
    assert width_of(gaussian(net(), 7)) == 7
    with pytest.raises(ConfigError, match="width: 0 will not do"):
        gaussian(net(), 0)


def test_the_layer_may_be_named() -> None:
    assert list(gaussian(net(("top.*",)), 2).specs) == list(gaussian(net(), 2).specs)
    with pytest.raises(ExportError, match=r"its output is not that of module body \(Linear\)"):
        gaussian(net(("body.*",)))
    with pytest.raises(ExportError, match=r"its personal part, body\.bias, .* is not one linear layer"):
        gaussian(net(("top.*", "body.*")))
    with pytest.raises(ExportError, match=r"its personal part, top\.bias, is not one"):
        gaussian(net(("top.bias",)))


class _Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x))  # type: ignore[no-any-return]  # torch's untyped call


class _Tuple(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(x), x


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.Sequential(nn.Linear(5, 3), nn.ReLU()), r"its output is not that of module 0 \(Linear\)"),
        (nn.Sequential(nn.Linear(5, 3), nn.Dropout()), r"its output is not that of module 0 \(Linear\)"),
        (nn.Sequential(nn.Linear(5, 6), nn.Unflatten(1, (3, 2))), r"its output is not that of module 0 \(Linear\)"),
        (nn.Sequential(nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 3, 5), nn.Flatten()), "it calls no linear layer"),
        (_Twice(), "it calls layer more than once"),
        (_Tuple(), r"its output is not that of module layer \(Linear\)"),
    ],
    ids=["activation", "dropout", "shape", "none", "twice", "tuple"],
)
def test_a_model_that_does_not_end_in_one_linear_layer_is_refused(module: nn.Module, reason: str) -> None:
    with pytest.raises(ExportError, match=reason) as caught:
        gaussian(around(module))
    assert "submodules features and head" in caught.value.remedy
    assert caught.value.where == type(module).__name__


def test_parts_give_what_the_whole_gives() -> None:
    model = gaussian(net(), 2)
    params = model.parameters
    mean, raw = represent(model, params, (X,))
    both = model.module.eval().get_submodule("features")(X)
    model.module.train()
    torch.testing.assert_close(torch.cat([mean, raw], 1), both)
    torch.testing.assert_close(judge_head(model, params, mean), model.outputs(params, (X,)))
    other = params | Tree({"head.bias": params["head.bias"] + 1, "features.top.bias": params["features.top.bias"] + 1})
    torch.testing.assert_close(represent(model, other, (X,))[0], mean + 1)
    torch.testing.assert_close(judge_head(model, other, mean), judge_head(model, params, mean) + 1)


def test_a_training_pass_draws_and_measures_as_the_whole_model_does() -> None:
    model = gaussian(net(), 2)
    params = model.parameters
    noise = [torch.randn(spec.shape) for spec in model.noise]
    weight = torch.tensor([1.0, 1.0, 1.0, 0.0])
    whole, parts = Forward(weight, noise), Forward(weight, noise)
    outputs = model.outputs(params, (X,), whole)
    mean, _ = represent(model, params, (X,), parts)
    torch.testing.assert_close(judge_head(model, params, mean, parts), outputs)
    assert parts.moved.keys() == whole.moved.keys() == {"features.bn.running_mean", "features.bn.running_var"}
    assert all(torch.equal(parts.moved[name], whole.moved[name]) for name in whole.moved)
    assert len(parts.shapes) == len(model.noise) == 1
    assert not torch.equal(represent(model, params, (X,))[0], mean)


def test_an_objective_on_the_parts_has_the_gradient_and_statistics_of_the_whole() -> None:
    model = gaussian(net(), 2)
    params, y, weight = model.parameters, torch.tensor([0, 2, 1, 1]), torch.tensor([1.0, 1.0, 1.0, 0.0])
    noise = [torch.randn(spec.shape) for spec in model.noise]
    b = ModelMinibatch(model, (X,), y, weight, noise)

    def by_parts(tree: Tree) -> Tensor:
        mean, _ = b.represent(tree)
        return b.mean(b.losses(b.judge_head(tree, mean)))

    value, gradient = b.value_and_grad(by_parts, params)
    wanted = ModelMinibatch(model, (X,), y, weight, noise)
    found, expected = params - 0.1 * gradient, params - 0.1 * wanted.grad(params)
    assert wanted.loss is not None
    torch.testing.assert_close(value, wanted.loss)
    for name, tensor in expected.items():
        stored, other = (each.resolved() if name in model.statistics else each for each in (found[name], tensor))
        torch.testing.assert_close(stored, other)


@pytest.mark.parametrize("inside", [nn.Dropout(0.5), nn.BatchNorm1d(2)])
def test_a_head_that_differs_from_draw_to_draw_is_refused(inside: nn.Module) -> None:
    model = around(Gaussian(nn.Linear(5, 4), nn.Sequential(inside, nn.Linear(2, 3))))
    forward = Forward(torch.ones(4), [torch.zeros(4, 2)] * 2)
    mean, _ = represent(model, model.parameters, (X,), forward)
    with pytest.raises(ExportError, match="draws random numbers or measures statistics"):
        judge_head(model, model.parameters, mean, forward)


def test_only_a_module_that_keeps_the_contract_has_a_width() -> None:
    own = Gaussian(nn.Linear(5, 4), nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 3)))
    assert width_of(around(own)) == 2
    assert width_of(net()) is None

    class Backbone(Gaussian):
        def forward(self, *x: Tensor) -> Tensor:
            return self.head(self.features(*x))  # type: ignore[no-any-return]  # torch's untyped call

    class Other(Gaussian):
        def forward(self, *x: Tensor) -> Tensor:
            return self.head(self.features(*x)[:, 2:])  # type: ignore[no-any-return]  # likewise

    assert width_of(around(Backbone(nn.Linear(5, 4), nn.Linear(4, 3)))) is None  # names that many models use
    assert width_of(around(Other(nn.Linear(5, 4), nn.Linear(2, 3)))) is None  # the head gets the scales
    odd = around(Backbone(nn.Linear(5, 3), nn.Linear(3, 3)))
    with pytest.raises(ExportError, match=r"features gives \[4, 3\], not a mean and a scale"):
        represent(odd, odd.parameters, (X,))
    with pytest.raises(ExportError, match="has no representation") as caught:
        represent(net(), net().parameters, (X,))
    assert "exporters.representation:gaussian" in caught.value.remedy


def test_graphs_with_several_draws_and_the_devices_own_body_are_right_on_the_runtime() -> None:
    options: dict[str, Setting] = {"draws": 2, "draws_test": 2, "local_poe": "product", "eval_extractor": "local"}
    binding = Binding(algorithms.build("fedcr", options), gaussian(tiny_cnn(), 3))
    assert binding.slots["eps"].tensors[""].shape == (2, 4, 3)
    reference = reference_of(binding)
    functions = entry_functions(binding)
    for entry in (Entry.STEP, Entry.TUNE, Entry.MODELS, Entry.PREDICT):
        traced = trace(functions[entry], onnx_table())
        run = PoisonedOnnx(onnx.export(traced, binding.model), traced.ports).run
        assert check(Checked(entry, traced.ports, functools.partial(reference.run, entry)), run, draws_of(binding))


def test_a_model_is_fitted_to_an_algorithm_that_represents() -> None:
    algorithm = algorithms.build("fedcr", {})
    made = fitted(algorithm, zoo.mlp(inputs=6, hidden=(5,), classes=3))
    assert width_of(made) == 5
    assert made.personal == ("head.*",)
    assert fitted(algorithm, made) is made
    mean, raw = represent(made, made.parameters, made.zeros)
    assert functional.softplus(raw).min() > 0
    np.testing.assert_array_equal(mean.shape, raw.shape)
    assert Binding(algorithm, made).slots["mu_g"].tensors[""].shape == (3, 5)
    assert Entry.TUNE in entry_functions(Binding(algorithm, made))
