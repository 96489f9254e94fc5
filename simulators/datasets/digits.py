"""The 1,797 handwritten digits of 8 x 8 pixels that scikit-learn ships, dealt out with seeded label skew."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.datasets import load_digits

from edgepfl.errors import ConfigError
from simulators.datasets.pool import Pool
from simulators.partition_choice import Classes, Dirichlet, Partition

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

    @property
    def partition(self) -> Partition:
        """What deals them out, unless told otherwise."""
        return Partition(Classes(self.classes) if self.classes > 0 else Dirichlet(self.alpha))


def pool() -> Pool:
    """All digits: inputs float32 (examples, 64) in 0 .. 1, labels int64."""
    bunch = load_digits()
    x, y = (bunch.data / INK).astype(np.float32), bunch.target.astype(np.int64)
    return Pool("digits", x.__getitem__, y, INPUT_SHAPE, CLASSES, "mlp")
