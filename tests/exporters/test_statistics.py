"""Running statistics go where the forward pass measured, whatever an algorithm does with its gradients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from _training import assert_same, by_torch, doubled, minibatch, normal, stepped
from torch import Tensor, nn
from torch.nn import functional

from edgepfl import algorithms
from edgepfl.algorithms import Algorithm
from edgepfl.errors import PlanError
from edgepfl.plan import MODEL, Entry, ExampleSpec, Role, SlotPlan
from edgepfl.tree import Tree, Trees
from exporters.binding import Binding
from exporters.eager import EagerRunner
from exporters.fitting import fitted
from exporters.model import Model, model_of, seeded
from exporters.statistics import Measured

SIZE = 6
X, Y = normal(SIZE, 5), torch.tensor([0, 1, 2, 0, 1, 1])
EVERY = algorithms.names()
STATISTICS = {"bn.running_mean", "bn.running_var"}
STEPPED: Mapping[str, set[str]] = {
    **{name: {"x"} for name in EVERY},
    "ditto": {"x", "v"},
    "feddr": {"v"},
    "fedsplit": {"y"},
    "pfedme": {"theta"},
    "scaffold": {"y"},
    **{name: set() for name in ("fedcr", "fedem", "l2sgd", "perfedavg", "pfedbred", "pfedmac")},
}
"""The slots that one step of a first round takes where one of torch's would: all begin where the server's model is."""

MEASURED: Mapping[str, set[str]] = {
    **STEPPED,
    "apfl": {"x", "v"},  # v along the mixture's gradient
    "fedcr": {"x"},  # of another objective
    "fedem": {"x0"},  # each row's share of it
    "l2sgd": {"y"},  # by lr / (1 - p)
    "pfedbred": {"mu"},  # then theta's own pass begins at mu
    "pfedmac": {"theta"},  # with a norm
}
"""The slots whose statistics are those that torch measures at the server's model."""

SOLVING = {"perfedavg", "pfedbred", "pfedmac", "pfedme"}
"""Algorithms whose step is not one of size ``lr`` from the model."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(5, 4)
        self.bn = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.bn(self.body(x).tanh()))  # type: ignore[no-any-return]  # torch's untyped call


def _net(personal: tuple[str, ...] = ("head.*",), frozen: str = "") -> Model:
    module = seeded(Net, 0)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(not (frozen and name.startswith(frozen)))
    return model_of(module, [(5,)], batch=SIZE, personal=personal)


def _hyper(name: str, **others: float) -> dict[str, float]:
    """Every step size 1/2, as the reference's, unless told otherwise."""
    binding = Binding(algorithms.build(name, {}), _net())
    return {key: 0.5 if key.endswith("lr") else value for key, value in binding.hyper.items()} | others


def _step(
    name: str, model: Model, slots: Mapping[str, Tree], hyper: Mapping[str, float]
) -> dict[str, dict[str, Tensor]]:
    """The slots after one step from these, in double precision."""
    runner = EagerRunner(algorithms.build(name, {}), model, dtype=torch.float64)
    given: dict[str, Any] = {"batch:x0": X.numpy(), "batch:y": Y.numpy(), "batch:weight": np.ones(SIZE)}
    given |= {f"hyper:{key}": np.float64(value) for key, value in hyper.items()}
    given |= {f"{slot}/{key}": tensor.numpy() for slot, tree in slots.items() for key, tensor in tree.items()}
    found: dict[str, dict[str, Tensor]] = {}
    for port, array in runner.run(Entry.STEP, given).items():
        if port.startswith("next:"):
            slot, _, key = port.removeprefix("next:").partition("/")
            found.setdefault(slot, {})[key] = torch.from_numpy(array)
    return found


def _start(name: str, params: Tree, **others: Tree) -> dict[str, Tree]:
    """Every slot of the step as it is when a device's first round begins with these parameters."""
    binding = Binding(algorithms.build(name, {}), _net())
    slots: dict[str, Tree] = {}
    for slot, resolved in binding.slots.items():
        if set(resolved.tensors) <= set(params):
            slots[slot] = params.like(resolved.tensors)
    return {**slots, "alpha": Tree.scalar(torch.tensor(0.5)), "wait": Tree.scalar(torch.tensor(0.0)), **others}


