"""What is refused before anything is traced, by whichever way it comes in, and what is not."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from _models import around
from torch import Tensor, nn
from torch.nn import functional

from edgepfl.errors import ExportError
from edgepfl.plan import ExampleSpec
from exporters.admission import admit
from exporters.model import Model, model_of
from exporters.objectives import cross_entropy


def _lazy() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that lazy modules are new
        return nn.LazyLinear(6)


PARTS = [
    (nn.Linear(6, 6).half(), "parameter 1.weight", "it is torch.float16, and devices train in float32: half precision"),
    (nn.Linear(6, 6).bfloat16(), "parameter 1.weight", "it is torch.bfloat16, and devices train in float32"),
    (nn.Linear(6, 6).double(), "parameter 1.weight", "it is torch.float64, not float32"),
    (_lazy(), "parameter 1.weight", "it has no shape yet"),
    (nn.BatchNorm1d(6, track_running_stats=False), "module 1 (BatchNorm1d)", "statistics of whatever is in the batch"),
    (nn.BatchNorm1d(6, momentum=None), "module 1 (BatchNorm1d)", "momentum=None, a cumulative average"),
    (nn.InstanceNorm1d(6, track_running_stats=True), "module 1 (InstanceNorm1d)", "running statistics of instance"),
]


@pytest.mark.parametrize(("layer", "where", "what"), PARTS)
@pytest.mark.parametrize("target", [None, ExampleSpec((), "int64", high=3)])
def test_a_part_that_may_not_train_is_named(
    layer: nn.Module, where: str, what: str, target: ExampleSpec | None
) -> None:
    """Whether a model's outputs are looked at when it is made, for its target, or only when it is exported."""
    with pytest.raises(ExportError) as caught:
        admit(model_of(nn.Sequential(nn.Linear(5, 6), layer, nn.Linear(6, 3)), [(5,)], target=target))
    assert caught.value.where == where
    assert what in caught.value.what
    assert caught.value.remedy


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(6),
        nn.BatchNorm1d(6, momentum=None).eval(),
        nn.Dropout(0.5),
        nn.Dropout(1.0),
        nn.Sequential(nn.Unflatten(1, (2, 3)), nn.InstanceNorm1d(2), nn.Flatten()),
    ],
    ids=lambda layer: str(layer).splitlines()[0],
)
def test_ordinary_layers_are_admitted_in_training_mode(layer: nn.Module) -> None:
    model = around(layer)
    admit(model)
    assert model.module.get_submodule("1") is layer
    assert model.target == ExampleSpec((), "int64", high=3)


@pytest.mark.parametrize("module", [nn.Linear(5, 3).requires_grad_(requires_grad=False), nn.Flatten()])
def test_a_model_that_has_nothing_to_train_is_refused(module: nn.Module) -> None:
    with pytest.raises(ExportError, match="it has no parameter to train") as caught:
        admit(model_of(module, [(5,)]))
    assert caught.value.where == type(module).__name__


class _Remembers(nn.Module):
    """Counts its forward passes, in one of the ways that people write it."""

    def __init__(self, how: Callable[[_Remembers], None]) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 3)
        self.register_buffer("seen", torch.zeros(()))
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.how(self)
        return self.linear(x) + 0 * self.seen  # type: ignore[no-any-return,operator]  # torch's untyped call


def _in_place(module: _Remembers) -> None:
    module.seen += 1  # type: ignore[assignment,operator]  # a buffer


def _anew(module: _Remembers) -> None:
    module.seen = module.seen + 1  # type: ignore[assignment,operator]  # a buffer


def _parameter(module: _Remembers) -> None:
    with torch.no_grad():
        module.linear.weight.mul_(0.9)


@pytest.mark.parametrize(
    ("how", "where"), [(_in_place, "tensor seen"), (_anew, "tensor seen"), (_parameter, "tensor linear.weight")]
)
def test_a_module_that_remembers_between_passes_is_refused(how: Callable[[_Remembers], None], where: str) -> None:
    with pytest.raises(ExportError, match="only the running statistics of batch normalisation may change") as caught:
        admit(model_of(_Remembers(how), [(5,)]))
    assert caught.value.where == where
    admit(model_of(_Remembers(how).eval(), [(5,)]))


