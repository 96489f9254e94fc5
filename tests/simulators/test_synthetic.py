"""The synthetic data sets: each against an independent program of its paper's construction, and its statistics."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from _inputs import only

from device_agent.data import Examples
from edgepfl.errors import ConfigError
from edgepfl.seeds import generator
from simulators.datasets import load
from simulators.datasets.mixture import Mixture, components, proportions
from simulators.datasets.random_set import Random
from simulators.datasets.synthetic import Synthetic


def everything(examples: Examples) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    x = np.concatenate([only(examples.train_x), only(examples.test_x)])
    return x, np.concatenate([examples.train_y, examples.test_y])


def fedprox(number: int, seed: int, alpha: float, beta: float) -> tuple[np.ndarray[Any, Any], list[int]]:
    """One device of Synthetic(alpha, beta), one number at a time, with a covariance matrix and a softmax."""
    rng = generator(seed, "synthetic", number)
    count = int(math.exp(4 + 2 * rng.normal())) + 50
    u = alpha * rng.normal()
    centre = beta * rng.normal()
    v = [centre + rng.normal() for _ in range(60)]
    weight = [[u + rng.normal() for _ in range(10)] for _ in range(60)]
    bias = [u + rng.normal() for _ in range(10)]
    covariance = np.diag([math.pow(j, -1.2) for j in range(1, 61)])
    root = np.linalg.cholesky(covariance)
    x = np.array([v + root @ [rng.normal() for _ in range(60)] for _ in range(count)])
    labels = []
    for row in x:
        logits = [sum(row[j] * weight[j][c] for j in range(60)) + bias[c] for c in range(10)]
        powers = [math.exp(each - max(logits)) for each in logits]
        softmax = [power / sum(powers) for power in powers]
        labels.append(softmax.index(max(softmax)))
    return x, labels


@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 0.0), (0.5, 0.5), (1.0, 1.0)])
def test_synthetic_is_what_fedprox_describes(alpha: float, beta: float) -> None:
    fleet = load("synthetic", devices=6, seed=8, alpha=alpha, beta=beta)
    assert (fleet.input_shape, len(fleet.classes), fleet.model) == ((60,), 10, "mlp")
    for number, found in enumerate(fleet.devices.values()):
        x, y = everything(found)
        if len(y) > 300:
            continue
        expected_x, expected_y = fedprox(number, 8, alpha, beta)
        assert x.dtype == np.float32
        assert x == pytest.approx(expected_x.astype(np.float32), rel=1e-5, abs=1e-5)
        assert y.tolist() == expected_y
        assert found.count == int(0.9 * len(y))


def test_synthetic_inputs_and_sizes_have_the_published_distribution() -> None:
    fleet = load("synthetic", devices=300, seed=0, alpha=0.0, beta=2.0)
    counts, variances, means = [], [], []
    for found in fleet.devices.values():
        x, _ = everything(found)
        counts.append(len(x))
        means.append(x.mean(0))
        if len(x) > 1000:
            variances.append(x.var(0))
    assert min(counts) >= 50
    assert np.median(counts) == pytest.approx(50 + math.exp(4), rel=0.15)
    assert np.mean(variances, axis=0) == pytest.approx(np.arange(1, 61) ** -1.2, rel=0.05)
    by_device = np.array(means)
    assert by_device.mean(axis=1).std() == pytest.approx(2.0, rel=0.15)  # B_k
    assert (by_device - by_device.mean(axis=1, keepdims=True)).std() == pytest.approx(1.0, rel=0.1)  # v_k about B_k


def test_alpha_changes_no_label() -> None:
    none, much = (load("synthetic,most=500", devices=10, seed=3, alpha=alpha).devices for alpha in (0.0, 5.0))
    for name in none:
        assert np.array_equal(none[name].train_x, much[name].train_x)
        assert np.array_equal(none[name].train_y, much[name].train_y)
    far = load("synthetic,most=500", devices=10, seed=3, beta=5.0).devices
    assert any(not np.array_equal(none[name].train_y, far[name].train_y) for name in none)


def test_iid_has_one_classifier_for_all() -> None:
    same = load("synthetic", devices=3, seed=4, iid=True, most=4000).devices
    x, y = everything(same["device-000"])
    solved, *_ = np.linalg.lstsq(x, np.eye(10)[y], rcond=None)
    for name in ("device-001", "device-002"):
        x, y = everything(same[name])
        assert abs(float(x.mean())) < 0.1
        assert ((x @ solved).argmax(1) == y).mean() > 0.5  # one device's classifier serves another


def test_sizes_are_cut_off_where_one_says_so() -> None:
    most = [everything(each)[1].size for each in load("synthetic,most=100", devices=50).devices.values()]
    assert max(most) == 100
    assert max(everything(each)[1].size for each in load("synthetic", devices=50).devices.values()) > 1000


def fedem(number: int, seed: int, chosen: Mixture) -> tuple[np.ndarray[Any, Any], list[int]]:
    """One device of FedEM's mixture, example by example, with a sigmoid that is rounded."""
    theta, pi = components(seed, chosen), proportions(number, seed, chosen)
    rng = generator(seed, "mixture", number)
    count = min(int(rng.lognormal(4, 2)) + 50, 1000) + chosen.tests
    x = rng.uniform(-1, 1, (count, chosen.dimension))
    picks = rng.random(count)  # as Generator.choice draws: the first cumulated proportion above it
    noise = rng.normal(0, chosen.noise, count)
    labels = []
    for row, pick, epsilon in zip(x, picks, noise, strict=True):
        z = next(m for m in range(chosen.components) if pick < pi[: m + 1].sum() or m == chosen.components - 1)
        logit = sum(float(a * b) for a, b in zip(row, theta[z], strict=True)) + float(epsilon)
        labels.append(round(1 / (1 + math.exp(-logit))))
    return x, labels


