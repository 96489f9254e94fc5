"""Which numbers of a vector are sent, and their places as bytes.

The gap before each place, the numbers that are left out there, is cut into its ``k`` low bits, which are sent as they
are, and the rest in unary (Golomb-Rice coding).  ``k`` follows from how many of how many numbers are sent, by Kiely's
rule for geometric gaps (2004, "Selecting the Golomb parameter in Rice coding"), so nobody has to say it; with
``k = 0``, where half of all are sent, the code is a bitmap.  Of a 100th of all numbers the places take 8.11 bits each,
where no code can do with less than 8.08.  As bytes::

    count    4 bytes
    lows     k bits of each gap, the lowest first
    highs    the rest of each gap as so many 0, then a 1
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgepfl.coding.words import Choice, Codec
from edgepfl.errors import CodecError

Places: TypeAlias = NDArray[np.int64]

MOST = (1 << 32) - 1
"""The most numbers of one vector."""

_HEAD = 4  # bytes of the count


def chosen(codec: Codec, values: NDArray[np.float32]) -> Places:
    """The places of the numbers that are sent, in order; never of a zero.

    Of numbers of equal magnitude topk takes the first, so the choice does not depend on how it is found.
    """
    match codec.choice:
        case Choice.TOPK:
            return _greatest(np.abs(values), most_of(codec, len(values)))
        case Choice.THRESHOLD:
            return np.flatnonzero(np.abs(values) >= codec.amount)
        case _:
            return np.flatnonzero(values)


def most_of(codec: Codec, size: int) -> int:
    """How many of ``size`` numbers may be sent at most."""
    if codec.choice is Choice.TOPK:
        return max(1, int(np.ceil(codec.amount * size))) if size else 0
    return size


def most_bytes(count: int, size: int) -> int:
    """The most bytes of the places of up to ``count`` of ``size`` numbers: with each ``k`` they grow with the count."""
    greatest = {k: 4812 * size // (10_000 << (k - 1)) for k in range(1, _low_bits(1, size) + 1)} if count else {}
    ends = {_low_bits(count, size): count, **{k: most for k, most in greatest.items() if 0 < most < count}}
    return _HEAD + max(_bytes(most * k) + _bytes(_most_high(most, size, k)) for k, most in ends.items())


def encode(places: Places, size: int) -> bytes:
    """The places of some of ``size`` numbers."""
    k = _low_bits(len(places), size)
    gaps = np.diff(places, prepend=-1) - 1
    lows = (gaps[:, np.newaxis] >> np.arange(k)) & 1
    highs = np.zeros(len(gaps) + int((gaps >> k).sum()), np.uint8)
    highs[np.cumsum((gaps >> k) + 1) - 1] = 1
    return len(places).to_bytes(_HEAD, "little") + _packed(lows.astype(np.uint8).reshape(-1)) + _packed(highs)


def decode(data: memoryview, size: int, most: int, where: str) -> tuple[Places, memoryview]:
    """The places at the beginning of ``data``, and what follows them.

    Args:
        data: the bytes.
        size: how many numbers the vector has.
        most: how many of them there may be.
        where: the place for errors.

    Raises:
        CodecError: too many, outside, cut short, or not as :func:`encode` writes them.
    """
    count = int.from_bytes(data[:_HEAD], "little")
    if len(data) < _HEAD or count > most:
        raise CodecError(f"{count} numbers, at most {most} are possible", where=where)
    k = _low_bits(count, size)
    highs = _HEAD + _bytes(count * k)
    if len(data) < highs:
        raise CodecError(f"{len(data)} bytes are no places of {count} numbers", where=where)
    low, spare = _lows(data[_HEAD:highs], count, k)
    most_high = _bytes(_most_high(count, size, k))
    bits = np.unpackbits(np.frombuffer(data[highs : highs + most_high], np.uint8), bitorder="little")
    ends = np.flatnonzero(bits)[:count]
    if len(ends) < count:
        raise CodecError(f"{len(ends)} of {count} places are there", where=where)
    length = _bytes(int(ends[-1]) + 1) if count else 0
    if spare or np.count_nonzero(bits[: 8 * length]) != count:
        raise CodecError("there are bits between the places and what follows", where=where)
    found: Places = np.cumsum(((np.diff(ends, prepend=-1) - 1) << k) + low + 1) - 1
    if count and found[-1] >= size:
        raise CodecError(f"a number at place {found[-1]} of {size}", where=where)
    return found, data[highs + length :]


def _greatest(magnitudes: NDArray[np.float32], count: int) -> Places:
    if not count:
        return np.empty(0, np.int64)
    least = np.partition(magnitudes, len(magnitudes) - count)[len(magnitudes) - count]
    if least == 0:
        return np.flatnonzero(magnitudes)
    above = np.flatnonzero(magnitudes > least)
    equal = np.flatnonzero(magnitudes == least)[: count - len(above)]
    return np.sort(np.concatenate([above, equal]))


def _low_bits(count: int, size: int) -> int:
    """``k``, in integers: machines whose logarithms differ in the last bit must agree."""
    return (4812 * size // (10_000 * count)).bit_length() if count else 0


def _most_high(count: int, size: int, k: int) -> int:
    """The most bits of the high parts: a 1 for each place, and all gaps together are no more than what is left out."""
    return count + ((size - count) >> k) if count else 0


def _bytes(bits: int) -> int:
    return (bits + 7) // 8


def _packed(bits: NDArray[np.uint8]) -> bytes:
    return np.packbits(bits, bitorder="little").tobytes()


def _lows(data: memoryview, count: int, k: int) -> tuple[NDArray[Any], bool]:
    """The low bits of each gap, and whether there is a bit after them."""
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    each = bits[: count * k].reshape(count, k).astype(np.int64)
    return (each << np.arange(k)).sum(1), bool(bits[count * k :].any())
