"""Normals that are normal, noise of the right size, and nothing of a sum in the low bits.

Keys are fixed, so a test that passes always passes; bounds are those that one key in 10^7 or fewer would break.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from edgepfl.privacy import KEY_BYTES, Gaussian, noised, normals
from edgepfl.tree import Tree

KEY = bytes(range(32))
RARE = 1e-7


def test_the_numbers_are_box_and_mullers_of_the_ciphers_stream() -> None:
    stream = Cipher(algorithms.ChaCha20(KEY, bytes(16)), mode=None).encryptor().update(bytes(16))
    first, second = (((int.from_bytes(stream[k : k + 8], "little") >> 11) + 0.5) / 2**53 for k in (0, 8))
    radius = math.sqrt(-2 * math.log(first))
    expected = [radius * math.cos(2 * math.pi * second), radius * math.sin(2 * math.pi * second)]
    np.testing.assert_allclose(normals(KEY, 2), expected, rtol=1e-12)


def test_they_are_standard_and_independent() -> None:
    numbers = normals(KEY, 400_001)
    assert numbers.shape == (400_001,)
    assert stats.kstest(numbers, "norm").pvalue > RARE
    for lag in (1, 2, 1 << 16):
        together = float(np.mean(numbers[lag:] * numbers[:-lag]))
        assert abs(together) * math.sqrt(len(numbers)) < 5.4
    assert len(np.unique(numbers)) == len(numbers)


def test_another_key_gives_others() -> None:
    other = bytes([1, *KEY[1:]])
    assert np.array_equal(normals(KEY, 100), normals(KEY, 100))
    assert abs(np.corrcoef(normals(KEY, 10_000), normals(other, 10_000))[0, 1]) < 0.054
    with pytest.raises(ValueError, match="32 are needed"):
        normals(bytes(KEY_BYTES - 1), 1)


@given(st.floats(1e-6, 1e6), st.floats(1e-3, 1e3), st.binary(min_size=32, max_size=32))
def test_what_comes_out_lies_on_the_grid(sensitivity: float, multiplier: float, key: bytes) -> None:
    mechanism = Gaussian(sensitivity, multiplier)
    trees = {"delta": Tree({"a": np.linspace(-sensitivity, sensitivity, 7), "b": np.full((2, 2), sensitivity / 3)})}
    found = noised(trees, mechanism, key)
    for tensor in found["delta"].values():
        steps = tensor / mechanism.grid
        assert np.array_equal(steps, np.rint(steps))
    assert found["delta"]["b"].shape == (2, 2)
    assert mechanism.deviation(10**6) == pytest.approx(multiplier * sensitivity, rel=multiplier * 1e3 * 2.0**-31)
    assert mechanism.deviation(1) > multiplier * sensitivity


def test_the_noise_has_its_size_whatever_the_numbers() -> None:
    sums = np.random.default_rng(1).normal(0, 50, 200_000)
    found = noised({"delta": Tree({"w": sums})}, Gaussian(0.5, 3.0), KEY)["delta"]["w"] - sums
    spread, count = float(np.mean(found**2)), len(found)
    assert abs(spread / 2.25 - 1) < 5.4 * math.sqrt(2 / count)
    assert abs(float(np.corrcoef(found, sums)[0, 1])) * math.sqrt(count) < 5.4
    assert stats.kstest(found / 1.5, "norm").pvalue > RARE


def test_no_noise_changes_nothing() -> None:
    trees = {"delta": Tree({"w": np.array([0.1, 0.2])})}
    assert noised(trees, Gaussian(1.0, 0.0), KEY) is trees


def test_an_attack_on_membership_does_no_better_than_the_theory() -> None:
    """Whether a device was in a sum is guessed by the best test there is; the mechanism says how good it can be."""
    sensitivity, multiplier, trials = 1.0, 1.2, 200_000
    without = noised({"d": Tree({"w": np.zeros(trials)})}, Gaussian(sensitivity, multiplier), KEY)["d"]["w"]
    with_it = noised({"d": Tree({"w": np.full(trials, sensitivity)})}, Gaussian(sensitivity, multiplier), KEY[::-1])
    hits, alarms = np.mean(with_it["d"]["w"] > 0.5), np.mean(without > 0.5)
    expected = stats.norm.cdf(0.5 / multiplier)
    assert abs(hits - expected) < 5.4 * math.sqrt(0.25 / trials)
    assert abs(1 - alarms - expected) < 5.4 * math.sqrt(0.25 / trials)
