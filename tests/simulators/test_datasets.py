"""Data sets by name, for a fleet and for one agent."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from _inputs import only

from edgepfl.errors import ConfigError
from simulators.datasets import FleetData, device, load


@pytest.mark.parametrize("options", [{}, {"classes": 3}, {"alpha": 0.05, "train_fraction": 0.3}])
def test_digits_are_all_dealt_out_and_every_class_is_on_both_sides(options: dict[str, Any]) -> None:
    fleet = load("digits", devices=20, seed=3, **options)
    assert (fleet.input_shape, fleet.model, len(fleet.classes), len(fleet.devices)) == ((64,), "mlp", 10, 20)
    assert sum(len(found.train_y) + len(found.test_y) for found in fleet.devices.values()) == 1797
    for found in fleet.devices.values():
        assert set(found.train_y) == set(found.test_y)
        x = only(found.train_x)
        assert x.dtype == np.float32
        assert 0 <= x.min() < x.max() <= 1
        if "classes" in options:
            assert len(set(found.train_y)) == 3


def digest(data: FleetData) -> str:
    """Of every device's examples."""
    found = hashlib.sha256()
    for name, examples in data.devices.items():
        found.update(name.encode())
        for array in (examples.train_x, examples.train_y, examples.test_x, examples.test_y):
            found.update(f"{only(array).dtype}{only(array).shape}".encode() + only(array).tobytes())
    return found.hexdigest()[:16]


@pytest.mark.parametrize(
    ("options", "partition", "bits"),
    [
        ({}, "", "973d49795046a27a"),
        ({}, "dirichlet:0.3", "973d49795046a27a"),
        ({"classes": 3}, "", "479d39172991b6b9"),
        ({}, "classes:3", "479d39172991b6b9"),
        ({"alpha": 0.05, "train_fraction": 0.3}, "", "280d20f2005e426c"),
    ],
)
def test_digits_are_dealt_as_ever_bit_for_bit(options: dict[str, Any], partition: str, bits: str) -> None:
    assert digest(load("digits", devices=20, seed=3, partition=partition, **options)) == bits


def test_sizes_alone_are_of_labels_by_chance() -> None:
    dealt = load("digits", devices=10, partition="power:1").devices.values()
    sizes = sorted(found.count + len(found.test_y) for found in dealt)
    assert sum(sizes) == 1797
    assert sizes[-1] > 6 * sizes[0]
    largest = max(dealt, key=lambda found: found.count)
    assert len(set(largest.train_y)) == 10


def test_the_seed_decides_who_has_what() -> None:
    one, same, other = (load("digits", devices=5, seed=seed).devices["device-002"] for seed in (1, 1, 2))
    assert np.array_equal(one.train_x, same.train_x)
    assert not np.array_equal(one.train_y, other.train_y)


def test_one_agent_gets_what_the_fleet_would_give_it() -> None:
    fleet = load("digits", devices=7, seed=4)
    alone = device(data="digits", device="device-006", devices=7, seed=4)
    assert np.array_equal(alone.train_x, fleet.devices["device-006"].train_x)
    assert np.array_equal(alone.test_y, fleet.devices["device-006"].test_y)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("cifar", {}),
        ("watch", {"devices": 21}),
        ("watch", {"devices": 0}),
        ("watch", {"alpha": 1.0}),
        ("digits", {"devices": 225}),
        ("digits", {"hop": 50}),
        ("digits", {"train_fraction": 1.0}),
    ],
)
def test_what_cannot_be_had_is_refused_with_a_remedy(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(name, **options)
    assert caught.value.where
    assert caught.value.remedy


@pytest.mark.parametrize(("data", "name"), [("watch", "wearer-11-left"), ("digits", "device-020"), ("cifar", "a")])
def test_an_unknown_device_or_data_set_is_refused(data: str, name: str) -> None:
    with pytest.raises(ConfigError, match="there is no") as caught:
        device(data=data, device=name)
    assert "Name one of" in caught.value.remedy


def test_the_watch_plug_in_brings_no_heavy_library_onto_a_board() -> None:
    script = (
        "import sys, simulators.datasets; print(*sorted({'sklearn', 'scipy', 'torch'} & sys.modules.keys()), 'end')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["end"]
    assert not done.stderr
