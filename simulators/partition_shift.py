"""Devices that see the same things differently: a sensor that sits askew, one of another gain or with an offset, noise.

Every change is a pure function of the device's number and the seed, drawn once for its training and test examples
together.  A *channel* is an index of the examples' first axis: a feature of flat examples, an axis of a motion sensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from device_agent.data import Examples
from edgepfl.errors import ConfigError
from edgepfl.seeds import generator

Input: TypeAlias = npt.NDArray[np.floating]

_SPACE = 3  # axes of a motion sensor
_SQUARE = 2  # dimensions of a batch of flat pictures


@dataclass(frozen=True)
class Rotation:
    """A sensor that sits askew.

    Channels of series are rotated in threes, like the axes of an accelerometer and a gyroscope, about one random axis;
    where their number is not a multiple of three, and of flat examples, in pairs.

    Attributes:
        degrees: the device's angle is uniform between minus this and this.
    """

    degrees: float

    def __post_init__(self) -> None:
        _check("rotation", self.degrees)

    def apply(self, x: Input, rng: np.random.Generator, number: int, devices: int) -> Input:  # noqa: ARG002  as Noise
        """One device's inputs (examples, channels, ...), rotated."""
        angle = math.radians(rng.uniform(-self.degrees, self.degrees))
        channels = x.shape[1]
        threes = x.ndim > _SQUARE and channels % _SPACE == 0
        block = _about(rng.normal(size=_SPACE), angle) if threes else _plane(angle)
        size = len(block)
        whole = channels - channels % size
        grouped = x[:, :whole].reshape(len(x), whole // size, size, *x.shape[2:])
        turned = np.einsum("ij,ngj...->ngi...", block, grouped).reshape(len(x), whole, *x.shape[2:])
        return np.concatenate([turned, x[:, whole:]], axis=1)


@dataclass(frozen=True)
class Turn:
    """Square pictures in quarter turns: device k's are turned k times.

    Ghosh et al. 2020, "An efficient framework for clustered federated learning" (arXiv 2006.04088), rotated MNIST.

    Attributes:
        ways: 2 turns every second device upside down; 4 are all quarter turns.
    """

    ways: int = 4

    def __post_init__(self) -> None:
        if self.ways not in {2, 4}:
            raise ConfigError(f"{self.ways} ways to turn", where="partition turn", remedy="Give 2 or 4")

    def apply(self, x: Input, rng: np.random.Generator, number: int, devices: int) -> Input:  # noqa: ARG002  as Noise
        """One device's pictures (examples, pixels) or (examples, ..., side, side), turned."""
        side = math.isqrt(x.shape[1]) if x.ndim == _SQUARE else x.shape[-1]
        square = x.reshape(len(x), side, side) if x.ndim == _SQUARE and side**2 == x.shape[1] else x
        if square.ndim <= _SQUARE or square.shape[-1] != square.shape[-2]:
            raise ConfigError(
                f"examples of shape {list(x.shape[1:])} are no square pictures",
                where="partition turn",
                remedy="Use rotation, scale, offset or noise",
            )
        return np.rot90(square, number % self.ways * (4 // self.ways), (-2, -1)).reshape(x.shape)


@dataclass(frozen=True)
class Scale:
    """Channels of another gain: each is multiplied by ``exp(N(0, sigma^2))``.

    Attributes:
        sigma: standard deviation of the gain's logarithm.
    """

    sigma: float

    def __post_init__(self) -> None:
        _check("scale", self.sigma)

    def apply(self, x: Input, rng: np.random.Generator, number: int, devices: int) -> Input:  # noqa: ARG002  as Noise
        """One device's inputs (examples, channels, ...), scaled."""
        return x * _channels(rng.lognormal(0.0, self.sigma, (x.shape[1],)), x)


@dataclass(frozen=True)
class Offset:
    """Channels with an offset: each gets ``N(0, sigma^2)`` added.

    Attributes:
        sigma: in the data's own units.
    """

    sigma: float

    def __post_init__(self) -> None:
        _check("offset", self.sigma)

    def apply(self, x: Input, rng: np.random.Generator, number: int, devices: int) -> Input:  # noqa: ARG002  as Noise
        """One device's inputs (examples, channels, ...), moved."""
        return x + _channels(rng.normal(0.0, self.sigma, (x.shape[1],)), x)


@dataclass(frozen=True)
class Noise:
    """Devices with ever more noise: device k of N has Gaussian noise of variance ``level * k / N``, k = 1 ... N.

    Li et al. 2022, "Federated learning on non-IID data silos: an experimental study" (arXiv 2102.02079), feature skew.

    Attributes:
        level: variance on the last device, in the data's own units.
    """

    level: float

    def __post_init__(self) -> None:
        _check("noise", self.level)

    def apply(self, x: Input, rng: np.random.Generator, number: int, devices: int) -> Input:
        """One device's inputs, with noise."""
        return x + rng.normal(0.0, math.sqrt(self.level * (number + 1) / devices), x.shape)


Shift: TypeAlias = Rotation | Turn | Scale | Offset | Noise


def shifted(shifts: Sequence[Shift], examples: Examples, number: int, devices: int, seed: int) -> Examples:
    """One device's examples as that device sees them.

    Args:
        shifts: what changes, in this order.
        examples: the device's; inputs are floating-point numbers, one array.
        number: of the device, counted from 0.
        devices: of the fleet.
        seed: the same seed gives the same examples.

    Raises:
        ConfigError: these inputs cannot be changed so.
    """
    if not shifts:
        return examples
    train, test = examples.train_x, examples.test_x
    if isinstance(train, tuple) or isinstance(test, tuple) or train.dtype.kind != "f" or train.ndim < _SQUARE:
        raise ConfigError(
            "only one input of floating-point numbers can be shifted",
            where="partition",
            remedy="Leave rotation, turn, scale, offset and noise out",
        )
    x = np.concatenate([train, test])
    for place, shift in enumerate(shifts):
        x = shift.apply(x, generator(seed, "shift", place, number), number, devices)
    x = np.ascontiguousarray(x, train.dtype)
    return replace(examples, train_x=x[: len(train)], test_x=x[len(train) :])


def _channels(values: npt.NDArray[np.float64], x: Input) -> npt.NDArray[np.float64]:
    return values.reshape(-1, *(1,) * (x.ndim - 2))


def _plane(angle: float) -> npt.NDArray[np.float64]:
    return np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])


def _about(axis: npt.NDArray[np.float64], angle: float) -> npt.NDArray[np.float64]:
    """The rotation about an axis of three numbers (Rodrigues' formula)."""
    x, y, z = axis / np.linalg.norm(axis)
    cross = np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    return np.asarray(np.eye(_SPACE) + math.sin(angle) * cross + (1 - math.cos(angle)) * (cross @ cross))


def _check(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ConfigError(f"{value}", where=f"partition {name}", remedy="Give a finite number above 0")
