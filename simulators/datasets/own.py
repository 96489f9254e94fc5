"""Data of one's own: a function ``module:function``, an entry point of the group ``edgepfl.datasets``, or a file.

A function is called with the options as keywords, and with ``devices`` and ``seed`` if it takes them.  It returns

* :class:`~simulators.datasets.FleetData`: devices of its own;
* a mapping of device to :class:`~device_agent.data.Examples` (or to their arrays, as a device's data plug-in gives
  them): likewise;
* ``(x, y)``: examples that are dealt out by a partition, ``y`` being whole numbers from 0.

A file ``FILE.npz`` holds arrays ``x`` and ``y``, to be dealt out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import numpy as np

from device_agent import sources
from device_agent.data import Examples
from device_agent.runners import Array
from edgepfl.errors import ConfigError, DataError, EdgepflError
from exporters import named
from simulators.datasets._base import FleetData
from simulators.datasets.checking import checked
from simulators.datasets.pool import Pool
from simulators.text_options import Value

GROUP = "edgepfl.datasets"
"""Of entry points: ``name = "module:function"``."""

_SERIES = 2  # dimensions of an example that is a series: channels and time


def installed() -> dict[str, EntryPoint]:
    """The data sets that other distributions bring, by name."""
    return {point.name: point for point in entry_points(group=GROUP)}


def function_of(name: str) -> Callable[..., object] | None:
    """What gives the data of that name; None if the name is none of ours to look for.

    A module of the working directory is found, too, as that of a model is.

    Raises:
        ConfigError: it cannot be imported.
    """
    point = installed().get(name)
    if point is None and ":" not in name:
        return None
    if point is None:
        return named.function(name, f"data {name}", "Write MODULE:FUNCTION, of a module that is installed or lies here")
    try:
        found: Callable[..., object] = point.load()
    except Exception as error:  # importing runs the plug-in's own code
        raise ConfigError(
            f"cannot be imported ({type(error).__name__}: {error})",
            where=f"data {name}",
            remedy=f"Mend or uninstall the distribution that brings {point.value}",
        ) from error
    return found


def called(
    function: Callable[..., object], name: str, devices: int, seed: int, options: Mapping[str, Value]
) -> FleetData | Pool:
    """What a function gives.

    Raises:
        ConfigError: the options are none of its own.
        DataError: it failed, or what it gave is no data.
    """
    parameters = inspect.signature(function).parameters.values()
    anything = any(each.kind is each.VAR_KEYWORD for each in parameters)
    takes = {each.name for each in parameters}
    given: dict[str, Any] = {"devices": devices, "seed": seed}
    given = {key: value for key, value in given.items() if anything or key in takes} | dict(options)
    try:
        inspect.signature(function).bind(**given)
    except TypeError as error:
        raise ConfigError(f"its options do not fit: {error}", where=f"data {name}") from None
    try:
        found = function(**given)
    except EdgepflError:
        raise
    except Exception as error:  # a plug-in's errors are its own
        raise DataError(f"failed with {type(error).__name__}: {error}", where=f"data {name}") from error
    known = understood(found, name)
    return checked(known) if isinstance(known, FleetData) else known


def understood(found: object, name: str) -> FleetData | Pool:
    """A plug-in's result as a fleet or a pool.

    Raises:
        DataError: it is neither, or its arrays cannot be used; it names the device or the row.
    """
    match found:
        case FleetData() | Pool():
            return found
        case Mapping() if found:
            return _fleet(found, name)
        case (x, y):
            return pool_of(np.asarray(x), np.asarray(y), name)
        case _:
            raise DataError(
                f"it returned {type(found).__name__}",
                where=f"data {name}",
                remedy="Return FleetData, a mapping of device to Examples, or a tuple (x, y)",
            )


def from_file(path: Path) -> Pool:
    """The examples of an ``.npz`` with arrays ``x`` and ``y``.

    Raises:
        DataError: it cannot be read, or its arrays cannot be used.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            x, y = archive["x"], archive["y"]
    except Exception as error:  # a damaged archive can raise anything
        raise DataError(f"it cannot be read: {error}", where=str(path), remedy="Save arrays x and y in it") from error
    return pool_of(x, y, str(path))


def pool_of(x: Array, y: Array, name: str) -> Pool:
    """Examples to be dealt out, checked.

    Raises:
        DataError: they are no numbers, not finite, or ``y`` does not hold labels from 0.
    """
    where = f"data {name}"
    try:
        checked = Examples(x, y, x[:0], y[:0])
    except DataError as error:
        array = "" if error.where == "data" else f", {error.where.removeprefix('train_')}"
        raise DataError(_plain(error.what), where=where + array, remedy=error.remedy) from error
    labels = _labels(checked.train_y, where)
    counts = np.bincount(labels)
    if not counts.all():
        missing = int(np.flatnonzero(counts == 0)[0])
        raise DataError(
            f"no example has the label {missing}, and the greatest is {len(counts) - 1}",
            where=f"{where}, y",
            remedy="Number the classes 0, 1, 2, ... without a gap",
        )
    inputs = x if x.ndim > 1 else x[:, None]
    inputs = inputs.astype(np.float32) if inputs.dtype.kind == "f" else inputs
    classes = tuple(f"class {label}" for label in range(len(counts)))
    return Pool(name, inputs.__getitem__, labels, inputs.shape[1:], classes, _model(inputs.shape[1:]))


def _plain(what: str) -> str:
    return what.replace("train_x", "x").replace("train_y", "y").replace("no training example", "no example")


def _labels(y: Array, where: str) -> Array:
    whole = y.dtype.kind in "iu" or (y.dtype.kind == "f" and bool((y == np.floor(y)).all()))
    if y.ndim != 1 or not whole or y.min() < 0:
        raise DataError(
            f"it is {y.dtype} of shape {list(y.shape)}" + (f", from {y.min():g}" if y.ndim == 1 else ""),
            where=f"{where}, y",
            remedy="Give one whole number from 0 for each example",
        )
    return y.astype(np.int64)


def _model(shape: tuple[int, ...]) -> str:
    return "cnn1d" if len(shape) == _SERIES else "mlp"


def _fleet(found: Mapping[Any, object], name: str) -> FleetData:
    """A fleet from devices of its own, each checked."""
    devices = {str(device): _device(given, f"data {name}, device {device}") for device, given in found.items()}
    shapes = {device: _shape(examples, f"data {name}, device {device}") for device, examples in devices.items()}
    first, shape = next(iter(shapes.items()))
    classes = 0
    for device, examples in devices.items():
        where = f"data {name}, device {device}"
        if shapes[device] != shape:
            raise DataError(
                f"an example is {list(shapes[device])}, and one of {first} is {list(shape)}",
                where=where,
                remedy="Give all devices examples of one shape",
            )
        classes = max(classes, 1 + int(_labels(np.concatenate([examples.train_y, examples.test_y]), where).max()))
    return FleetData(name, devices, shape, tuple(f"class {label}" for label in range(classes)), _model(shape))


def _device(given: object, where: str) -> Examples:
    try:
        return sources.examples_of(given, where)
    except DataError as error:
        raise DataError(f"{error.where}: {error.what}", where=where, remedy=error.remedy) from error


def _shape(examples: Examples, where: str) -> tuple[int, ...]:
    """Of one example; several inputs have none that a model here takes."""
    x = examples.train_x
    if isinstance(x, tuple):
        raise DataError("examples have several inputs", where=where, remedy="Return FleetData")
    return tuple(x.shape[1:])
