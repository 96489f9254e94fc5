"""Shares: any ``t`` open the secret, and fewer say nothing of it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from _exchange import seeded
from hypothesis import given
from hypothesis import strategies as st

from edgepfl.errors import CodecError
from edgepfl.secagg.shamir import combine, inverse, multiply, split


def slow(a: int, b: int) -> int:
    """The product in GF(2^8) from its definition."""
    product = 0
    for bit in range(8):
        product ^= (a << bit) if b >> bit & 1 else 0
    for bit in range(15, 7, -1):
        product ^= 0x11B << (bit - 8) if product >> bit & 1 else 0
    return product


def test_the_field_is_that_of_aes() -> None:
    assert int(multiply(0x53, 0xCA)) == 1  # FIPS 197 has them as each other's inverses
    everyone = np.arange(256, dtype=np.uint8)
    table = multiply(everyone[:, None], everyone)
    wanted = np.array([[slow(a, b) for b in range(256)] for a in range(256)], np.uint8)
    assert np.array_equal(table, wanted)
    assert all(slow(a, inverse(a)) == 1 for a in range(1, 256))


def test_shares_are_the_values_of_the_polynomial() -> None:
    """For t = 2 the share at x is secret + random * x."""
    shares = split(b"\x07\xff", 5, 2, lambda size: bytes([0x1D, 0x80])[:size])
    for x, share in enumerate(shares, start=1):
        assert share == bytes([0x07 ^ slow(0x1D, x), 0xFF ^ slow(0x80, x)])


@given(st.binary(min_size=1, max_size=32), st.integers(1, 9), st.data())
def test_any_t_open_the_secret(secret: bytes, count: int, data: st.DataObject) -> None:
    t = data.draw(st.integers(1, count))
    shares = dict(enumerate(split(secret, count, t, seeded(count * t)), start=1))
    for points in itertools.islice(itertools.combinations(shares, t), 30):
        assert combine({point: shares[point] for point in points}, t) == secret
    if t > 1:
        with pytest.raises(CodecError, match="needed"):
            combine({point: shares[point] for point in list(shares)[: t - 1]}, t)


def test_many_shares() -> None:
    secret, draw = bytes(range(32)), seeded(1)
    shares = dict(enumerate(split(secret, 255, 171, draw), start=1))
    assert combine({point: shares[point] for point in range(85, 256)}, 171) == secret
    with pytest.raises(ValueError, match="outside"):
        split(secret, 256, 2, draw)


def test_fewer_shares_say_nothing() -> None:
    """Over all random coefficients, the shares at two points are each pair once, whatever the secret is."""
    a, b = np.meshgrid(np.arange(256, dtype=np.uint8), np.arange(256, dtype=np.uint8))
    for secret in (0, 1, 200):
        shares = split(bytes([secret]) * (1 << 16), 3, 3, lambda _: a.tobytes() + b.tobytes())
        pairs = set(zip(shares[0], shares[2], strict=True))
        assert len(pairs) == 1 << 16
    few = split(bytes([9]) * (1 << 16), 3, 2, lambda _: a.tobytes())  # planted: two of these tell
    assert len(set(zip(few[0], few[2], strict=True))) == 1 << 8
