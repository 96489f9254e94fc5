"""Data and bundles that several tests share, and our commands as processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from device_agent.data import Examples
from edgepfl import algorithms
from edgepfl.bundle import pack
from exporters.build import build
from exporters.zoo import cnn1d
from simulators.datasets import FleetData, load
from simulators.experiment import bundle_for, save
from simulators.processes import Command

SETTINGS: Mapping[str, float | str] = {"lr": 0.1}


@pytest.fixture(scope="session")
def digits() -> FleetData:
    """Four devices' digits."""
    return load("digits", devices=4, seed=0)


@pytest.fixture(scope="session")
def digits_bundle(digits: FleetData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ditto on the digits' model."""
    return save(bundle_for("ditto", SETTINGS, digits, 0), tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="session")
def watch_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ditto on the 1-D CNN for the watch's windows."""
    path = tmp_path_factory.mktemp("watch") / "watch.bundle"
    path.write_bytes(pack(build(algorithms.build("ditto", SETTINGS), cnn1d())))
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