class FirstRound:
    """A device's first minibatch, from the server's first state on, in double precision.

    Args:
        name: of the algorithm.
        model: the model.
        params: what its training starts from.
        rate: of every hyperparameter whose name ends with ``lr``.
    """

    def __init__(self, name: str, model: Model, params: Tree, rate: float = 0.5) -> None:
        steps = {"inner_steps": 1} if algorithms.build(name, {}).inner_steps else {}
        algorithm = algorithms.build(name, steps)
        self.binding = Binding(algorithm, model)
        self.runner = EagerRunner(algorithm, model, dtype=torch.float64)
        self.hyper = {key: rate if key.endswith("lr") else value for key, value in self.binding.hyper.items()}
        self.slots = dict(self._sent(algorithm, params))
        for slot, resolved in self.binding.slots.items():
            if (tree := self._first(resolved, params)) is not None:
                self.slots[slot] = tree
        for entry in (Entry.BEGIN, Entry.PREPARE, *[Entry.INNER] * algorithm.inner_steps, Entry.STEP):
            if entry in self.runner.functions:
                self._run(entry)

    def _sent(self, algorithm: Algorithm, params: Tree) -> Trees:
        down = {slot: resolved for slot, resolved in self.binding.slots.items() if resolved.role is Role.DOWN}
        sent = {name for resolved in down.values() for name in resolved.tensors} & set(params)
        own = set(self.binding.model.personal_names)
        filled = {
            slot: _filled(resolved, resolved.first) for slot, resolved in down.items() if resolved.first is not None
        }
        state = algorithm.init_apart(params.like(sorted(sent - own)), params.like(sorted(sent & own)))
        return algorithm.send({**filled, **state}, "ant")

    def _first(self, resolved: SlotPlan, params: Tree) -> Tree | None:
        """What a slot is before the round; None for those that the round itself makes."""
        match resolved.role, resolved.first:
            case Role.KEEP, str(source) if source in self.slots:
                return self.slots[source].like(resolved.tensors)
            case Role.KEEP, str(source) if source == MODEL:
                return params.like(resolved.tensors)
            case Role.KEEP, first:
                return _filled(resolved, self.hyper[first] if isinstance(first, str) else first)
            case ((Role.GIVEN | Role.NOISE), _):
                return _filled(resolved, 1.0)
            case _:
                return None

    def _run(self, entry: Entry) -> None:
        feeds: dict[str, Any] = {"batch:x0": X.numpy(), "batch:y": Y.numpy(), "batch:weight": np.ones(SIZE)}
        feeds |= {f"hyper:{key}": np.float64(value) for key, value in self.hyper.items()}
        feeds |= {f"{slot}/{key}": tensor.numpy() for slot, tree in self.slots.items() for key, tensor in tree.items()}
        found: dict[str, dict[str, Tensor]] = {}
        for port, array in self.runner.run(entry, feeds).items():
            if port.startswith("next:"):
                slot, _, key = port.removeprefix("next:").partition("/")
                found.setdefault(slot, {})[key] = torch.from_numpy(array)
        self.slots |= {slot: Tree(tree) for slot, tree in found.items()}


def _filled(resolved: SlotPlan, fill: object) -> Tree:
    return Tree({name: torch.full(spec.shape, float(str(fill))).double() for name, spec in resolved.tensors.items()})


def _agreeing(found: FirstRound, wanted: Mapping[str, Tensor], names: Iterable[str]) -> set[str]:
    """The slots that hold what is wanted of these tensors."""
    return {
        slot
        for slot, tree in found.slots.items()
        if set(names) <= set(tree) and all(torch.allclose(tree[name], wanted[name], rtol=1e-9) for name in names)
    }


@pytest.mark.parametrize("name", EVERY)
def test_the_first_step_of_every_algorithm_has_torchs_statistics(name: str) -> None:
    model = fitted(algorithms.build(name, {}), _net())
    params = doubled(model)
    found, wanted = FirstRound(name, model, params), by_torch(model, params, X, Y).tensors
    assert not any(torch.equal(wanted[statistic], params[statistic]) for statistic in model.statistics)
    assert _agreeing(found, wanted, model.specs) >= STEPPED[name]
    assert _agreeing(found, wanted, model.statistics) >= MEASURED[name]
    assert MEASURED[name] or name == "perfedavg"


