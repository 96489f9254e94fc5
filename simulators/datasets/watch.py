"""Smartwatch motion of 10 wearers, 7 shoulder exercises, both arms: 20 devices by nature, not by dice.

Each recording is cut in time: its first part trains, its last part tests, and no sample is in both.  Overlapping
windows drawn from the whole recording would put the same half-second on both sides and flatter every method.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from device_agent.data import Examples
from edgepfl.errors import ConfigError
from simulators.datasets.fetching import cache_folder, reading
from simulators.datasets.watch_source import ARMS, AXES, recordings_file

Samples = npt.NDArray[np.float32]

EXERCISES = (
    "pendulum",
    "abduction",
    "forward elevation",
    "internal rotation",
    "external rotation",
    "trapezius extension",
    "upright row",
)
DEVICES = tuple(f"wearer-{wearer:02}-{arm}" for wearer in range(1, 11) for arm in ARMS)


@dataclass(frozen=True)
class Windowing:
    """How recordings become examples.

    Attributes:
        length: samples in a window; 100 are two seconds.
        hop: samples from the start of a window to the start of the next.
        train_fraction: the part of each recording, from its start, that trains.
    """

    length: int = 100
    hop: int = 50
    train_fraction: float = 0.3

    def __post_init__(self) -> None:
        if self.length < 1 or self.hop < 1 or not 0 < self.train_fraction < 1:
            raise ConfigError(
                f"windows of {self.length} samples every {self.hop}, {self.train_fraction} of them to train on",
                where="data watch",
                remedy="Give a length and a hop of at least 1 and a fraction between 0 and 1",
            )


@dataclass(frozen=True)
class Recording:
    """One exercise of one wearer, one arm.

    Attributes:
        exercise: index into :data:`EXERCISES`.
        samples: float32 (time, 6), 50 Hz.
    """

    exercise: int
    samples: Samples


def recordings(device: str, cache: Path | None = None) -> list[Recording]:
    """The recordings of one device; no other device's are read.

    Raises:
        ConfigError: there is no such device.
        DataError: the recordings cannot be fetched or read.
    """
    if device not in DEVICES:
        raise ConfigError(
            f"there is no device {device!r}",
            where="data watch",
            remedy=f"Name one of {DEVICES[0]}, {DEVICES[1]}, ... {DEVICES[-1]}",
        )
    with reading(recordings_file(cache or cache_folder())) as archive:
        names = sorted(name for name in archive if name.startswith(f"{device}/"))
        return [Recording(int(name.split("/")[1]), np.asarray(archive[name], np.float32)) for name in names]


def split(samples: Samples, train_fraction: float) -> tuple[Samples, Samples]:
    """The first ``train_fraction`` of a recording and the rest, by time."""
    border = int(train_fraction * len(samples))
    return samples[:border], samples[border:]


def windows(samples: Samples, windowing: Windowing) -> Samples:
    """Every whole window of (time, axes) samples: (windows, axes, length)."""
    if len(samples) < windowing.length:
        return np.empty((0, samples.shape[1], windowing.length), samples.dtype)
    return np.lib.stride_tricks.sliding_window_view(samples, windowing.length, axis=0)[:: windowing.hop]


def examples(found: Iterable[Recording], windowing: Windowing, *, device: str) -> Examples:
    """One device's examples, normalised per axis by what it trains on and by nothing else.

    Returns:
        ``x`` float32 (examples, 6, length), ``y`` int64, in the order of the recordings and of time.

    Raises:
        ConfigError: the windows are too long for one of its recordings' parts.
    """
    halves = [(recording.exercise, split(recording.samples, windowing.train_fraction)) for recording in found]
    seen = np.concatenate([train for _, (train, _) in halves])
    mean, deviation = seen.mean(axis=0, dtype=np.float64), seen.std(axis=0, dtype=np.float64)
    scale = np.where(deviation > 0, deviation, 1.0)

    def cut(part: int) -> tuple[Samples, npt.NDArray[np.int64]]:
        pieces = [windows(((half[part] - mean) / scale).astype(np.float32), windowing) for _, half in halves]
        if not all(len(piece) for piece in pieces):
            raise ConfigError(
                f"a recording is too short for windows of {windowing.length} samples on both sides of its split",
                where=f"data watch, device {device}",
                remedy="Make the windows shorter, or the fraction to train on less extreme",
            )
        labels = [np.full(len(piece), kind, np.int64) for piece, (kind, _) in zip(pieces, halves, strict=True)]
        return np.ascontiguousarray(np.concatenate(pieces)), np.concatenate(labels)

    return Examples(*cut(0), *cut(1))


def load(device: str, windowing: Windowing | None = None, cache: Path | None = None) -> Examples:
    """The examples of one device: see :func:`recordings` and :func:`examples`."""
    return examples(recordings(device, cache), windowing or Windowing(), device=device)


def input_shape(windowing: Windowing) -> tuple[int, ...]:
    """Of one example."""
    return (AXES, windowing.length)
