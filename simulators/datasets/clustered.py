"""Devices in clusters, of which each has a classifier of its own: the synthetic data of FPFC.

Yu et al. 2022, "Clustered federated learning based on nonconvex pairwise fusion": for each cluster ``l``,
``mu_l ~ N(0, 1)`` and ``W_l, b_l ~ N(mu_l, 1)``; then ``x ~ U[0, 1]``, and the class is the greatest of
``x W_l + b_l + N(0, 0.5^2)``.  A device has ``5 (lognormal(4, 2) + 50)`` examples, of which four fifths train.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from device_agent.data import Examples
from edgepfl.errors import ConfigError
from edgepfl.seeds import generator
from simulators.datasets._base import OnDemand, device_names

Vector: TypeAlias = NDArray[np.float64]

FEATURES, CLASSES = 60, 10
NOISE = 0.5  # standard deviation of the logits'


@dataclass(frozen=True)
class Clustering:
    """What the fleet falls into.

    Attributes:
        clusters: how many there are; the devices take turns in them.
        most: examples of a device are cut off here: the published sizes have no bound, and reach tens of thousands.
        train_fraction: the part of each device's examples that trains.
    """

    clusters: int = 4
    most: int = 2000
    train_fraction: float = 0.8

    def __post_init__(self) -> None:
        if self.clusters < 1 or self.most < 2 or not 0 < self.train_fraction < 1:  # noqa: PLR2004  one on each side
            raise ConfigError(
                f"{self.clusters} clusters, at most {self.most} examples, {self.train_fraction} of them to train on",
                where="data clustered",
                remedy="Give a cluster, two examples and a fraction between 0 and 1 at least",
            )


def truth(devices: int, clustering: Clustering | None = None) -> tuple[int, ...]:
    """The cluster of each device, in the order of the names."""
    chosen = clustering or Clustering()
    return tuple(number % chosen.clusters for number in range(devices))


def fleet(devices: int, seed: int, clustering: Clustering | None = None) -> Mapping[str, Examples]:
    """Every device's examples by its name: ``x`` float32 (examples, 60) in 0 .. 1, ``y`` int64 in 0 .. 9.

    Raises:
        ConfigError: there is no device.
    """
    chosen = clustering or Clustering()
    clusters = truth(devices, chosen)
    return OnDemand(device_names(devices), lambda number: _device(number, clusters[number], seed, chosen))


def _device(number: int, cluster: int, seed: int, clustering: Clustering) -> Examples:
    rng = generator(seed, "clustered", f"device-{number:03}")  # whatever the length of its name
    count = min((int(rng.lognormal(4, 2)) + 50) * 5, clustering.most)
    weight, bias = _classifier(cluster, seed)
    x = rng.random((count, FEATURES))
    y = (x @ weight + bias + rng.normal(0, NOISE, (count, CLASSES))).argmax(1)
    x, border = x.astype(np.float32), max(int(clustering.train_fraction * count), 1)
    return Examples(x[:border], y[:border], x[border:], y[border:])


def _classifier(cluster: int, seed: int) -> tuple[Vector, Vector]:
    rng = generator(seed, "clustered", "classifier", cluster)
    mean = rng.normal()
    return rng.normal(mean, 1, (FEATURES, CLASSES)), rng.normal(mean, 1, CLASSES)
