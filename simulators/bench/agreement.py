"""Whether exported graphs train like eager torch: a small federation trains with both, and everything is compared.

Where a ReLU or a maximum is about to switch, rounding alone decides the gradient, and torch's own trajectories in
float32 and in float64 part there.  So the graphs have to follow either of them to the end; where they follow none,
everything is done again with other data: a wrong graph is wrong on any.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from device_agent.data import Examples, Inputs
from device_agent.runners import Array, Runner
from edgepfl.algorithms import Algorithm
from edgepfl.bundle import Bundle
from edgepfl.plan import Entry, ExampleSpec
from edgepfl.seeds import generator
from exporters.eager import EagerRunner
from exporters.model import Model
from simulators.federation import InProcess, Setting, Values

DEVICES, ROUNDS, STEPS = 3, 3, 2

TOLERANCE = 1e-4
"""The greatest error that graphs may have."""

DRAWS = 64
"""How often other data is tried."""

MANY = 8
"""How often it has several minibatches; then few examples, on which fewer units are about to switch."""

_LEARNING_RATE = 0.02
_EXAMPLES = (13, 5)  # to train on and to test with: no multiple of a batch, so that there is padding
_FEW = (2, 2)
_SMALL = 0.01  # the greatest element of a tensor that should be all zeros is no measure of its error


@dataclass(frozen=True)
class Error:
    """How far graphs are from torch.

    Attributes:
        value: the greatest difference, relative to the greatest element of the tensor or metric that it is in.
        draws: of data that it took.
    """

    value: float
    draws: int


def trajectory(bundle: Bundle, runner: Runner, devices: Mapping[str, Examples]) -> Values:
    """Everything that the rounds compute, and every device's evaluation after them."""
    rates = [name for name in bundle.plan.hyper if name == "lr" or name.endswith("_lr")]
    federation = InProcess(bundle, runner, devices, Setting(dict.fromkeys(rates, _LEARNING_RATE), steps=STEPS))
    for _ in range(ROUNDS):
        federation.round(tuple(devices))
    values = federation.trajectory()
    for device in devices:
        metrics = federation.evaluate(device).metrics
        values |= {f"{device}'s {name}": np.asarray(value) for name, value in metrics.items()}
    return values


def difference(found: Values, expected: Values) -> float:
    """The greatest error, each relative to the greatest element of what it is in, or to 0.01 if that is greater.

    Raises:
        ValueError: other things were computed.
    """
    if apart := found.keys() ^ expected.keys():
        raise ValueError(f"other things were computed: {min(apart)}")
    return max(_relative(array, expected[name]) for name, array in found.items())


def _relative(found: Array, expected: Array) -> float:
    greatest = float(np.max(np.abs(expected), initial=_SMALL))
    return float(np.max(np.abs(found - expected), initial=0.0)) / greatest


class Eager:
    """What torch computes with one model, kept for the runtimes one after the other.

    Args:
        algorithm: the algorithm.
        model: the model.
    """

    def __init__(self, algorithm: Algorithm, model: Model) -> None:
        self._model = model
        self._runners = (EagerRunner(algorithm, model), _Double(algorithm, model))
        self._known: dict[int, tuple[Values, ...]] = {}

    def error(self, bundle: Bundle, runner: Runner) -> Error:
        """How far the graphs are from the nearer of torch's trajectories, with the first data that is near enough."""
        found = []
        for draw in range(DRAWS):
            data = devices(self._model, draw)
            if draw not in self._known:
                self._known[draw] = tuple(trajectory(bundle, each, data) for each in self._runners)
            values = trajectory(bundle, runner, data)
            found.append(min(difference(values, expected) for expected in self._known[draw]))
            if found[-1] <= TOLERANCE:
                break
        least = min(found, key=lambda each: (math.isnan(each), each))
        return Error(least, len(found))


class _Double:
    """Torch in float64; between two calls everything is float32, as on a device."""

    def __init__(self, algorithm: Algorithm, model: Model) -> None:
        self._eager = EagerRunner(algorithm, model, dtype=torch.float64)

    def run(self, entry: Entry, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        return {name: array.astype(np.float32) for name, array in self._eager.run(entry, feeds).items()}


def devices(model: Model, draw: int = 0) -> dict[str, Examples]:
    """Made-up data of each device, other data for each draw, and little of it from the draw :data:`MANY` on."""
    return {f"device-{number}": _examples(model, draw, number) for number in range(DEVICES)}


def _examples(model: Model, draw: int, number: int) -> Examples:
    rng = generator(draw, "zoo", model.title, number)
    train, test = _EXAMPLES if draw < MANY else _FEW
    parts = [(_inputs(model, count, rng), _drawn(model.target, count, rng)) for count in (train, test)]
    return Examples(*parts[0], *parts[1])


def _inputs(model: Model, count: int, rng: np.random.Generator) -> Inputs:
    return tuple(_drawn(spec, count, rng) for spec in model.inputs)


def _drawn(spec: ExampleSpec, count: int, rng: np.random.Generator) -> Array:
    if spec.dtype == "int64":
        return rng.integers(0, spec.high, (count, *spec.shape))
    return rng.standard_normal((count, *spec.shape), np.float32)
