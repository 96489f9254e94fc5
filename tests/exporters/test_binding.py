"""What an algorithm declares, on one model: dimensions, what its graphs tell, and what predicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from _models import around, draws_of, tiny_cnn
from torch import nn

from edgepfl import algorithms
from edgepfl.algorithms import Algorithm, Minibatch
from edgepfl.algorithms.fedavg import FedAvg
from edgepfl.errors import PlanError
from edgepfl.plan import Entry, Kind, Role, Shape, Slot, TensorSpec, noise, tell, work
from edgepfl.tree import Tree, Trees
from exporters.binding import Binding
from exporters.draws import Padding
from exporters.eager import EagerRunner
from exporters.entries import entry_functions
from exporters.fitting import fitted
from exporters.model import model_of


@dataclass(frozen=True)
class Shaped(FedAvg):
    """FedAvg with slots of every dimension that a slot can name."""

    draws: int = 5
    tells: bool = True
    slots: ClassVar[Mapping[str, Slot]] = {
        **FedAvg.slots,
        "table": work(("classes", "draws")),
        "eps": noise("batch", 2),
        "norm": tell(),
    }

    def finish(self, s: Trees) -> Trees:
        done = super().finish(s)
        return {**done, "norm": Tree.scalar(done["delta"].dot(done["delta"]).sqrt())} if self.tells else done


def test_slots_name_the_dimensions_of_the_model_and_of_the_algorithm() -> None:
    binding = Binding(Shaped(), tiny_cnn())
    assert binding.dims == {"batch": 4, "classes": 2, "draws": 5, "inner_steps": 0}
    assert binding.slots["table"].tensors == {"": TensorSpec((2, 5))}
    assert binding.slots["eps"].tensors == {"": TensorSpec((4, 2))}
    represented = fitted(algorithms.build("fedcr", {"draws": 3}), tiny_cnn(()))
    dims = Binding(algorithms.build("fedcr", {"draws": 3}), represented).dims
    assert (dims["width"], dims["draws"]) == (12, 3)


def test_a_dimension_that_the_model_has_not_is_refused() -> None:
    numbers = model_of(nn.Linear(5, 3), [(5,)], batch=4, loss="mse")
    with pytest.raises(PlanError, match="no dimension 'classes'") as caught:
        _ = Binding(Shaped(), numbers).slots
    assert caught.value.remedy == "It has batch, draws, inner_steps"
    with pytest.raises(PlanError, match="no dimension 'width'"):
        _ = Binding(algorithms.build("fedcr", {}), tiny_cnn()).slots


def outputs_of(algorithm: Algorithm, entry: Entry) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float64]]]:
    """What a graph's function gives somewhere."""
    model = tiny_cnn()
    ports = entry_functions(Binding(algorithm, model))[entry].inputs
    feeds = draws_of(Binding(algorithm, model)).feeds(ports, Padding.SOME)
    return EagerRunner(algorithm, model).run(entry, feeds)


def test_finish_gives_every_number_that_is_to_be_told() -> None:
    found = outputs_of(Shaped(), Entry.FINISH)
    delta = np.concatenate([array.ravel() for name, array in found.items() if name.startswith("next:delta/")])
    assert found["next:norm/"] == pytest.approx(np.linalg.norm(delta), rel=1e-5)
    with pytest.raises(PlanError, match="does not return the TELL slot 'norm'") as caught:
        outputs_of(Shaped(tells=False), Entry.FINISH)
    assert caught.value.where == Entry.FINISH


@dataclass(frozen=True)
class Prepared(FedAvg):
    """FedAvg that takes its gradient in ``prepare``, or in ``inner``, and may set what is not ``prepare``'s to set."""

    slots: ClassVar[Mapping[str, Slot]] = {**FedAvg.slots, "g": work()}
    wrong: bool = False
    again: bool = False

    def prepare(self, s: Trees, b: Minibatch) -> Trees:
        g = b.grad(s["x"])
        return {"delta": g} if self.wrong else {"g": g}

    def inner(self, s: Trees, b: Minibatch) -> Trees:
        return {"g": 0.5 * s["g"] + b.grad(s["x"])}

    def step(self, s: Trees, b: Minibatch) -> Trees:
        moved: Tree = s["x"] - self.lr * s["g"]
        return {"x": moved - self.lr * b.grad(moved) if self.again else moved}


