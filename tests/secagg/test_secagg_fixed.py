"""Fixed point: nearest, exact in sums, and no sum wraps."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepfl.errors import CodecError, ConfigError
from edgepfl.secagg.fixed import LEAST_FRACTION, FixedPoint


@given(
    devices=st.integers(2, 2000),
    most=st.integers(1, 1 << 20),
    clip=st.sampled_from([0.1, 1.0, 3.7, 1024.0]),
)
def test_the_greatest_sum_fits_and_one_more_bit_would_not(devices: int, most: int, clip: float) -> None:
    fixed = FixedPoint.of(devices, most, clip)
    greatest = devices * (Fraction(clip) * most * 2**fixed.fraction + Fraction(1, 2))
    assert max(greatest, devices * most) < 1 << (fixed.bits - 1)
    if fixed.fraction < min(52, fixed.bits - 1):
        assert devices * (Fraction(clip) * most * 2 ** (fixed.fraction + 1) + Fraction(1, 2)) >= 1 << (fixed.bits - 1)
    if fixed.bits == 64:
        assert devices * (Fraction(clip) * most * 2**LEAST_FRACTION + Fraction(1, 2)) >= 1 << 31


@pytest.mark.parametrize(
    ("devices", "most", "clip", "bits", "fraction"),
    [(20, 100, 1.0, 32, 20), (20, 1_000_000, 1024.0, 64, 28), (100, 200, 8.0, 64, 45), (20, 1, 8.0, 32, 23)],
)
def test_known_encodings(devices: int, most: int, clip: float, bits: int, fraction: int) -> None:
    fixed = FixedPoint.of(devices, most, clip)
    assert (fixed.bits, fixed.fraction) == (bits, fraction)


@given(
    st.lists(st.floats(-8, 8, width=32), min_size=1, max_size=20),
    st.integers(1, 500),
)
def test_numbers_are_rounded_to_the_nearest_half_to_even(numbers: list[float], weight: int) -> None:
    for fixed in (FixedPoint(32, 14, 8.0, 500), FixedPoint(64, 40, 8.0, 500)):
        words = fixed.encode(np.array(numbers, np.float32), weight, where="test")
        assert words.dtype == fixed.dtype
        wanted = [round(Fraction(x) * weight * 2**fixed.fraction) for x in numbers]
        assert words.view(f"<i{fixed.bits // 8}").tolist() == wanted
        assert np.allclose(fixed.decode(words), np.array(numbers) * weight, rtol=0, atol=fixed.error)


def test_sums_of_the_extremes_do_not_wrap() -> None:
    for devices in (3, 100, 2000):
        fixed = FixedPoint.of(devices, 1000, 3.0)
        ends = np.array([3.0, -3.0], np.float32)
        total = np.zeros(2, fixed.dtype)
        for _ in range(devices):
            total += fixed.encode(ends, 1000, where="test")
        assert fixed.decode(total).tolist() == [3.0 * 1000 * devices, -3.0 * 1000 * devices]


@pytest.mark.parametrize("number", [np.nextafter(np.float32(8), np.float32(9)), np.nan, np.inf, -np.inf])
def test_what_could_wrap_is_refused(number: float) -> None:
    fixed = FixedPoint(32, 14, 8.0, 500)
    with pytest.raises(CodecError, match="sums are safe up to 8"):
        fixed.encode(np.array([0.0, number], np.float32), 1, where="test")
    for weight in (0, -1, 501):
        with pytest.raises(CodecError, match="allows 1 to 500"):
            fixed.encode(np.zeros(1, np.float32), weight, where="test")


def test_a_task_whose_numbers_would_wrap_is_refused() -> None:
    with pytest.raises(CodecError, match="do not fit"):
        FixedPoint(32, 30, 8.0, 1).encode(np.zeros(1, np.float32), 1, where="test")


def test_too_much_for_64_bits_is_refused() -> None:
    with pytest.raises(ConfigError, match="fewer than 20 of 64 bits") as caught:
        FixedPoint.of(2000, 1 << 31, 1e6)
    assert "max_examples" in caught.value.remedy
