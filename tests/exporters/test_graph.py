from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from _models import PADDINGS, around, draws_of, fedavg, reference_of, tiny_cnn
from torch import Tensor, nn

from edgepfl.algorithms import Algorithm, Cohort, Minibatch, Scalar
from edgepfl.errors import ExportError, PlanError
from edgepfl.plan import Entry, Reduce, Shape, Slot, down, given, keep, noise, up, work
from edgepfl.tree import Tree, Trees
from exporters import onnx
from exporters.binding import Binding
from exporters.check import Arrays, Checked, Run, check
from exporters.entries import entry_functions
from exporters.graph import TracedGraph, trace
from exporters.model import Model, model_of
from exporters.ort import PoisonedOnnx


def _eager(traced: TracedGraph) -> Run:
    """Runs a traced graph by torch."""

    def run(feeds: Arrays) -> Arrays:
        found = traced.module(*(torch.from_numpy(np.array(feeds[port.name])) for port in traced.ports.inputs))
        return {port.name: tensor.numpy() for port, tensor in zip(traced.ports.outputs, found, strict=True)}

    return run


def _onnx(traced: TracedGraph) -> Run:
    return PoisonedOnnx(onnx.export(traced), traced.ports).run


def _check_step(model: Model, runner: Callable[[TracedGraph], Run]) -> None:
    binding = Binding(fedavg(), model)
    traced = trace(entry_functions(binding)[Entry.STEP])
    reference = reference_of(binding)
    checked = Checked(Entry.STEP, traced.ports, lambda feeds: reference.run(Entry.STEP, feeds))
    assert check(checked, runner(traced), draws_of(binding))


@pytest.mark.parametrize(
    ("layer", "runner"),
    [
        (nn.GroupNorm(2, 6), _onnx),
        (nn.SiLU(), _onnx),
        (nn.LayerNorm(6), _eager),
        (nn.GELU(), _eager),
        (nn.BatchNorm1d(6).eval(), _eager),
    ],
    ids=lambda value: type(value).__name__,
)
def test_layers_whose_gradients_torch_computes_in_place(layer: nn.Module, runner: Callable[[TracedGraph], Run]) -> None:
    # GroupNorm's gradient inverts a tensor in place: sharing that expression gave a silently wrong gradient.
    model = around(layer)
    _check_step(model, runner)
    assert model.module.get_submodule("1") is layer


