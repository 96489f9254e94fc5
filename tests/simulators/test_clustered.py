"""The synthetic data of devices in clusters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from _inputs import only

from edgepfl.errors import ConfigError
from simulators.datasets import clustered, device, load
from simulators.datasets.clustered import Clustering, Vector, truth


def test_it_is_as_the_paper_has_it() -> None:
    fleet = load("clustered", devices=100, seed=1)
    assert (fleet.name, fleet.input_shape, len(fleet.classes), len(fleet.devices)) == ("clustered", (60,), 10, 100)
    counts = []
    for found in fleet.devices.values():
        x, y = only(found.train_x), found.train_y
        counts.append(len(y) + len(found.test_y))
        assert x.dtype == np.float32
        assert y.dtype == np.int64
        assert len(y) == int(0.8 * counts[-1])
        assert 0 <= x.min() < x.max() < 1
        assert 0 <= y.min() <= y.max() <= 9
    assert min(counts) >= 250  # (0 + 50) * 5
    assert max(counts) == 2000
    assert 450 < np.median(counts) < 600  # (e^4 + 50) * 5 = 523
    assert all(count % 5 == 0 for count in counts)
    pixels = np.concatenate([only(found.train_x).ravel() for found in fleet.devices.values()])
    assert pixels.mean() == pytest.approx(0.5, abs=1e-3)
    assert pixels.var() == pytest.approx(1 / 12, abs=1e-3)


def test_sizes_have_no_bound_in_the_paper() -> None:
    counts = [len(each.train_y) for each in load("clustered", devices=100, seed=1, most=10**7).devices.values()]
    assert max(counts) > 5000
    assert sum(count > 1600 for count in counts) > 5


def agreement(weight: Vector, bias: Vector, name: str) -> float:
    """How many of a device's labels one classifier gives."""
    found = load("clustered", devices=8, seed=4).devices[name]
    return float(((only(found.train_x) @ weight + bias).argmax(1) == found.train_y).mean())


def test_devices_of_a_cluster_share_a_classifier_and_others_do_not() -> None:
    assert truth(8) == (0, 1, 2, 3, 0, 1, 2, 3)
    weight, bias = clustered._classifier(1, 4)
    own, others = ("device-001", "device-005"), ("device-000", "device-002", "device-003", "device-004")
    assert min(agreement(weight, bias, name) for name in own) > 0.75  # but for the noise
    assert max(agreement(weight, bias, name) for name in others) < 0.6
    assert weight.shape == (60, 10)
    assert weight.std() == pytest.approx(1, abs=0.1)


def test_the_seed_decides_and_a_device_is_the_same_in_any_fleet() -> None:
    small, great, other = (
        load("clustered", devices=n, seed=s).devices["device-002"] for n, s in ((3, 1), (9, 1), (3, 2))
    )
    assert np.array_equal(only(small.train_x), only(great.train_x))
    assert np.array_equal(small.test_y, great.test_y)
    assert not np.array_equal(small.train_y[:100], other.train_y[:100])
    alone = device(data="clustered", device="device-002", devices=3, seed=1)
    assert np.array_equal(alone.train_y, small.train_y)


@pytest.mark.parametrize("options", [{"clusters": 0}, {"most": 1}, {"train_fraction": 1.0}, {"alpha": 0.3}])
def test_what_cannot_be_had_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        load("clustered", devices=3, **options)
    assert caught.value.remedy
    with pytest.raises(ConfigError, match="no fleet"):
        clustered.fleet(0, 0, Clustering())
