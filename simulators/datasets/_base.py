"""What every data set gives: a fleet's examples, each device's apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from device_agent.data import Examples


@dataclass(frozen=True)
class FleetData:
    """The examples of a whole fleet, and what a model for them must look like.

    Attributes:
        name: the data set's name in the registry.
        devices: each device's own examples by its name, in the order of the names.
        input_shape: of one example, ``(6, 100)`` or ``(64,)``.
        classes: names of the classes; ``y`` holds their indices.
        model: the model that suits the data, by its name in ``exporters``.
    """

    name: str
    devices: Mapping[str, Examples]
    input_shape: tuple[int, ...]
    classes: tuple[str, ...]
    model: str
