"""A model with batch normalisation and dropout, federated, against an ordinary loop of torch's own modules."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
import pytest
import torch
from _exported import examples
from torch import Tensor, nn
from torch.nn import functional

from coordinator import updater
from coordinator.reduction import Upload
from device_agent import memory
from device_agent.data import Batch, Examples, minibatches
from device_agent.evaluate import evaluate
from device_agent.interpreter import Interpreter, RoundResult, Start
from device_agent.runners import Runner
from device_agent.runners.onnx import OnnxRunner
from edgepfl import algorithms
from edgepfl.plan import Graph, Plan, Role
from edgepfl.seeds import derive
from edgepfl.tree import Tree, Trees
from exporters.binding import DROPOUT, Binding
from exporters.build import build, plan_of
from exporters.eager import EagerRunner
from exporters.entries import EntryFunction, entry_functions
from exporters.model import Model, model_of, seeded

LR, BATCH, STEPS, ROUNDS = 0.25, 4, 5, 3
P = 0.4


class Net(nn.Module):
    """Normalised once before and once after a dropout."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.body = nn.Linear(6, 5)
        self.bn1 = nn.BatchNorm1d(5)
        self.dropout = nn.Dropout(p)
        self.bn2 = nn.BatchNorm1d(5, momentum=0.3)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """``mask`` stands in for the dropout's own."""
        h = self.bn1(self.body(x)).relu()
        h = self.dropout(h) if mask is None else h * mask
        return self.head(self.bn2(h))  # type: ignore[no-any-return]  # torch's untyped call


@dataclass
class Fleet:
    """Devices with the same data and seeds, and their coordinator."""

    plan: Plan
    model: Tree
    runner: Runner
    data: Examples
    kept: dict[str, Trees] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.algorithm = updater.algorithm_of(self.plan, dict.fromkeys(_rates(self.plan), LR))
        self.server = updater.first_state(self.algorithm, self.plan, self.model)
        self.interpreter = Interpreter(self.plan, self.model, self.runner)
        self.hyper = dict.fromkeys(_rates(self.plan), LR)

    def start(self, device: str, number: int) -> Start:
        down = updater.downloads(self.algorithm, self.server, device)
        return Start(down, self.kept.get(device), self.hyper, derive(7, "round", number), number)

    def round(self, number: int, devices: Sequence[str]) -> RoundResult:
        reduction = updater.reduction(self.algorithm, self.plan, devices)
        for device in devices:
            result = self.interpreter.train(self.start(device, number), self.data, STEPS)
            self.kept[device] = result.keep
            upload = Upload(self.data.count, result.steps, lambda upload=result.upload: upload)  # type: ignore[misc]  # the default binds it now
            reduction.offer(device, upload)
        got = reduction.close(devices, number=number, statistics=self.plan.statistics)
        self.server = updater.next_state(self.algorithm, self.server, got)
        return result

    @property
    def state(self) -> Trees:
        return updater.numpy_of(self.server)


def _rates(plan: Plan) -> list[str]:
    return [name for name in plan.hyper if name in {"lr", "tune_lr"}]


def _model(p: float, personal: tuple[str, ...] = ("bn*",)) -> Model:
    return model_of(seeded(lambda: Net(p), 0), [(6,)], batch=BATCH, personal=personal)


@functools.cache
def _plan(name: str, p: float) -> tuple[Plan, Tree, Runner]:
    """By torch, eagerly: no graph is written."""
    algorithm, model = algorithms.build(name, {}), _model(p)
    functions = entry_functions(Binding(algorithm, model))
    plan = plan_of(Binding(algorithm, model), {entry: _border(each) for entry, each in functions.items()})
    return plan, model.parameters.map(lambda tensor: tensor.numpy()), EagerRunner(algorithm, model)


def _border(function: EntryFunction) -> Graph:
    values = {p.name: torch.zeros(p.spec.shape, dtype=getattr(torch, p.spec.dtype)) for p in function.inputs}
    return Graph(function.inputs, tuple(port for port, _ in function.call(values)))


def _fleet(name: str, p: float = 0.0) -> Fleet:
    plan, model, runner = _plan(name, p)
    return Fleet(plan, model, runner, examples("pi-1", 10, 7).fit(plan))


@functools.cache
def _exported() -> Fleet:
    made = build(algorithms.build("fedavg", {}), _model(P))
    return Fleet(made.plan, made.model, OnnxRunner(made), examples("pi-1", 10, 7).fit(made.plan))


def _real_rows(batch: Batch) -> tuple[Tensor, Tensor]:
    real = batch.weight == 1
    return torch.tensor(batch.x[0][real]).double(), torch.tensor(batch.y[real])


def _masks(plan: Plan, seed: int) -> Iterator[Tensor]:
    """What the agent's noise lets through in each step of a round."""
    for step in range(STEPS):
        noise = memory.draw(plan.by_role(Role.NOISE), seed, step)["slot", DROPOUT, "000"]
        yield torch.tensor(noise > NormalDist().inv_cdf(P)).double() / (1 - P)