class _Picture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, stride=2, padding=1, groups=1)
        self.depth = nn.Conv2d(4, 4, 3, groups=4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(self.conv(x).relu(), 2, stride=1)
        return self.head(nn.functional.avg_pool2d(self.depth(x), 2).flatten(1))  # type: ignore[no-any-return]


class _Old(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ANN401  torch gives its type no public name
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:  # noqa: ANN401  likewise
        (x,) = ctx.saved_tensors
        gradient: Tensor = 3 * x * grads[0]
        return gradient  # no power's gradient, to see that it is used


class _New(_Old):
    @staticmethod
    def forward(x: Tensor) -> Tensor:  # type: ignore[override]  # as torch wants it beside setup_context
        return x**2

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:  # noqa: ANN401, ARG004  torch's own signature
        ctx.save_for_backward(*inputs)


class _Applied(nn.Module):
    def __init__(self, function: type[torch.autograd.Function]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        applied: Tensor = self.function.apply(x)  # type: ignore[no-untyped-call]  # torch left it untyped
        return applied


def test_an_autograd_function_brings_its_own_gradient_if_it_is_of_the_new_kind() -> None:
    _check_step(around(_Applied(_New)), _onnx)
    with pytest.raises(ExportError, match=r"autograd\.Function is of the old kind") as caught:
        trace(entry_functions(Binding(fedavg(), around(_Applied(_Old))))[Entry.STEP])
    assert "setup_context" in caught.value.remedy
    assert caught.value.where == "module 1 (_Applied)"


def test_two_dimensional_layers() -> None:
    model = model_of(_Picture(), [(1, 11, 11)], batch=3)
    _check_step(model, _onnx)
    assert model.specs["depth.weight"].shape == (4, 1, 3, 3)


def test_inputs_that_nothing_reads_are_gone_and_passed_through_outputs_are_copies() -> None:
    functions = entry_functions(Binding(fedavg(), tiny_cnn()))
    begin, step = trace(functions[Entry.BEGIN]), trace(functions[Entry.STEP])
    assert {port.group for port in begin.ports.inputs} == {"w"}
    assert {port.group for port in step.ports.inputs} == {"x", "lr", "y", "weight"}
    (returned,) = begin.module.graph.output_node().args
    assert [node.target for node in returned] == [torch.ops.aten.clone.default] * 4  # type: ignore[union-attr]


@dataclass(frozen=True)
class _Everything(Algorithm):
    """Uses every role and shape there is."""

    slots: ClassVar[Mapping[str, Slot]] = {
        "w": down(),
        "steps": given(),
        "eps": noise(3),
        "x": work(),
        "seen": keep(Shape.SCALAR, first=0.0),
        "twin": keep(Shape.SCALAR, first=0.0),
        "delta": up(Reduce.MEAN),
    }
    lr: Scalar = 0.1
    inner_steps: int = 2

    def begin(self, s: Trees) -> Trees:
        return {"x": s["w"]}

    def inner(self, s: Trees, b: Minibatch) -> Trees:
        return {"x": s["x"] - self.lr * b.grad(s["x"])}

    def step(self, s: Trees, b: Minibatch) -> Trees:
        seen = s["seen"].value + s["eps"].value.sum() * b.weight.sum() / s["steps"].value
        b.grad(s["x"])
        return {"x": s["x"], "seen": Tree.scalar(seen), "twin": Tree.scalar(seen)}

    def finish(self, s: Trees) -> Trees:
        return {"delta": s["x"] - s["w"]}

    def predictor(self, s: Trees) -> Tree:
        return s["x"]

    def update(self, state: Trees, got: Cohort) -> Trees:
        return {"w": state["w"] + got.total["delta"]}


def test_every_role_and_two_outputs_of_one_value() -> None:
    binding = Binding(_Everything(), tiny_cnn())
    functions = entry_functions(binding)
    assert Entry.INNER in functions
    assert Entry.TUNE not in functions
    traced = trace(functions[Entry.STEP])
    assert {"steps", "eps", "seen"} < {port.group for port in traced.ports.inputs}
    run = PoisonedOnnx(onnx.export(traced), traced.ports).run
    feeds = draws_of(binding).feeds(traced.ports.inputs, PADDINGS[1])
    found, wanted = run(feeds), reference_of(binding).run(Entry.STEP, feeds)
    assert found["next:seen/"] == found["next:twin/"] == pytest.approx(float(wanted["next:seen/"]), rel=1e-5)
    np.testing.assert_array_equal(found["next:x/head.bias"], feeds["x/head.bias"])


@dataclass(frozen=True)
class _ReadsTooEarly(_Everything):
    def begin(self, s: Trees) -> Trees:
        return {"x": s["x"]}


@dataclass(frozen=True)
class _SendsTooLittle(_Everything):
    def finish(self, s: Trees) -> Trees:
        return {"seen": s["seen"]}


@dataclass(frozen=True)
class _SetsTheGlobalModel(_Everything):
    def step(self, s: Trees, b: Minibatch) -> Trees:
        return {"w": s["w"] - b.grad(s["w"])}


@dataclass(frozen=True)
class _Misshapen(_Everything):
    def begin(self, s: Trees) -> Trees:
        return {"x": s["w"].map(lambda tensor: tensor.unsqueeze(0))}


@pytest.mark.parametrize(
    ("algorithm", "entry", "message"),
    [
        (_ReadsTooEarly(), Entry.BEGIN, "begin: it reads slot 'x'"),
        (_SendsTooLittle(), Entry.FINISH, "finish: it does not return the UP slot 'delta'"),
        (_SetsTheGlobalModel(), Entry.STEP, "step: it returns slot 'w'"),
        (_Misshapen(), Entry.BEGIN, r"begin returns x: tensor 'conv\.bias' is \[1, 3\]"),
    ],
)
def test_an_algorithm_that_contradicts_itself_is_told_how(algorithm: Algorithm, entry: Entry, message: str) -> None:
    functions = entry_functions(Binding(algorithm, tiny_cnn()))
    with pytest.raises(PlanError, match=message) as caught:
        trace(functions[entry])
    assert caught.value.where.startswith(entry)
