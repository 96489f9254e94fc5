"""The 1,797 handwritten digits of 8 x 8 pixels that scikit-learn ships, dealt out with seeded label skew."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.datasets import load_digits

from device_agent.data import Examples
from edgepfl.errors import ConfigError
from edgepfl.seeds import generator
from simulators.partition import by_classes, dirichlet, stratified

INPUT_SHAPE = (64,)
CLASSES = tuple("0123456789")
INK = 16.0  # the darkest pixel


@dataclass(frozen=True)
class Skew:
    """How unlike each other the devices are.

    Attributes:
        alpha: of the Dirichlet distribution; smaller is more unlike.  Not used where ``classes`` is above 0.
        classes: if above 0, each device has exactly so many classes.
        train_fraction: the part of each device's examples of each class that trains.
    """

    alpha: float = 0.3
    classes: int = 0
    train_fraction: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.train_fraction < 1:
            raise ConfigError(
                f"the fraction to train on is {self.train_fraction}",
                where="data digits",
                remedy="Give a number between 0 and 1",
            )


def names(devices: int) -> tuple[str, ...]:
    """``device-000`` and so on."""
    return tuple(f"device-{number:03}" for number in range(devices))


def fleet(devices: int, seed: int, skew: Skew | None = None) -> dict[str, Examples]:
    """Every device's examples by its name: ``x`` float32 (examples, 64) in 0 .. 1, ``y`` int64.

    Raises:
        ConfigError: there are too few digits for so many devices.
    """
    chosen = skew or Skew()
    bunch = load_digits()
    x, y = (bunch.data / INK).astype(np.float32), bunch.target.astype(np.int64)
    if chosen.classes > 0:
        parts = by_classes(y, devices, classes=chosen.classes, seed=seed)
    else:
        parts = dirichlet(y, devices, alpha=chosen.alpha, seed=seed)
    dealt: dict[str, Examples] = {}
    for name, part in zip(names(devices), parts, strict=True):
        rng = generator(seed, "train or test", name)
        train, test = (part[side] for side in stratified(y[part], train_fraction=chosen.train_fraction, rng=rng))
        dealt[name] = Examples(x[train], y[train], x[test], y[test])
    return dealt
