"""Data and bundles that several tests share, made once, and our commands as processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np

from device_agent.data import Examples
from edgepfl import algorithms
from edgepfl.bundle import pack
from exporters.build import build
from exporters.zoo import cnn1d
from simulators.datasets import FleetData, load
from simulators.experiment import bundle_for
from simulators.processes import Command

SETTINGS: Mapping[str, float | str] = {"lr": 0.1}


@cache
def digits(devices: int = 4) -> FleetData:
    """Some devices' digits."""
    return load("digits", devices=devices, seed=0)


@cache
def _digits_bundle() -> bytes:
    return pack(bundle_for("ditto", SETTINGS, digits(), 0))


@cache
def _watch_bundle() -> bytes:
    return pack(build(algorithms.build("ditto", SETTINGS), cnn1d(), runtimes=("onnx", "executorch")))


def digits_bundle(folder: Path) -> Path:
    """Ditto on the digits' model, as a file."""
    return _saved(folder, _digits_bundle())


def watch_bundle(folder: Path) -> Path:
    """Ditto on the 1-D CNN for the watch's windows, for both runtimes, as a file."""
    return _saved(folder, _watch_bundle())


def _saved(folder: Path, data: bytes) -> Path:
    path = folder / "a.bundle"
    path.write_bytes(data)
    return path


@contextmanager
def command(folder: Path, name: str, *words: str) -> Iterator[Command]:
    """``edgepfl WORDS`` in a process, its output in a file of that name."""
    with Command(list(words), folder / f"{name}.log") as process:
        yield process


def windows(rows: int, seed: int) -> Examples:
    """Random windows of the watch's shape."""
    source = np.random.default_rng(seed)
    x = source.standard_normal((rows, 6, 100), dtype=np.float32)
    y = source.integers(0, 7, rows)
    cut = rows * 2 // 3
    return Examples(x[:cut], y[:cut], x[cut:], y[cut:])