@pytest.mark.parametrize(
    ("loss", "what"),
    [
        (functional.cross_entropy, r"it gives \[\], not a number for each of the 4 examples"),
        (lambda outputs, y: outputs - y[:, None], r"it gives \[4, 3\]"),
        (lambda outputs, y: outputs.argmax(1) == y, r"it gives \[4\]"),
        (lambda _outputs, _y: 1.0, "it gives float"),
        (lambda outputs, y: outputs @ y, r"it fails on outputs \[4, 3\] and targets \[4\]"),
    ],
)
def test_a_loss_that_is_none_for_each_example_is_refused(loss: Callable[[Tensor, Tensor], Tensor], what: str) -> None:
    with pytest.raises(ExportError, match=what) as caught:
        admit(model_of(nn.Linear(5, 3), [(5,)], loss=loss, batch=4))
    assert caught.value.where == "loss of Linear"
    with pytest.raises(ExportError, match=what) as caught:
        admit(model_of(nn.Linear(5, 3), [(5,)], metrics={"mine": loss}, batch=4))
    assert caught.value.where == "mine of Linear"


@dataclass
class _Record:
    logits: Tensor


class _Gives(nn.Module):
    def __init__(self, wrap: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 3)
        self.wrap = wrap

    def forward(self, x: Tensor) -> object:
        return self.wrap(self.linear(x))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda out: (out, out * 2),
        lambda out: [out],
        lambda out: {"logits": out, "hidden": out * 2},
        lambda out: OrderedDict(logits=out),
    ],
)
def test_of_several_outputs_the_first_counts(wrap: Callable[[Tensor], object]) -> None:
    module = _Gives(wrap)
    model = model_of(module, [(5,)], batch=2)
    admit(model)
    x = torch.randn(2, 5)
    assert torch.equal(model.outputs(model.parameters, (x,)), module.linear(x))


@pytest.mark.parametrize(
    ("wrap", "what"),
    [
        (_Record, "gives a _Record, not a tensor"),
        (lambda _: "no", "gives a str"),
        (lambda _: (), "gives a tuple"),
        (lambda _: None, "gives a NoneType"),
        (lambda out: out.sum(), r"gives \[\] for 2 examples"),
        (lambda out: out.T, r"gives \[3, 2\] for 2 examples"),
    ],
)
def test_what_gives_no_tensor_of_the_minibatch_is_refused(wrap: Callable[[Tensor], object], what: str) -> None:
    with pytest.raises(ExportError, match=what) as caught:
        model_of(_Gives(wrap), [(5,)], batch=2)
    assert caught.value.remedy
    assert caught.value.where == "_Gives"


@pytest.mark.parametrize("shapes", [[(6,)], [(5,), (5,)], [ExampleSpec((5,), "int64")]])
def test_inputs_that_the_module_does_not_take_are_told_with_their_shape(
    shapes: list[tuple[int, ...] | ExampleSpec],
) -> None:
    with pytest.raises(ExportError, match=r"does not take inputs of shape (float32|int64)\[16, [56]\]") as caught:
        model_of(nn.Linear(5, 3), shapes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("module", "what"),
    [
        (nn.Linear(5, 1), "of a single class is 0 whatever the model gives"),
        (nn.Sequential(nn.Linear(5, 1), nn.Flatten(0)), "one number for each example, and classes need one each"),
    ],
)
def test_classes_of_a_single_output_are_refused(module: nn.Module, what: str) -> None:
    with pytest.raises(ExportError, match=what) as caught:
        admit(model_of(module, [(5,)]))
    assert "mse" in caught.value.remedy
    admit(model_of(module, [(5,)], loss="bce"))


def test_the_part_that_fails_is_named() -> None:
    module = nn.Sequential(nn.Linear(5, 8), nn.Sequential(nn.ReLU(), nn.Linear(6, 3)))
    with pytest.raises(ExportError, match=r"float32\[16, 5\] \(module 1\.1 \(Linear\): mat1 and mat2") as caught:
        model_of(module, [(5,)])
    assert caught.value.where == "Sequential"
    mixing = nn.Sequential(nn.Linear(5, 3), nn.Flatten(0), nn.Unflatten(0, (3, -1)), nn.BatchNorm1d(16))
    with pytest.raises(ExportError, match="batch normalisation over 3 rows, and a minibatch has 16") as caught:
        model_of(mixing, [(5,)])
    assert caught.value.where == "module 3 (BatchNorm1d)"


def test_a_target_that_the_loss_does_not_take_is_told_with_its_shape() -> None:
    model = Model(nn.Linear(5, 3), (ExampleSpec((5,)),), ExampleSpec((1,), "int64", high=3), cross_entropy, batch=2)
    with pytest.raises(ExportError, match=r"targets \[2, 1\]") as caught:
        admit(model)
    assert caught.value.where == "loss of Linear"
