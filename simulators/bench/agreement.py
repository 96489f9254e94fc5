"""Whether exported graphs train like eager torch: a small federation goes the same way twice, and everything is compared."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from device_agent.data import Examples, Inputs
from device_agent.runners import Array, Runner
from edgepfl.bundle import Bundle
from edgepfl.plan import ExampleSpec
from edgepfl.seeds import generator
from exporters.model import Model
from simulators.federation import InProcess, Setting, Values

DEVICES, ROUNDS, STEPS = 3, 3, 2

_LEARNING_RATE = 0.02
_EXAMPLES = (13, 5)  # to train on and to test with: no multiple of a batch, so that there is padding
_SMALL = 0.01  # the greatest element of a tensor that should be all zeros is no measure of its error


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


def devices(model: Model) -> dict[str, Examples]:
    """Made-up data of each device."""
    return {f"device-{number}": _examples(model, number) for number in range(DEVICES)}


def _examples(model: Model, number: int) -> Examples:
    rng = generator(0, "zoo", model.title, number)
    train, test = _EXAMPLES
    parts = [(_inputs(model, count, rng), _drawn(model.target, count, rng)) for count in (train, test)]
    return Examples(*parts[0], *parts[1])


def _inputs(model: Model, count: int, rng: np.random.Generator) -> Inputs:
    return tuple(_drawn(spec, count, rng) for spec in model.inputs)


def _drawn(spec: ExampleSpec, count: int, rng: np.random.Generator) -> Array:
    if spec.dtype == "int64":
        return rng.integers(0, spec.high, (count, *spec.shape))
    return rng.standard_normal((count, *spec.shape), np.float32)
