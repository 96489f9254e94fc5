"""Examples that belong to nobody yet, and a fleet made of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from device_agent.data import Examples
from device_agent.runners import Array
from edgepfl.seeds import generator
from simulators.datasets._base import FleetData, OnDemand, device_names
from simulators.partition import Indices, Labels, stratified
from simulators.partition_choice import Partition
from simulators.partition_shift import shifted


@dataclass(frozen=True, eq=False)
class Pool:
    """Labelled examples to be dealt out.

    Attributes:
        name: of the data set.
        inputs: the inputs of some of the examples, by their indices.
        labels: (examples,), indices of classes.
        input_shape: of one example.
        classes: their names.
        model: the model that suits the data.
    """

    name: str
    inputs: Callable[[Indices], Array]
    labels: Labels
    input_shape: tuple[int, ...]
    classes: tuple[str, ...]
    model: str

    def deal(self, partition: Partition, devices: int, seed: int, train_fraction: float) -> FleetData:
        """A fleet of them; a device's examples are gathered when they are asked for.

        Args:
            partition: who has what.
            devices: how many.
            seed: the same seed deals the same hands.
            train_fraction: the part of each device's examples of each class that trains, between 0 and 1.

        Raises:
            ConfigError: there are too few examples for so many devices.
        """
        hands = partition.deal(self.labels, devices, seed)
        names = device_names(devices)

        def make(number: int) -> Examples:
            hand, rng = hands[number], generator(seed, "train or test", names[number])
            train, test = (hand[side] for side in stratified(self.labels[hand], train_fraction=train_fraction, rng=rng))
            x = self.inputs(np.concatenate([train, test]))
            found = Examples(x[: len(train)], self.labels[train], x[len(train) :], self.labels[test])
            return shifted(partition.shifts, found, number, devices, seed)

        return FleetData(self.name, OnDemand(names, make), self.input_shape, self.classes, self.model)
