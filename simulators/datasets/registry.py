"""The data sets by name, for a whole fleet or for one stand-alone agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from importlib import import_module
from typing import TypeVar

from device_agent.data import Examples
from edgepfl.errors import ConfigError
from simulators.datasets import clustered, mnist, watch
from simulators.datasets._base import FleetData

DATASETS = ("watch", "digits", "clustered", "mnist")
DEVICES = 20
"""In a fleet, unless told otherwise."""

Settings = TypeVar("Settings")


def load(name: str, *, devices: int = DEVICES, seed: int = 0, **options: float) -> FleetData:
    """A fleet's data.

    Args:
        name: ``"watch"``, ``"digits"``, ``"clustered"`` or ``"mnist"``.
        devices: how many; of ``watch`` the first so many, 20 at most.
        seed: deals ``digits`` and ``mnist`` out, and draws ``clustered``; ``watch`` has nothing to draw.
        **options: the fields of :class:`~simulators.datasets.watch.Windowing` for ``watch``, of
            :class:`~simulators.datasets.digits.Skew` for ``digits``, of
            :class:`~simulators.datasets.clustered.Clustering` for ``clustered``, of
            :class:`~simulators.datasets.mnist.Dealing` for ``mnist``.

    Raises:
        ConfigError: an unknown name or option, or an impossible number of devices.
        DataError: the recordings, or MNIST's images, cannot be fetched or read.
    """
    match name:
        case "watch":
            return _watch(devices, options)
        case "digits":
            return _digits(devices, seed, options)
        case "clustered":
            return _clustered(devices, seed, options)
        case "mnist":
            return _mnist(devices, seed, options)
        case _:
            raise ConfigError(
                f"there is no data set {name!r}", where="data", remedy=f"Name one of {', '.join(DATASETS)}"
            )


def device(*, data: str, device: str, devices: int = DEVICES, seed: int = 0, **options: float) -> Examples:
    """The data plug-in of a stand-alone agent: the examples of one device of a fleet.

    Args:
        data: the data set's name.
        device: ``"wearer-03-left"``, ``"device-007"``.
        devices: of the whole fleet, as :func:`load` has it; ``watch`` does not need it.
        seed: as in :func:`load`.
        **options: likewise.

    Raises:
        ConfigError: there is no such data set, device or option.
        DataError: the recordings cannot be fetched or read.
    """
    if data == "watch":  # this one alone is read, as a board has no room for the fleet's
        return watch.load(device, _settings(watch.Windowing, options, data))
    dealt = load(data, devices=devices, seed=seed, **options).devices
    if device not in dealt:
        raise ConfigError(
            f"there is no device {device!r}",
            where=f"data {data}",
            remedy=f"Name one of {min(dealt)} ... {max(dealt)}",
        )
    return dealt[device]


def _watch(devices: int, options: Mapping[str, float]) -> FleetData:
    if not 1 <= devices <= len(watch.DEVICES):
        raise ConfigError(
            f"there are recordings of {len(watch.DEVICES)} devices, not of {devices}",
            where="data watch",
            remedy=f"Ask for 1 to {len(watch.DEVICES)} devices, or use the data set digits",
        )
    windowing = _settings(watch.Windowing, options, "watch")
    dealt = {name: watch.load(name, windowing) for name in watch.DEVICES[:devices]}
    return FleetData("watch", dealt, watch.input_shape(windowing), watch.EXERCISES, "cnn1d")


def _digits(devices: int, seed: int, options: Mapping[str, float]) -> FleetData:
    digits = import_module("simulators.datasets.digits")  # scikit-learn takes a second to import and 60 MiB
    dealt = digits.fleet(devices, seed, _settings(digits.Skew, options, "digits"))
    return FleetData("digits", dealt, digits.INPUT_SHAPE, digits.CLASSES, "mlp")


def _clustered(devices: int, seed: int, options: Mapping[str, float]) -> FleetData:
    dealt = clustered.fleet(devices, seed, _settings(clustered.Clustering, options, "clustered"))
    classes = tuple(f"class {number}" for number in range(clustered.CLASSES))
    return FleetData("clustered", dealt, (clustered.FEATURES,), classes, "mlp")


def _mnist(devices: int, seed: int, options: Mapping[str, float]) -> FleetData:
    dealt = mnist.fleet(devices, seed, _settings(mnist.Dealing, options, "mnist"))
    return FleetData("mnist", dealt, mnist.INPUT_SHAPE, mnist.CLASSES, "mlp")


def _settings(kind: type[Settings], options: Mapping[str, float], name: str) -> Settings:
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # dataclasses have no common type
    unknown = sorted(options.keys() - set(known))
    if unknown:
        raise ConfigError(
            f"it has no option {', '.join(unknown)}", where=f"data {name}", remedy=f"It has {', '.join(known)}"
        )
    return kind(**options)