def test_per_fedavgs_second_part_goes_on_from_what_the_first_measured() -> None:
    model = _net()
    params = doubled(model)
    alpha = Binding(algorithms.build("perfedavg", {}), model).hyper["alpha"]
    first, second = minibatch(model, X, Y).parts(2)
    led = Tree(stepped(params, alpha / 0.5 * first.grad(params)))
    found = FirstRound("perfedavg", model, params).slots["x"]
    wanted = stepped(led, second.grad(led))
    for statistic in STATISTICS:
        torch.testing.assert_close(found[statistic], wanted[statistic])
        assert not torch.allclose(found[statistic], by_torch(model, params, X, Y).tensors[statistic])


@pytest.mark.parametrize("name", [name for name in EVERY if name not in SOLVING])
def test_with_a_step_size_of_almost_0_nothing_moves_but_the_statistics(name: str) -> None:
    model = fitted(algorithms.build(name, {}), _net())
    params = doubled(model)
    found = FirstRound(name, model, params, rate=1e-30).slots  # 0 would divide some variates
    for slot in MEASURED[name]:
        moved = {key for key, tensor in found[slot].items() if not torch.equal(tensor, params[key])}
        assert moved == set(model.statistics)
    assert MEASURED[name] <= set(found)


@pytest.mark.parametrize("frozen", ["body", "bn", "head"])
@pytest.mark.parametrize("name", [name for name in EVERY if name not in SOLVING | {"fedcr"}])  # whose model is another
def test_a_frozen_parameter_never_moves(name: str, frozen: str) -> None:
    model = _net(frozen=frozen)
    params = doubled(model)
    found = FirstRound(name, model, params).slots
    for slot in MEASURED[name]:
        still = {key for key, tensor in found[slot].items() if torch.equal(tensor, params[key])}
        assert still == {key for key in model.specs if key.startswith(frozen)} - STATISTICS
    assert model.frozen == (f"{frozen}.weight", f"{frozen}.bias")


def test_a_frozen_parameter_changes_no_other_gradient() -> None:
    params = doubled(_net())
    found = _step("fedavg", _net(frozen="body"), _start("fedavg", params), _hyper("fedavg"))
    wanted = by_torch(_net(frozen="body"), params, X, Y)
    assert_same(found["x"], wanted.tensors)
    assert torch.equal(found["x"]["body.weight"], params["body.weight"])


def test_apfls_weight_moves_by_the_parameters_alone() -> None:
    """``alpha - alpha_lr <v - x, g>``, where the trees differ in their statistics most of all."""
    model = _net()
    x = doubled(model)
    v = x.map(lambda tensor: tensor * 1.1) | x.like(dict.fromkeys(STATISTICS)).map(lambda tensor: tensor + 3)
    found = _step("apfl", model, _start("apfl", x, v=v), _hyper("apfl", alpha_lr=0.05))
    mixture = {name: (0.5 * v[name] + 0.5 * x[name]).requires_grad_(name not in STATISTICS) for name in x}
    module = seeded(Net, 0).double()
    outputs = torch.func.functional_call(module, mixture, (X,))
    names = sorted(set(x) - STATISTICS)
    slopes = torch.autograd.grad(functional.cross_entropy(outputs, Y), [mixture[name] for name in names])
    inner = sum(float(((v[name] - x[name]) * slope).sum()) for name, slope in zip(names, slopes, strict=True))
    assert abs(inner) > 1e-3
    assert float(found["alpha"][""]) == pytest.approx(0.5 - 0.05 * inner, rel=1e-9)


def test_dittos_personal_statistics_are_of_its_own_model_and_feel_no_pull() -> None:
    model = _net()
    x = doubled(model)
    v = x.map(lambda tensor: tensor * 1.3)
    found = _step("ditto", model, _start("ditto", x, v=v), _hyper("ditto", lam=5.0))
    own, shared = by_torch(model, v, X, Y).tensors, by_torch(model, x, X, Y).tensors
    for statistic in STATISTICS:
        torch.testing.assert_close(found["v"][statistic], own[statistic])
        torch.testing.assert_close(found["x"][statistic], shared[statistic])


