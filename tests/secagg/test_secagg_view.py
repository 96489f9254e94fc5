"""What the coordinator sees of a single upload: nothing but its length."""

from __future__ import annotations

import numpy as np
import pytest
from _exchange import Exchange, names
from numpy.typing import NDArray

from edgepfl.secagg.fixed import Words

EVERYONE = names(3)
SIZE = 1 << 15
SIGMAS = 6.0


def uploads(seed: int, bits: int, vector: Words | None = None) -> dict[str, Words]:
    exchange = Exchange(EVERYONE, seed)
    exchange.begin()
    for name in EVERYONE:
        exchange.mask(name, np.zeros(SIZE, f"<u{bits // 8}") if vector is None else vector)
    return exchange.uploads


def is_uniform(cells: NDArray[np.int64], count: int) -> bool:
    """Pearson's chi-square, which for many cells is normal: mean ``cells - 1``, variance twice that."""
    expected = len(cells) / count
    observed = np.bincount(cells, minlength=count)
    squares = float(((observed - expected) ** 2 / expected).sum())
    return bool(abs(squares - (count - 1)) < SIGMAS * (2 * (count - 1)) ** 0.5)


def octets(words: Words) -> NDArray[np.int64]:
    return np.frombuffer(words.tobytes(), np.uint8).astype(np.int64)


@pytest.mark.parametrize("bits", [32, 64])
def test_an_upload_and_two_neighbours_together_are_uniform(bits: int) -> None:
    found = uploads(1, bits)
    for name in EVERYONE:
        assert is_uniform(octets(found[name]), 256)
    for one, two in ((EVERYONE[0], EVERYONE[1]), (EVERYONE[1], EVERYONE[2])):
        assert is_uniform(octets(found[one]) * 256 + octets(found[two]), 1 << 16)
        assert is_uniform(octets(found[one] + found[two]), 256)
        assert is_uniform(octets(found[one] - found[two]), 256)


def test_the_test_would_notice() -> None:
    """Planted: no mask, a mask that is used for two, and a sum whose masks are only those that cancel."""
    plain = np.arange(SIZE, dtype="<u8")
    found = uploads(1, 64)
    first = found[EVERYONE[0]]
    assert not is_uniform(octets(plain), 256)
    assert not is_uniform(octets(first) * 256 + octets(first), 1 << 16)
    assert not is_uniform(octets(first - (first + plain)), 256)


def test_equal_data_give_unrelated_uploads() -> None:
    vector = np.arange(SIZE, dtype="<u8")
    one, two = uploads(1, 64, vector), uploads(2, 64, vector)
    for name in EVERYONE:
        assert is_uniform(octets(one[name]) * 256 + octets(two[name]), 1 << 16)
        assert is_uniform(octets(one[name] - two[name]), 256)
        assert abs(np.mean(octets(one[name]) == octets(two[name])) - 1 / 256) < 1e-3