def test_mixture_is_what_fedem_describes() -> None:
    chosen = Mixture(tests=50)
    fleet = load("mixture,tests=50", devices=4, seed=2)
    assert (fleet.input_shape, fleet.classes) == ((150,), ("0", "1"))
    for number, found in enumerate(fleet.devices.values()):
        x, y = everything(found)
        expected_x, expected_y = fedem(number, 2, chosen)
        assert x == pytest.approx(expected_x.astype(np.float32))
        assert (y == expected_y).mean() > 0.999  # the sums' order may decide a logit of 0
        assert len(found.test_y) == 50
        assert 50 <= found.count <= 1000
    theta = components(2, chosen)
    assert theta.shape == (3, 150)
    assert np.abs(theta).max() <= 1
    assert theta.var() == pytest.approx(1 / 3, rel=0.1)


def test_mixtures_are_as_unlike_as_alpha_says() -> None:
    for alpha in (0.1, 0.4, 10.0):
        pi = np.array([proportions(number, 0, Mixture(alpha=alpha)) for number in range(400)])
        assert pi.sum(axis=1) == pytest.approx(1)
        assert pi.var(axis=0).mean() == pytest.approx(2 / 9 / (3 * alpha + 1), rel=0.15)


def test_random_examples_have_any_shape_and_something_to_learn() -> None:
    flat = load("random", devices=2, seed=1, train=400, test=400)
    series = load("random,channels=6,classes=7", devices=2, seed=1)
    assert (flat.input_shape, len(flat.classes), flat.model) == ((60,), 10, "mlp")
    assert (series.input_shape, len(series.classes), series.model) == ((6, 100), 7, "cnn1d")
    one, other = flat.devices.values()
    assert (one.count, len(one.test_y)) == (400, 400)
    assert only(one.train_x).dtype == np.float32
    centres = np.stack([only(one.train_x)[one.train_y == label].mean(0) for label in range(10)])
    for device in (one, other):  # what one device learns is of use to another
        guess = (only(device.test_x) @ centres.T - 0.5 * (centres**2).sum(1)).argmax(1)
        assert (guess == device.test_y).mean() > 0.7
    nothing = load("random", devices=1, signal=0.0, train=4000).devices["device-000"]
    means = np.stack([only(nothing.train_x)[nothing.train_y == label].mean(0) for label in range(10)])
    assert np.abs(means).max() < 0.25


def test_a_hundred_thousand_devices_are_made_one_at_a_time() -> None:
    fleet = load("random", devices=100_000, seed=3, channels=6)
    names = list(fleet.devices)
    assert (names[0], names[-1], len(names)) == ("device-00000", "device-99999", 100_000)
    assert names == sorted(names)
    last = fleet.devices["device-99999"]
    assert np.array_equal(last.train_x, fleet.devices["device-99999"].train_x)
    first_numbers = {float(only(fleet.devices[name].train_x).flat[0]) for name in names[-50:]}
    assert len(first_numbers) == 50
    with pytest.raises(KeyError):
        fleet.devices["device-100000"]


@pytest.mark.parametrize("name", ["synthetic", "mixture", "random"])
def test_a_device_is_the_same_in_any_fleet_and_the_seed_decides(name: str) -> None:
    small, great, other = (load(name, devices=n, seed=s) for n, s in ((3, 1), (9, 1), (3, 2)))
    one, same, different = (each.devices["device-002"] for each in (small, great, other))
    assert np.array_equal(one.train_x, same.train_x)
    assert np.array_equal(one.test_y, same.test_y)
    rows = min(one.count, different.count)
    assert not np.array_equal(only(one.train_x)[:rows], only(different.train_x)[:rows])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("synthetic", {"alpha": -1.0}),
        ("synthetic", {"beta": math.nan}),
        ("synthetic", {"most": 1}),
        ("synthetic", {"train_fraction": 1.0}),
        ("synthetic", {"devices": 0}),
        ("mixture", {"components": 0}),
        ("mixture", {"alpha": 0.0}),
        ("mixture", {"noise": -0.1}),
        ("mixture", {"tests": 0}),
        ("random", {"train": 0}),
        ("random", {"channels": -1}),
        ("random", {"signal": math.inf}),
        ("random", {"features": 0}),
    ],
)
def test_what_cannot_be_had_is_refused(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(name, **options)
    assert caught.value.remedy


def test_defaults_are_the_published_ones() -> None:
    assert Synthetic() == Synthetic(1.0, 1.0, most=0, train_fraction=0.9)
    assert Mixture() == Mixture(3, 0.4, 150, 0.1)
    assert Random().shape == (60,)
