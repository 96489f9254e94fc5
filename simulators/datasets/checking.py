"""Whether a device's examples are what its data set says; errors name the device."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from device_agent.data import Examples
from edgepfl.errors import DataError
from simulators.datasets._base import FleetData, OnDemand


def checked(data: FleetData) -> FleetData:
    """The same fleet, each device checked when its examples are asked for.

    Raises:
        DataError: then, if they are unusable, or not what the data set says.
    """
    names = tuple(data.devices)

    def make(number: int) -> Examples:
        examples = of(data, names[number])
        if data.classes:
            labels(examples, data, names[number])
        return examples

    return FleetData(data.name, OnDemand(names, make), data.input_shape, data.classes, data.model, data.drift)


def of(data: FleetData, device: str, round_: int = 0) -> Examples:
    """A device's examples in a round.

    Raises:
        DataError: they are unusable, or of another shape than the data set says.
    """
    where = f"data {data.name}, device {device}"
    try:
        examples = data.examples(device, round_)
    except DataError as error:
        raise DataError(f"{error.where}: {error.what}", where=where, remedy=error.remedy) from error
    x = examples.train_x
    if not isinstance(x, tuple) and math.prod(x.shape[1:]) != math.prod(data.input_shape):
        raise DataError(f"an example is {list(x.shape[1:])}, not {list(data.input_shape)}", where=where)
    return examples


def labels(examples: Examples, data: FleetData, device: str) -> npt.NDArray[np.int64]:
    """A device's labels, to train and to test on.

    Raises:
        DataError: its targets are no labels, or others than the data set has.
    """
    where = f"data {data.name}, device {device}"
    y = np.concatenate([examples.train_y, examples.test_y])
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise DataError(f"its targets are {y.dtype} of shape {list(y.shape)}, not labels", where=where)
    if y.min() < 0 or y.max() >= len(data.classes):
        raise DataError(f"labels run from {y.min()} to {y.max()}, and there are {len(data.classes)}", where=where)
    return y.astype(np.int64)