@pytest.mark.parametrize("entry", [Entry.STEP, Entry.TUNE])
def test_fedper_tunes_the_personal_statistics_alone(entry: Entry) -> None:
    model = _net(("bn*",))
    runner = EagerRunner(algorithms.build("fedper", {}), model, dtype=torch.float64)
    params = doubled(model)
    given: dict[str, Any] = {"batch:x0": X.numpy(), "batch:y": Y.numpy(), "batch:weight": np.ones(SIZE)}
    given |= {f"hyper:{key}": np.float64(0.5) for key in ("lr", "tune_lr")}
    given |= {f"{slot}/{key}": tensor.numpy() for slot in ("x", "body", "head") for key, tensor in params.items()}
    after = {port.removeprefix("next:x/"): array for port, array in runner.run(entry, given).items()}
    moved = {name for name in model.specs if not np.array_equal(after[name], params[name].numpy())}
    personal = {name for name in model.specs if name.startswith("bn")}
    assert moved == (personal if entry is Entry.TUNE else set(model.specs))
    assert personal > STATISTICS


def test_personal_normalisation_is_in_nothing_that_a_device_sends_or_gets() -> None:
    slots = Binding(algorithms.build("fedper", {}), _net(("bn*",))).slots
    for slot in slots.values():
        if slot.role in {Role.DOWN, Role.UP}:
            assert set(slot.tensors) == {"body.bias", "body.weight", "head.bias", "head.weight"}
    assert set(slots["head"].tensors) == {"bn.bias", "bn.weight", *STATISTICS}


class Tied(nn.Module):
    """A vocabulary of nine, its embedding and its last layer the same matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 4)
        self.head = nn.Linear(4, 9, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding(x).mean(1).tanh())  # type: ignore[no-any-return]  # torch's untyped call


def test_a_parameter_of_two_names_trains_as_one() -> None:
    model = model_of(seeded(Tied, 0), [ExampleSpec((3,), "int64")], batch=SIZE)
    assert model.inputs[0].high == 9
    assert set(model.specs) == {"embedding.weight"}
    x = torch.arange(18).reshape(SIZE, 3) % 9
    params = doubled(model)
    found = stepped(params, minibatch(model, x, Y).grad(params))
    assert_same(found, by_torch(model, params, x, Y).tensors)


def _measured(placed: bool = False) -> Measured:  # noqa: FBT001, FBT002  a test's own
    return Measured(torch.tensor([1.0, 2.0]), placed=placed)


def test_a_measured_statistic_goes_through_what_algorithms_do_with_gradients() -> None:
    w, rate = torch.tensor([5.0, 6.0]), torch.tensor(0.1)
    for next_one in (
        w - 0.1 * _measured(),
        w - rate * _measured(),
        w + rate * (_measured() * 2) / 3,
        w - rate * (_measured() + 0.3 * (w - w)),
        -_measured() + w,
    ):
        assert isinstance(next_one, Measured)
        assert next_one.resolved().tolist() == [1.0, 2.0]
    for alone in (
        _measured(),
        2 * _measured(),
        rate * _measured(),
        -_measured(),
        _measured() + _measured(),
        _measured() - _measured() * rate,
    ):
        assert alone.resolved().tolist() == [0.0, 0.0]


def test_it_counts_nothing_in_inner_products() -> None:
    gradient = Tree({"bn.running_mean": _measured(), "weight": torch.tensor([3.0, 4.0])})
    other = Tree({"bn.running_mean": torch.tensor([7.0, 7.0]), "weight": torch.tensor([1.0, 1.0])})
    assert other.dot(gradient) == gradient.dot(other) == 7
    assert gradient.dot(gradient) == 25


def test_a_gradient_can_be_taken_where_another_one_led() -> None:
    model = _net()
    batch, start = minibatch(model, X, Y), doubled(model)
    moved = start - 0.5 * batch.grad(start)
    stored = Tree(stepped(start, batch.grad(start)))
    assert {name for name, tensor in moved.items() if isinstance(tensor, Measured)} == STATISTICS
    assert_same(stepped(stored, batch.grad(moved)), stepped(stored, batch.grad(stored)))


@pytest.mark.parametrize("function", [torch.exp, torch.abs, torch.sign, torch.linalg.vector_norm])
def test_of_anything_else_it_says_that_it_has_no_gradient(function: Any) -> None:  # noqa: ANN401  torch's
    with pytest.raises(PlanError, match="a running statistic has no gradient to take") as caught:
        function(_measured())
    assert function.__name__.rpartition("_")[2] in str(caught.value)
