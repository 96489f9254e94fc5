"""What a fleet's data look like in numbers: how much each device has, of what, and how unlike the others it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from simulators.datasets import checking
from simulators.datasets._base import FleetData


class Share(msgspec.Struct, frozen=True):
    """One device's data.

    Attributes:
        device: its name.
        train: examples to train on.
        test: to test on.
        counts: of both together, by class.
        entropy: of its labels, in bits; 0 where it has one class, ``log2(classes)`` where it has as much of each.
        distance: total variation between its labels and the fleet's, half the sum of the absolute differences: 0 is the
            same mix, 1 nothing in common.  It is the earth mover's distance where all classes are equally far apart;
            what Zhao et al. 2018, "Federated learning with non-IID data" (arXiv 1806.00582), call so is twice it.
    """

    device: str
    train: int
    test: int
    counts: tuple[int, ...]
    entropy: float
    distance: float

    @property
    def examples(self) -> int:
        """To train and to test on."""
        return self.train + self.test

    @property
    def classes(self) -> int:
        """How many it has."""
        return sum(count > 0 for count in self.counts)


class Spread(msgspec.Struct, frozen=True):
    """A number over the devices."""

    min: float
    median: float
    mean: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of some values, at least one."""
        found = np.asarray(values, np.float64)
        return cls(*(float(value) for value in (found.min(), np.median(found), found.mean(), found.max())))


class Statistics(msgspec.Struct, frozen=True):
    """A fleet's data.

    Attributes:
        name: of the data set.
        round: of which they are.
        input_shape: of one example.
        classes: their names.
        devices: each device's share.
        counts: of the whole fleet, by class.
        train: examples to train on, over the devices.
        test: to test on.
        held: classes of a device.
        entropy: see :class:`Share`.
        distance: likewise.
    """

    name: str
    round: int
    input_shape: tuple[int, ...]
    classes: tuple[str, ...]
    devices: tuple[Share, ...]
    counts: tuple[int, ...]
    train: Spread
    test: Spread
    held: Spread
    entropy: Spread
    distance: Spread

    @property
    def examples(self) -> int:
        """Of the whole fleet."""
        return sum(self.counts)


@dataclass(frozen=True)
class _Counted:
    device: str
    train: int
    test: int
    counts: npt.NDArray[np.int64]


def statistics(data: FleetData, round_: int = 0, see: Callable[[int], None] = lambda _: None) -> Statistics:
    """Look at every device once; none is held.

    Args:
        data: a fleet's.
        round_: of data that drift.
        see: told how many devices are done, after each.

    Raises:
        DataError: a device's examples are unusable, or not what the data set says; it names the device.
    """
    found: list[_Counted] = []
    for each in _counted(data, round_):
        found.append(each)
        see(len(found))
    total = np.sum([each.counts for each in found], axis=0)
    mix = total / total.sum()
    shares = tuple(_share(each, mix) for each in found)
    return Statistics(
        data.name,
        round_,
        data.input_shape,
        data.classes,
        shares,
        tuple(total.tolist()),
        Spread.of([each.train for each in shares]),
        Spread.of([each.test for each in shares]),
        Spread.of([each.classes for each in shares]),
        Spread.of([each.entropy for each in shares]),
        Spread.of([each.distance for each in shares]),
    )


def entropy(counts: Sequence[int] | npt.NDArray[np.int64]) -> float:
    """Of a distribution given by counts, in bits (Shannon 1948).

    >>> entropy([5, 5]), entropy([7, 0])
    (1.0, 0.0)
    """
    present = np.asarray([count for count in counts if count > 0], np.float64)
    part = present / present.sum()
    return max(0.0, -math.fsum((part * np.log2(part)).tolist()))


def _share(each: _Counted, mix: npt.NDArray[np.float64]) -> Share:
    apart = 0.5 * float(np.abs(each.counts / each.counts.sum() - mix).sum())
    return Share(each.device, each.train, each.test, tuple(each.counts.tolist()), entropy(each.counts), apart)


def _counted(data: FleetData, round_: int) -> Iterator[_Counted]:
    for device in data.devices:
        examples = checking.of(data, device, round_)
        counts = np.bincount(checking.labels(examples, data, device), minlength=len(data.classes))
        yield _Counted(device, examples.count, len(examples.test_y), counts)
