"""Whole cohorts at once give the numbers that devices give one by one: for every algorithm, and with every layer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from device_agent.data import Examples
from device_agent.runners import Runner
from device_agent.runners.onnx import OnnxRunner
from edgepfl import algorithms
from edgepfl.algorithms import Algorithm
from edgepfl.bundle import Bundle
from exporters.binding import Binding
from exporters.build import build, plan_of
from exporters.eager import EagerRunner
from exporters.entries import entry_functions
from exporters.fitting import fitted
from exporters.graph import trace
from exporters.model import Model, model_of, seeded
from simulators.bench.agreement import difference
from simulators.federation import InProcess, Setting, Values, named
from simulators.vmapped import Vectorised
from simulators.vmapped.graphs import plan_for

TOLERANCE = 1e-5
BATCH, CLASSES = 4, 3
SIZES = {"device-00": (9, 5), "device-01": (4, 0), "device-02": (13, 9), "device-03": (3, 1), "device-04": (8, 4)}
COHORTS = (("device-00", "device-01", "device-02", "device-04"), ("device-02", "device-03", "device-04"))


class Flat(nn.Module):
    """Batch normalisation, whose statistics move, and dropout, whose noise is the device's."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(5, 6)
        self.norm = nn.BatchNorm1d(6)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.norm(self.body(x)).tanh()))  # type: ignore[no-any-return]  # torch's untyped call


class Series(nn.Module):
    """A convolution, a normalisation that needs no statistics, and pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 4, 3)
        self.norm = nn.GroupNorm(2, 4)
        self.pool = nn.MaxPool1d(2)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.norm(self.conv(x)).relu()).flatten(1))  # type: ignore[no-any-return]  # likewise


class Recurrent(nn.Module):
    """Torch has no rule that maps a recurrent layer over devices while it predicts."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(2, 4, batch_first=True)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(x.transpose(1, 2))[0][:, -1])  # type: ignore[no-any-return]  # likewise


SHAPES: Mapping[type[nn.Module], tuple[int, ...]] = {Flat: (5,), Series: (2, 8), Recurrent: (2, 3)}


def model_for(kind: type[nn.Module], algorithm: Algorithm) -> Model:
    model = model_of(seeded(kind, 0), [SHAPES[kind]], batch=BATCH, title=kind.__name__)
    return fitted(algorithm, model, own=("head.*",))


def fleet_for(kind: type[nn.Module], seed: int = 0) -> dict[str, Examples]:
    rng = np.random.default_rng(seed)

    def drawn(count: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.standard_normal((count, *SHAPES[kind])).astype(np.float32), rng.integers(0, CLASSES, count)

    return {name: Examples(*drawn(train), *drawn(test)) for name, (train, test) in SIZES.items()}


def setting_for(algorithm: Algorithm) -> Setting:
    rates = [name for name in algorithms.hyperparameters(type(algorithm)) if name == "lr" or name.endswith("_lr")]
    return Setting(dict.fromkeys(rates, 0.05), steps=3, tune_steps=2, seed=11)


def eager(algorithm: Algorithm, model: Model) -> tuple[Bundle, Runner]:
    """The interpreter of the agents on torch's own operators, device by device: much quicker to make than an export."""
    binding = Binding(algorithm, model)
    plan = plan_for(binding)
    if any(slot.role == "work" for slot in plan.slots.values()) and "prepare" in plan.graphs:
        # An agent refuses to read what nothing has set, and only a trace tells what a graph really reads.
        plan = plan_of(binding, {entry: trace(function).ports for entry, function in entry_functions(binding).items()})
    return Bundle(plan, model.parameters.map(torch.Tensor.numpy), {}, {}), EagerRunner(algorithm, model)


def one_by_one(bundle: Bundle, runner: Runner, devices: Mapping[str, Examples], setting: Setting) -> Values:
    federation = InProcess(bundle, runner, devices, setting)
    values: Values = {}
    for number, cohort in enumerate(COHORTS, 1):
        moved = federation.round(cohort)
        values |= named(f"{number} server", moved.state)
        for device, result in moved.results.items():
            values |= named(f"{number} {device}", result.keep)
            values |= {f"{number} {device} {name}": np.asarray(value) for name, value in result.metrics.items()}
    for device in devices:
        values |= {f"{device} {name}": np.asarray(v) for name, v in federation.evaluate(device).metrics.items()}
    return values


def at_once(run: Vectorised) -> Values:
    values: Values = {}
    for number, cohort in enumerate(COHORTS, 1):
        done = run.round(cohort)
        values |= named(f"{number} server", run.state)
        for place, device in enumerate(done.devices):
            values |= named(f"{number} {device}", run.kept(device) or {})
            values |= {f"{number} {device} {name}": np.asarray(found[place]) for name, found in done.metrics.items()}
    evaluated = run.evaluate()
    for device in evaluated.devices:
        values |= {f"{device} {name}": np.asarray(value) for name, value in evaluated.of(device).items()}
    return values


def apart(found: Values, expected: Values) -> float:
    """The greatest difference, relative to the greatest element of what it is in; of whole numbers and marks, too."""
    return difference(*({name: array.astype(np.float64) for name, array in each.items()} for each in (found, expected)))


def test_devices_are_of_unequal_size() -> None:
    trained, tested = ({sizes[part] for sizes in SIZES.values()} for part in (0, 1))
    assert any(size % BATCH for size in trained)  # so there is padding
    assert min(trained) < BATCH < max(trained)
    assert 0 in tested  # and one has no test data


@pytest.mark.parametrize("name", algorithms.names())
def test_every_algorithm_has_the_numbers_of_devices_one_by_one(name: str) -> None:
    algorithm = algorithms.build(name, {})
    model, devices, setting = model_for(Flat, algorithm), fleet_for(Flat), setting_for(algorithm)
    expected = one_by_one(*eager(algorithm, model), devices, setting)
    found = at_once(Vectorised(algorithm, model, devices, setting, chunk=2))
    assert apart(found, expected) < TOLERANCE


def test_layers_that_cannot_be_mapped_are_computed_device_by_device() -> None:
    algorithm = algorithms.build("fedavg", {})
    model, devices, setting = model_for(Recurrent, algorithm), fleet_for(Recurrent), setting_for(algorithm)
    expected = one_by_one(*eager(algorithm, model), devices, setting)
    found = at_once(Vectorised(algorithm, model, devices, setting, chunk=2))
    assert apart(found, expected) < TOLERANCE


def test_real_graphs_give_the_same_numbers() -> None:
    algorithm = algorithms.build("fedper", {})
    model, devices, setting = model_for(Series, algorithm), fleet_for(Series), setting_for(algorithm)
    bundle = build(algorithm, model)
    expected = one_by_one(bundle, OnnxRunner(bundle), devices, setting)
    found = at_once(Vectorised(algorithm, model, devices, setting, chunk=2))
    assert apart(found, expected) < TOLERANCE
