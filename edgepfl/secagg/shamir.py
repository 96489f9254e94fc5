"""Secrets in shares: any ``t`` of them open the secret, fewer tell nothing (Shamir 1979, doi:10.1145/359168.359176).

Each byte of the secret is the value at 0 of a polynomial of degree ``t - 1`` over GF(2^8), whose other coefficients are
random, and a share is the polynomials' values at its point.  The field is that of AES, modulo
``x^8 + x^4 + x^3 + x + 1``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgepfl.errors import CodecError

Bytes: TypeAlias = NDArray[np.uint8]
Draw: TypeAlias = Callable[[int], bytes]
"""So many random bytes, such as :func:`os.urandom`."""

_MODULUS = 0x11B
_ORDER = 255  # of the multiplicative group


def _tables() -> tuple[NDArray[np.int64], Bytes]:
    """Logarithms to the base 3, which generates the group, and powers of it, twice over."""
    powers, logarithms, x = np.zeros(2 * _ORDER, np.uint8), np.zeros(256, np.int64), 1
    for exponent in range(_ORDER):
        powers[exponent] = powers[exponent + _ORDER] = x
        logarithms[x] = exponent
        x ^= x << 1
        x ^= _MODULUS if x & 0x100 else 0
    return logarithms, powers


_LOG, _EXP = _tables()
_LOGARITHM: list[int] = _LOG.tolist()  # one at a time, a list is faster


def multiply(a: Any, b: Any) -> Bytes:  # noqa: ANN401  whatever NumPy makes an array of bytes of
    """The product in the field, element by element."""
    x, y = np.asarray(a, np.uint8), np.asarray(b, np.uint8)
    product: Bytes = np.where((x == 0) | (y == 0), 0, _EXP[_LOG[x] + _LOG[y]]).astype(np.uint8)
    return product


def inverse(a: int) -> int:
    """One over an element that is not 0."""
    return int(_EXP[_ORDER - _LOG[a]])


def split(secret: bytes, shares: int, threshold: int, draw: Draw) -> tuple[bytes, ...]:
    """The shares at the points 1, 2, ... of a secret.

    Args:
        secret: any bytes.
        shares: how many, 1 to 255.
        threshold: how many open it, 1 to ``shares``.
        draw: gives random bytes.

    Returns:
        Shares as long as the secret.
    """
    if not 1 <= threshold <= shares <= _ORDER:
        raise ValueError(f"{threshold} of {shares} shares are outside 1 .. {_ORDER}")
    size = len(secret)
    random = np.frombuffer(draw(size * (threshold - 1)), np.uint8).reshape(threshold - 1, size)
    points = np.arange(1, shares + 1, dtype=np.uint8)[:, None]
    values = np.zeros((shares, size), np.uint8)
    for row in (*random[::-1], np.frombuffer(secret, np.uint8)):  # Horner's rule, the secret last
        values = multiply(values, points) ^ row
    return tuple(row.tobytes() for row in values)


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret, from the shares at the first ``threshold`` of the points that are given.

    Args:
        shares: by point.
        threshold: with which the secret was split.

    Raises:
        CodecError: they are too few, or of different lengths.
    """
    points = sorted(shares)[:threshold]
    if len(points) < threshold or len({len(shares[point]) for point in points}) != 1:
        raise CodecError(f"{len(points)} shares of one length, and {threshold} are needed", where="secret")
    found = np.zeros(len(shares[points[0]]), np.uint8)
    for point in points:
        found ^= multiply(np.frombuffer(shares[point], np.uint8), _weight(point, points))
    return found.tobytes()


def _weight(point: int, points: list[int]) -> int:
    """What a share counts in the value at 0: the product of ``other / (other - point)`` over the others."""
    exponent = sum(_LOGARITHM[other] - _LOGARITHM[other ^ point] for other in points if other != point)
    return int(_EXP[exponent % _ORDER])
