"""The inputs of a model that takes one."""

from __future__ import annotations

from device_agent.data import Inputs
from device_agent.runners import Array


def only(inputs: Array | Inputs) -> Array:
    """The array of a model's single input."""
    if isinstance(inputs, tuple):
        (inputs,) = inputs
    return inputs
