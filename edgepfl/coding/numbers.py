"""Numbers in fewer bytes.

``int8`` and ``int4`` give each tensor a scale ``s = max|x| / L`` (``L`` = 127 or 7) and send ``q = floor(x/s + u)``
with ``u`` uniform in [0, 1), so that ``s q`` is ``x`` in the mean (stochastic rounding: QSGD's quantiser with the
greatest magnitude in place of the norm, Alistarh et al. 2017, section 3.1).  Zeros stay zeros.  ``float16`` and
``bfloat16`` round to the nearest, halves to even, and to their greatest number what is above it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgepfl.coding.words import Numbers
from edgepfl.errors import CodecError

Floats: TypeAlias = NDArray[np.float32]

_LEVELS = {Numbers.INT8: 127, Numbers.INT4: 7}
_SCALE = 4  # bytes, of each tensor
_SMALLEST = float(np.finfo(np.float32).tiny)  # scale: below, quotients by it overflow
_GREATEST = float(np.finfo(np.float32).max)
_HALF_GREATEST = float(np.finfo(np.float16).max)
_BFLOAT16_GREATEST = 0x7F7F
_INTEGERS = {Numbers.FLOAT32: "<u4", Numbers.FLOAT16: "<u2", Numbers.BFLOAT16: "<u2"}


def size_of(numbers: Numbers, count: int, tensors: int) -> int:
    """The bytes of ``count`` numbers of so many tensors."""
    match numbers:
        case Numbers.FLOAT32:
            return 4 * count
        case Numbers.FLOAT16 | Numbers.BFLOAT16:
            return 2 * count
        case Numbers.INT8:
            return count + _SCALE * tensors
        case Numbers.INT4:
            return (count + 1) // 2 + _SCALE * tensors


def encode(numbers: Numbers, values: Floats, counts: Sequence[int], rng: np.random.Generator) -> bytes:
    """The bytes of numbers.

    Args:
        numbers: the form.
        values: finite, ``(sum(counts),)``.
        counts: how many of them are of each tensor, one after the other.
        rng: of the rounding.
    """
    match numbers:
        case Numbers.FLOAT32:
            return values.astype("<f4").tobytes()
        case Numbers.FLOAT16:
            return np.clip(values, -_HALF_GREATEST, _HALF_GREATEST).astype("<f2").tobytes()
        case Numbers.BFLOAT16:
            return _bfloat16(values).tobytes()
        case Numbers.INT8 | Numbers.INT4:
            scales, levels = _quantised(values, counts, _LEVELS[numbers], rng)
            return scales.tobytes() + (levels.tobytes() if numbers is Numbers.INT8 else _paired(levels))


def decode(numbers: Numbers, data: memoryview, counts: Sequence[int], where: str) -> Floats:
    """The numbers in ``data``, in memory of their own.

    Args:
        numbers: the form.
        data: as many bytes as :func:`size_of` says.
        counts: how many numbers are of each tensor.
        where: the place for errors.

    Raises:
        CodecError: a number or a scale is not finite, or is none that :func:`encode` gives.
    """
    total = sum(counts)
    match numbers:
        case Numbers.FLOAT32:
            found = np.frombuffer(data, "<f4").astype(np.float32)
        case Numbers.FLOAT16:
            found = np.frombuffer(data, "<f2").astype(np.float32)
        case Numbers.BFLOAT16:
            found = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
        case Numbers.INT8 | Numbers.INT4:
            scales = np.frombuffer(data, "<f4", len(counts))
            body = data[_SCALE * len(counts) :]
            levels = np.frombuffer(body, np.int8) if numbers is Numbers.INT8 else _unpaired(body, total, where)
            return _restored(levels, scales, counts, _LEVELS[numbers], where)
    if not np.isfinite(found).all():
        raise CodecError("a number is not finite", where=where)
    return found


def planes(numbers: Numbers, data: bytes) -> bytes:
    """First the first bytes of all numbers, then their second ones and so on: exponents beside each other pack well."""
    width = np.dtype(_INTEGERS[numbers]).itemsize if numbers in _INTEGERS else 1
    return data if width == 1 else np.frombuffer(data, np.uint8).reshape(-1, width).T.tobytes()


def joined(numbers: Numbers, data: memoryview) -> memoryview:
    """The inverse of :func:`planes`."""
    width = np.dtype(_INTEGERS[numbers]).itemsize if numbers in _INTEGERS else 1
    return data if width == 1 else memoryview(np.frombuffer(data, np.uint8).reshape(width, -1).T.tobytes())


def _bfloat16(values: Floats) -> NDArray[np.uint16]:
    bits = values.astype(np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1)).astype(np.uint32)) >> 16
    sign = rounded & 0x8000
    found: NDArray[np.uint16] = (sign | np.minimum(rounded & 0x7FFF, _BFLOAT16_GREATEST)).astype("<u2")
    return found


def _quantised(
    values: Floats, counts: Sequence[int], most: int, rng: np.random.Generator
) -> tuple[NDArray[Any], NDArray[np.int8]]:
    """Each tensor's scale, and the levels of all numbers."""
    scales, levels = np.zeros(len(counts), "<f4"), np.zeros(len(values), np.int8)
    noise = rng.random(len(values), np.float32)
    for k, part in enumerate(_parts(counts)):
        scale = min(np.float32(float(np.abs(values[part]).max(initial=0.0)) / most), _most_scale(most))
        if scale >= _SMALLEST:
            scales[k] = scale
            levels[part] = np.clip(np.floor(values[part] / scale + noise[part]), -most, most)
    return scales, levels


def _most_scale(most: int) -> np.float32:
    """The greatest scale of which ``most`` are finite: the quotient may be rounded up, to one of which they are not."""
    scale = np.float32(_GREATEST / most)
    return scale if float(scale) * most <= _GREATEST else np.nextafter(scale, np.float32(0))


def _restored(levels: NDArray[np.int8], scales: NDArray[Any], counts: Sequence[int], most: int, where: str) -> Floats:
    if not ((scales >= 0).all() and (scales <= _most_scale(most)).all()):  # neither holds of what is no number
        raise CodecError("a scale is negative or not finite", where=where)
    if levels.size and int(levels.min()) < -most:
        raise CodecError(f"a level is below -{most}", where=where)
    found = levels.astype(np.float32)
    for scale, part in zip(scales, _parts(counts), strict=True):
        found[part] *= scale
    return found


def _parts(counts: Sequence[int]) -> Iterator[slice]:
    begin = 0
    for count in counts:
        yield slice(begin, begin + count)
        begin += count


def _paired(levels: NDArray[np.int8]) -> bytes:
    """Two levels in a byte, the first in the lower half; the last half of an odd number is 0."""
    even = np.concatenate([levels, np.zeros(len(levels) % 2, np.int8)]).view(np.uint8) & 0xF
    return bytes(even[0::2] | even[1::2] << 4)


def _unpaired(data: memoryview, count: int, where: str) -> NDArray[np.int8]:
    both = np.frombuffer(data, np.uint8)
    halves = np.empty(2 * len(both), np.uint8)
    halves[0::2], halves[1::2] = both & 0xF, both >> 4
    if count % 2 and halves[-1]:
        raise CodecError("the last byte holds a number too many", where=where)
    return ((halves[:count] << 4).view(np.int8) >> 4).astype(np.int8)
