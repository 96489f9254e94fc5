"""Every example goes to one device, once; the same seed deals the same hands."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepfl.errors import ConfigError
from edgepfl.seeds import generator
from simulators.partition import LEAST, Indices, _feed_the_empty, by_classes, dirichlet, stratified

SEEDS = st.integers(0, 2**32)


def labels_of(*sizes: int) -> Indices:
    """So many of each class, in an order that depends on nothing but the sizes."""
    return generator(0, "labels").permutation(np.repeat(np.arange(len(sizes)) * 3, sizes))


def check_invariants(labels: Indices, parts: list[Indices]) -> None:
    assert sorted(np.concatenate(parts)) == list(range(len(labels)))
    for part in parts:
        _, counts = np.unique(labels[part], return_counts=True)
        assert counts.size > 0
        assert counts.min() >= LEAST
        assert np.all(np.diff(part) > 0)


@given(
    sizes=st.lists(st.integers(LEAST, 60), min_size=1, max_size=6),
    crowd=st.floats(0, 1),
    alpha=st.sampled_from([0.01, 0.1, 1.0, 100.0]),
    seed=SEEDS,
)
def test_dirichlet_deals_everything_once(sizes: list[int], crowd: float, alpha: float, seed: int) -> None:
    labels = labels_of(*sizes)
    most = len(labels) // (2 * LEAST)
    if most == 0:
        with pytest.raises(ConfigError, match="cannot be dealt"):
            dirichlet(labels, 1, alpha=alpha, seed=seed)
        return
    devices = max(1, round(crowd * most))
    parts = dirichlet(labels, devices, alpha=alpha, seed=seed)
    assert len(parts) == devices
    check_invariants(labels, parts)
    again = dirichlet(labels, devices, alpha=alpha, seed=seed)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


@given(devices=st.integers(4, 12), classes=st.integers(1, 5), seed=SEEDS)
def test_by_classes_gives_each_device_exactly_so_many(devices: int, classes: int, seed: int) -> None:
    labels = labels_of(50, 60, 70, 80, 48)
    if devices * classes < 5:
        with pytest.raises(ConfigError, match="cannot hold 5 classes"):
            by_classes(labels, devices, classes=classes, seed=seed)
        return
    parts = by_classes(labels, devices, classes=classes, seed=seed)
    check_invariants(labels, parts)
    assert [np.unique(labels[part]).size for part in parts] == [classes] * devices
    again = by_classes(labels, devices, classes=classes, seed=seed)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


def test_by_classes_shares_a_class_equally() -> None:
    labels = labels_of(41, 41)
    sizes = [len(part) for part in by_classes(labels, 4, classes=1, seed=5)]
    assert sorted(sizes) == [20, 20, 21, 21]
    assert sum(sizes) == 82


def test_seeds_and_alpha_matter() -> None:
    labels = labels_of(*[100] * 5)

    def skew(alpha: float) -> float:
        parts = dirichlet(labels, 10, alpha=alpha, seed=1)
        return float(np.mean([np.unique(labels[part], return_counts=True)[1].max() / len(part) for part in parts]))

    assert skew(0.05) > skew(1.0) > skew(100.0)
    first, second = (dirichlet(labels, 10, alpha=1.0, seed=seed) for seed in (1, 2))
    assert any(not np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("devices", [0, -1, 13])
def test_an_impossible_number_of_devices_is_refused(devices: int) -> None:
    labels = labels_of(50, 50)  # 100 // 8 = 12 devices at most
    with pytest.raises(ConfigError) as caught:
        dirichlet(labels, devices, alpha=1.0, seed=0)
    assert "1 to 12 devices" in caught.value.remedy
    with pytest.raises(ConfigError):
        by_classes(labels, devices, classes=1, seed=0)
    assert len(dirichlet(labels, 12, alpha=1.0, seed=0)) == 12


def test_a_class_too_small_for_its_devices_is_refused() -> None:
    labels = labels_of(4, 100)
    with pytest.raises(ConfigError, match="cannot be dealt"):
        by_classes(labels, 4, classes=2, seed=0)
    assert len(by_classes(labels, 2, classes=1, seed=0)) == 2


def test_a_piece_too_small_to_halve_moves_whole() -> None:
    counts = np.array([[7, 6, 7], [0, 0, 0], [0, 5, 0]])
    _feed_the_empty(counts)
    assert counts.tolist() == [[7, 0, 7], [0, 6, 0], [0, 5, 0]]
    counts = np.array([[0, 0], [9, 20]])
    _feed_the_empty(counts)
    assert counts.tolist() == [[0, 10], [9, 10]]


def test_alpha_must_be_above_zero() -> None:
    for alpha in (0.0, -1.0, float("nan")):
        with pytest.raises(ConfigError, match="alpha") as caught:
            dirichlet(labels_of(50, 50), 2, alpha=alpha, seed=0)
        assert caught.value.where == "Dirichlet partition"


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    fraction=st.floats(0.01, 0.99),
    seed=SEEDS,
)
def test_stratified_keeps_the_mix_and_loses_nothing(sizes: list[int], fraction: float, seed: int) -> None:
    labels = labels_of(*sizes)
    train, test = stratified(labels, train_fraction=fraction, rng=generator(seed, "x"))
    assert sorted([*train, *test]) == list(range(len(labels)))
    for label, size in zip(np.unique(labels), sizes, strict=True):
        count = int((labels[train] == label).sum())
        assert 1 <= count <= max(size - 1, 1)
        assert abs(count - fraction * size) <= 1