def told(algorithm: Algorithm) -> set[Entry]:
    """The graphs that tell a loss."""
    graphs = (Entry.PREPARE, Entry.INNER, Entry.STEP, Entry.TUNE)
    return {entry for entry in graphs if "metric:loss" in outputs_of(algorithm, entry)}


def test_every_graph_that_differentiates_the_loss_tells_it_but_not_tune() -> None:
    assert told(Prepared(inner_steps=1)) == {Entry.PREPARE, Entry.INNER}
    assert told(Prepared(inner_steps=1, again=True)) == {Entry.PREPARE, Entry.INNER, Entry.STEP}
    found = outputs_of(Prepared(), Entry.PREPARE)
    assert found.keys() == {"metric:loss", *(f"next:g/{name}" for name in tiny_cnn().specs)}


def test_prepare_may_set_what_a_step_may_set() -> None:
    with pytest.raises(
        PlanError, match="it returns slot 'delta'; it may return the slots of roles keep, work"
    ) as caught:
        outputs_of(Prepared(wrong=True), Entry.PREPARE)
    assert caught.value.where == Entry.PREPARE
    assert Entry.INNER not in entry_functions(Binding(Prepared(), tiny_cnn()))


@dataclass(frozen=True)
class Pair(FedAvg):
    """FedAvg that predicts with two models and a share."""

    complete: bool = True

    def predictor(self, s: Trees) -> Tree:
        both = {f"{m}.{name}": value for m in range(2) for name, value in s["w"].items()}
        return Tree({**both, "share": s["w"]["head.bias"].sum()} if self.complete else both)

    def others(self, s: Trees) -> Trees:
        return {"same": self.predictor(s)}

    def served(self, model: dict[str, TensorSpec]) -> dict[str, TensorSpec]:
        return {**{f"{m}.{name}": spec for m in range(2) for name, spec in model.items()}, "share": TensorSpec(())}


def test_what_predicts_has_the_tensors_that_the_algorithm_says() -> None:
    functions = entry_functions(Binding(Pair(), tiny_cnn()))
    names = {f"{m}.{name}" for m in range(2) for name in tiny_cnn().specs} | {"share"}
    for entry in (Entry.EVALUATE, Entry.PREDICT):
        assert {port.tensor for port in functions[entry].inputs if port.kind is Kind.MODEL} == names
    assert outputs_of(Pair(), Entry.MODELS).keys() == {f"model:{m}/{n}" for m in ("personal", "same") for n in names}
    with pytest.raises(PlanError, match="its tensors are not those declared: share"):
        outputs_of(Pair(complete=False), Entry.MODELS)


def test_what_predicts_is_drawn_near_the_parameters_that_it_stands_for() -> None:
    binding = Binding(Pair(), tiny_cnn())
    ports = entry_functions(binding)[Entry.PREDICT].inputs
    feeds = draws_of(binding).feeds(ports, Padding.NONE)
    assert 0.1 <= feeds["model/share"] <= 0.9
    for m in range(2):
        for name, tensor in tiny_cnn().parameters.items():
            off = feeds[f"model/{m}.{name}"] - tensor.numpy()
            scale = np.sqrt(np.mean(tensor.numpy() ** 2))
            assert 0 < np.abs(off).max() < 0.6 * scale
    numbered = Binding(FedAvg(), around(nn.Tanh()))  # whose own names begin with a number
    feeds = draws_of(numbered).feeds(entry_functions(numbered)[Entry.PREDICT].inputs, Padding.NONE)
    for name, tensor in numbered.model.parameters.items():
        assert np.abs(feeds[f"model/{name}"] - tensor.numpy()).max() < 0.6 * np.sqrt(np.mean(tensor.numpy() ** 2))


def test_what_a_device_knows_is_drawn_as_whole_numbers() -> None:
    fedcr = algorithms.build("fedcr", {})
    binding = Binding(fedcr, fitted(fedcr, tiny_cnn(())))
    feeds = draws_of(binding).feeds(binding.slot_ports(Entry.STEP), Padding.NONE)
    known = {name: float(feeds[f"{name}/"]) for name, slot in binding.slots.items() if slot.role is Role.GIVEN}
    assert known.keys() == {"steps", "planned", "epoch"}
    assert all(value == round(value) >= 1 for value in known.values())
    assert binding.slots["steps"].tensors == {"": TensorSpec(())} == Binding(Shaped(), tiny_cnn()).slots["norm"].tensors
    assert Shaped.slots["norm"].shape is Shape.SCALAR
