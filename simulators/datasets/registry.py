"""The data sets by name, for a whole fleet or for one stand-alone agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

from device_agent.data import Examples
from edgepfl.errors import ConfigError
from simulators.datasets import clustered, mixture, mnist, own, random_set, synthetic, watch
from simulators.datasets._base import FleetData
from simulators.datasets.drift import Drift
from simulators.datasets.pool import Pool
from simulators.partition_choice import Iid, Partition
from simulators.partition_shift import shifted
from simulators.text_options import Value, keyed, record

DEVICES = 20
"""In a fleet, unless told otherwise."""

TRAIN_FRACTION = 0.75
"""Of the examples of data of one's own that are dealt out."""


@dataclass(frozen=True)
class Known:
    """A data set that comes along.

    Attributes:
        about: one line for people.
        options: the record of its options.
        fleet: the fleet, from the number of devices, the seed and the options.
        pool: all examples, where they may be dealt out in another way; then the options have a ``train_fraction``.
    """

    about: str
    options: Callable[[], type[Any]]
    fleet: Callable[[int, int, Any], FleetData]
    pool: Callable[[], Pool] | None = None


def load(
    name: str,
    *,
    devices: int = DEVICES,
    seed: int = 0,
    partition: str | Partition | None = None,
    drift: str | Drift | None = None,
    **options: Value,
) -> FleetData:
    """A fleet's data: what every ``--data`` accepts.

    Args:
        name: of a data set that comes along (``edgepfl data list``) or of another distribution's entry point;
            ``module:function`` or ``FILE.npz`` for data of one's own, see :mod:`simulators.datasets.own`.  Options may
            follow: ``"synthetic,alpha=0.5,beta=0.5"``.
        devices: how many; of ``watch`` the first so many, 20 at most.
        seed: of all that is drawn; the same seed gives the same bits.
        partition: who has what, see :mod:`simulators.partition_choice`: ``"dirichlet:0.3+power:1.2"``; None or "": as
            the data set has it.
        drift: how the data change with the round: ``"labels:gradual,start=20,length=30"``; None or "": not at all.
        **options: the data set's own, over those in the name.

    Raises:
        ConfigError: an unknown name or option, or an impossible number of devices or partition.
        DataError: the data cannot be fetched or read, or cannot be used.
    """
    bare, written = keyed(name, where="data")
    if isinstance(partition, str):
        partition = Partition.parse(partition) if partition else None
    if isinstance(drift, str):
        drift = Drift.parse(drift) if drift else None
    data = _loaded(bare, devices, seed, partition, {**written, **options})
    return data if drift is None else data.with_drift(drift, seed)


def device(
    *,
    data: str,
    device: str,
    devices: int = DEVICES,
    seed: int = 0,
    partition: str = "",
    drift: str = "",
    **options: Value,
) -> Examples:
    """The data plug-in of a stand-alone agent: the examples of one device of a fleet.

    Args:
        data: the data set's name.
        device: ``"wearer-03-left"``, ``"device-007"``.
        devices: of the whole fleet, as :func:`load` has it; ``watch`` does not need it.
        seed: as in :func:`load`.
        partition: likewise.
        drift: likewise.
        **options: likewise.

    Raises:
        ConfigError: there is no such data set, device or option.
        DataError: the recordings cannot be fetched or read.
    """
    if data == "watch" and not (partition or drift):  # this one alone is read, as a board has no room for the fleet's
        return watch.load(device, record(watch.Windowing, options, where="data watch"))
    dealt = load(data, devices=devices, seed=seed, partition=partition, drift=drift, **options).devices
    if device not in dealt:
        raise ConfigError(
            f"there is no device {device!r}",
            where=f"data {data}",
            remedy=f"Name one of {min(dealt)} ... {max(dealt)}",
        )
    return dealt[device]


def _loaded(name: str, devices: int, seed: int, partition: Partition | None, options: Mapping[str, Value]) -> FleetData:
    known = KNOWN.get(name)
    if known is None:
        return _own(name, devices, seed, partition, options)
    settings = record(known.options(), options, where=f"data {name}")
    if partition is None or known.pool is None or (partition.labels is None and partition.law is None):
        return _as_it_is(known.fleet(devices, seed, settings), partition, seed)
    unused = sorted(options.keys() - {"train_fraction"})
    if unused:
        raise ConfigError(
            f"{', '.join(unused)} and a partition both say who has what",
            where=f"data {name}",
            remedy="Leave one of them out",
        )
    return known.pool().deal(partition, devices, seed, settings.train_fraction)


