"""Random examples of any shape and number, for measurements of speed: cheap to make, and there is something to learn.

Each class has a random pattern; an example is its class's pattern among normal noise.  A device is drawn from its
number when it is asked for, and nothing is kept of it, so that a fleet of 100,000 needs no memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from device_agent.data import Examples
from edgepfl.errors import ConfigError
from edgepfl.seeds import generator
from simulators.datasets._base import FleetData, OnDemand, device_names


@dataclass(frozen=True)
class Random:
    """How much of what.

    Attributes:
        features: of a flat example; the default suits a perceptron of 60 inputs.
        channels: above 0: examples are series of so many channels; 6 suits the 1-D network of the watch's data.
        length: of a series.
        classes: which an example may have.
        train: examples that a device trains on.
        test: that it tests on; 0 for none.
        signal: length of a class's pattern, in standard deviations of the noise; 0: labels mean nothing.
    """

    features: int = 60
    channels: int = 0
    length: int = 100
    classes: int = 10
    train: int = 64
    test: int = 16
    signal: float = 3.0

    def __post_init__(self) -> None:
        positive = min(self.features, self.length, self.classes, self.train)
        if positive < 1 or min(self.channels, self.test) < 0 or not 0 <= self.signal < np.inf:
            raise ConfigError(
                f"features {self.features}, channels {self.channels}, length {self.length}, classes {self.classes}, "
                f"train {self.train}, test {self.test}, signal {self.signal}",
                where="data random",
                remedy="Give numbers of at least 1; channels, test and signal may be 0",
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one example."""
        return (self.channels, self.length) if self.channels else (self.features,)


def fleet(devices: int, seed: int, chosen: Random) -> FleetData:
    """A fleet of any size.

    Raises:
        ConfigError: there is no device.
    """
    made = OnDemand(device_names(devices), lambda number: examples(number, seed, chosen))
    classes = tuple(f"class {label}" for label in range(chosen.classes))
    return FleetData("random", made, chosen.shape, classes, "cnn1d" if chosen.channels else "mlp")


def examples(number: int, seed: int, chosen: Random) -> Examples:
    """Device ``number``'s, counted from 0: ``x`` float32 (examples, *shape), ``y`` int64."""
    rng = generator(seed, "random", number)
    y = rng.integers(0, chosen.classes, chosen.train + chosen.test)
    x = rng.standard_normal((len(y), *chosen.shape), np.float32)
    if chosen.signal:
        x += _patterns(seed, chosen)[y]
    border = chosen.train
    return Examples(x[:border], y[:border], x[border:], y[border:])


@lru_cache(8)
def _patterns(seed: int, chosen: Random) -> npt.NDArray[np.float32]:
    """(classes, *shape), each of length ``signal``."""
    drawn = generator(seed, "random", "patterns").standard_normal((chosen.classes, math.prod(chosen.shape)))
    scaled = chosen.signal * drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    patterns: npt.NDArray[np.float32] = scaled.astype(np.float32).reshape(chosen.classes, *chosen.shape)
    return patterns