def _ordinary(fleet: Fleet, rounds: int, p: float) -> Net:
    """An ordinary loop over the same minibatches: torch's modules, optimiser and training mode."""
    module = seeded(lambda: Net(p), 0).double().train()
    optimiser = torch.optim.SGD(module.parameters(), LR)
    for number in range(1, rounds + 1):
        seed = derive(7, "round", number)
        masks = _masks(fleet.plan, seed) if p else iter([None] * STEPS)
        for batch, mask in zip(minibatches(fleet.data, BATCH, STEPS, seed), masks, strict=True):
            x, y = _real_rows(batch)
            optimiser.zero_grad()
            loss = functional.cross_entropy(module(x, None if mask is None else mask[: len(x)]), y)
            loss.backward()  # type: ignore[no-untyped-call]  # torch left it untyped
            optimiser.step()
    return module


def _assert_is(found: Mapping[str, object], module: Net) -> None:
    wanted = {name: tensor for name, tensor in module.state_dict().items() if not name.endswith("tracked")}
    assert set(found) == set(wanted)
    for name, tensor in wanted.items():
        np.testing.assert_allclose(np.asarray(found[name]), tensor.numpy(), rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("devices", [["a"], ["a", "b", "c"]])
def test_fedavg_of_devices_alike_is_an_ordinary_training(devices: list[str]) -> None:
    fleet = _fleet("fedavg")
    for number in range(1, ROUNDS + 1):
        fleet.round(number, devices)
    _assert_is(fleet.state["w"], _ordinary(fleet, ROUNDS, 0.0))
    assert not np.allclose(fleet.state["w"]["bn1.running_mean"], fleet.model["bn1.running_mean"], atol=0.01)


def test_so_are_the_exported_graphs_with_dropout_that_the_agent_draws() -> None:
    fleet = _exported()
    for number in range(1, ROUNDS + 1):
        fleet.round(number, ["a"])
    _assert_is(fleet.state["w"], _ordinary(fleet, ROUNDS, P))
    assert fleet.plan.slots[DROPOUT].tensors["000"].shape == (BATCH, 5)


def test_a_device_predicts_with_the_running_statistics_and_without_dropout() -> None:
    fleet = _exported()
    module = Net(P).double().eval()
    module.load_state_dict({name: torch.tensor(array) for name, array in fleet.state["w"].items()}, strict=False)
    found = evaluate(fleet.interpreter, fleet.start("a", 9), fleet.data, 0).metrics
    x = fleet.data.test_x
    outputs = module(torch.tensor(np.asarray(x[0] if isinstance(x, tuple) else x)).double())
    y = torch.tensor(fleet.data.test_y)
    assert found["loss.global"] == pytest.approx(functional.cross_entropy(outputs, y).item(), rel=1e-4)
    assert found["accuracy.global"] == pytest.approx((outputs.argmax(1) == y).double().mean().item())


@pytest.mark.parametrize(("name", "slot"), [("fedprox", "w"), ("ditto", "w"), ("apfl", "w")])
def test_the_shared_model_of_the_others_begins_likewise(name: str, slot: str) -> None:
    """One round of their global branch; FedProx without its pull."""
    fleet = _fleet(name)
    fleet.hyper |= {"mu": 0.0} if name == "fedprox" else {}
    fleet.round(1, ["a"])
    _assert_is(fleet.state[slot], _ordinary(fleet, 1, 0.0))
    assert all(np.isfinite(array).all() for array in fleet.state[slot].values())


def test_dittos_personal_model_without_its_pull_is_an_ordinary_training_too() -> None:
    fleet = _fleet("ditto")
    fleet.hyper |= {"lam": 0.0}
    for number in range(1, ROUNDS + 1):
        fleet.round(number, ["a"])
    _assert_is(fleet.kept["a"]["v"], _ordinary(fleet, ROUNDS, 0.0))
    assert set(fleet.kept["a"]) == {"v"}


def test_personal_normalisation_stays_and_the_rest_travels() -> None:
    fleet = _fleet("fedper")
    for number in range(1, ROUNDS + 1):
        result = fleet.round(number, ["a"])
    personal = {name for name in fleet.model if name.startswith("bn")}
    assert set(result.keep["head"]) == personal
    assert set(result.upload["delta"]) == set(fleet.model) - personal
    assert set(fleet.state["body"]) == set(fleet.model) - personal
    _assert_is({**fleet.state["body"], **result.keep["head"]}, _ordinary(fleet, ROUNDS, 0.0))


def test_the_same_round_draws_the_same_masks_and_another_seed_others() -> None:
    fleet = _exported()
    start, data = fleet.start("a", 2), fleet.data
    once, again = (fleet.interpreter.train(start, data, STEPS) for _ in range(2))
    other = fleet.interpreter.train(fleet.start("a", 3), data, STEPS)
    for name, array in once.upload["delta"].items():
        assert array.tobytes() == again.upload["delta"][name].tobytes()
    assert not np.array_equal(once.upload["delta"]["body.weight"], other.upload["delta"]["body.weight"])


def test_each_step_and_each_tensor_has_noise_of_its_own() -> None:
    slots = _exported().plan.by_role(Role.NOISE)
    drawn = [memory.draw(slots, seed, step)["slot", DROPOUT, "000"] for seed in (1, 2) for step in (0, 1)]
    assert len({array.tobytes() for array in drawn}) == 4
    assert all(array.dtype == np.float32 and array.shape == (BATCH, 5) for array in drawn)
    assert abs(float(np.mean(drawn))) < 5 / math.sqrt(4 * BATCH * 5)