def _as_it_is(data: FleetData, partition: Partition | None, seed: int) -> FleetData:
    """A fleet that has its devices already: of a partition only the shifts can be had."""
    if partition is None:
        return data
    if partition.labels is not None or partition.law is not None:
        raise ConfigError(
            "its devices have their own examples: they cannot be dealt out anew",
            where=f"data {data.name}",
            remedy="Use rotation, turn, scale, offset and noise only, or the data set's own options",
        )
    devices = len(data.devices)
    return data.mapped(lambda number, found: shifted(partition.shifts, found, number, devices, seed))


def _own(name: str, devices: int, seed: int, partition: Partition | None, options: Mapping[str, Value]) -> FleetData:
    fraction = {"train_fraction": options["train_fraction"]} if "train_fraction" in options else {}
    if Path(name).suffix == ".npz":
        found: FleetData | Pool = own.from_file(Path(name))
        split = record(Split, options, where=f"data {name}")
    else:
        function = own.function_of(name)
        if function is None:
            raise ConfigError(
                f"there is no data set {name!r}",
                where="data",
                remedy=f"Name one of {', '.join([*DATASETS, *own.installed()])}, module:function or FILE.npz",
            )
        rest = {key: value for key, value in options.items() if key != "train_fraction"}
        found = own.called(function, name, devices, seed, rest)
        split = record(Split, fraction, where=f"data {name}")
    if isinstance(found, FleetData):
        return _as_it_is(found, partition, seed)
    return found.deal(partition or Partition(Iid()), devices, seed, split.train_fraction)


@dataclass(frozen=True)
class Split:
    """How data of one's own are split.

    Attributes:
        train_fraction: the part of each device's examples of each class that trains.
    """

    train_fraction: float = TRAIN_FRACTION

    def __post_init__(self) -> None:
        if not 0 < self.train_fraction < 1:
            raise ConfigError(
                f"the fraction to train on is {self.train_fraction}", where="data", remedy="Give one between 0 and 1"
            )


def _watch(devices: int, seed: int, windowing: watch.Windowing) -> FleetData:  # noqa: ARG001  nothing is drawn
    if not 1 <= devices <= len(watch.DEVICES):
        raise ConfigError(
            f"there are recordings of {len(watch.DEVICES)} devices, not of {devices}",
            where="data watch",
            remedy=f"Ask for 1 to {len(watch.DEVICES)} devices, or use the data set digits",
        )
    dealt = {name: watch.load(name, windowing) for name in watch.DEVICES[:devices]}
    return FleetData("watch", dealt, watch.input_shape(windowing), watch.EXERCISES, "cnn1d")


def _digits() -> Any:  # noqa: ANN401  a module
    return import_module("simulators.datasets.digits")  # scikit-learn takes a second to import and 60 MiB


def _dealt_digits(devices: int, seed: int, skew: Any) -> FleetData:  # noqa: ANN401  of a module that is imported late
    found: FleetData = _digits().pool().deal(skew.partition, devices, seed, skew.train_fraction)
    return found


def _clustered(devices: int, seed: int, clustering: clustered.Clustering) -> FleetData:
    dealt = clustered.fleet(devices, seed, clustering)
    classes = tuple(f"class {number}" for number in range(clustered.CLASSES))
    return FleetData("clustered", dealt, (clustered.FEATURES,), classes, "mlp")


def _mnist(devices: int, seed: int, dealing: mnist.Dealing) -> FleetData:
    return FleetData("mnist", mnist.fleet(devices, seed, dealing), mnist.INPUT_SHAPE, mnist.CLASSES, "mlp")


KNOWN: Mapping[str, Known] = MappingProxyType(
    {
        "watch": Known(
            "smartwatch motion, 10 wearers with two arms, 7 exercises (fetched)", lambda: watch.Windowing, _watch
        ),
        "digits": Known(
            "1,797 handwritten digits of 8 x 8 pixels, by Dirichlet(alpha) or classes a device",
            lambda: _digits().Skew,
            _dealt_digits,
            lambda: _digits().pool(),
        ),
        "clustered": Known(
            "FPFC's: devices in clusters with a classifier each", lambda: clustered.Clustering, _clustered
        ),
        "mnist": Known(
            "70,000 handwritten digits of 28 x 28 pixels, some digits a device (fetched)",
            lambda: mnist.Dealing,
            _mnist,
            mnist.pool,
        ),
        "synthetic": Known(
            "FedProx's synthetic(alpha, beta): classifiers and inputs that differ",
            lambda: synthetic.Synthetic,
            synthetic.fleet,
        ),
        "mixture": Known("FedEM's: devices that mix a few classifiers", lambda: mixture.Mixture, mixture.fleet),
        "random": Known(
            "random examples of any shape and number, for speed", lambda: random_set.Random, random_set.fleet
        ),
    }
)
"""What comes along."""

DATASETS = tuple(KNOWN)
