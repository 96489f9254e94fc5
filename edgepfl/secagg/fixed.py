"""Real numbers as whole numbers modulo ``2^32`` or ``2^64``, chosen so that no sum can wrap.

A device sends ``rint(weight * x * 2^fraction)``.  With at most ``devices`` of them, weights up to ``most`` and
``|x| <= clip``, a sum's magnitude is at most ``devices * (most * clip * 2^fraction + 1/2)``, and ``fraction`` is the
greatest for which that stays below ``2^(bits-1)``.  So the sum of the encodings is exact, and its distance from the sum
of the real numbers is at most ``devices / 2^(fraction+1)``: a weighted mean is off by at most ``2^-(fraction+1)``,
since each weight is at least 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgepfl.errors import CodecError, ConfigError

Words: TypeAlias = NDArray[Any]
"""uint32 or uint64."""

LEAST_FRACTION = 20
"""Bits after the binary point that a mean must have: an error of at most 4.8e-7."""
_MOST_FRACTION = 52  # of a float64: more would only hold zeros


@dataclass(frozen=True)
class FixedPoint:
    """An encoding of real numbers.

    Attributes:
        bits: of a whole number.
        fraction: of these after the binary point.
        clip: the greatest magnitude of a number.
        most: the greatest weight.
    """

    bits: Literal[32, 64]
    fraction: int
    clip: float
    most: int

    @classmethod
    def of(cls, devices: int, most: int, clip: float) -> FixedPoint:
        """The shortest encoding with :data:`LEAST_FRACTION` bits after the point, and then as many of these as fit.

        Args:
            devices: whose numbers are summed, at most.
            most: the greatest weight, a whole number.
            clip: the greatest magnitude of a number.

        Raises:
            ConfigError: 64 bits are too few.
        """
        sizes: tuple[Literal[32, 64], ...] = (32, 64)
        for bits in sizes:
            fraction = _fraction(bits, devices, most, clip)
            if fraction >= LEAST_FRACTION:
                return cls(bits, min(fraction, _MOST_FRACTION), clip, most)
        raise ConfigError(
            f"sums over {devices} devices, with up to {most} examples each and numbers up to {clip:g}, leave fewer "
            f"than {LEAST_FRACTION} of 64 bits after the binary point",
            where="secagg",
            remedy="Lower max_examples or secagg_clip",
        )

    @property
    def dtype(self) -> np.dtype[Any]:
        """Little-endian, as it crosses the wire."""
        return np.dtype(f"<u{self.bits // 8}")

    @property
    def error(self) -> float:
        """The most that a weighted mean of encoded numbers is off."""
        return 2.0 ** -(self.fraction + 1)

    def encode(self, numbers: NDArray[Any], weight: int, *, where: str) -> Words:
        """``weight`` times each number, to the nearest, half to even.

        Args:
            numbers: one dimension, any real dtype.
            weight: from 1 to ``most``.
            where: the place for errors.

        Raises:
            CodecError: a number or the weight is outside its bounds, or not finite.
        """
        if not 1 <= weight <= self.most:
            raise CodecError(f"{weight} examples, and the run allows 1 to {self.most}", where=where)
        if not self.clip * self.most * 2.0**self.fraction < 2.0 ** (self.bits - 1):
            raise CodecError("the run's numbers do not fit into its words", where=where, remedy="Update the older side")
        wide = np.asarray(numbers, np.float64)
        greatest = float(np.max(np.abs(wide), initial=0.0))
        if not greatest <= self.clip:  # also where it is not a number
            raise CodecError(
                f"a number of magnitude {greatest:.4g}, and sums are safe up to {self.clip:g}",
                where=where,
                remedy="Raise secagg_clip of the run",
            )
        scaled = np.rint(wide * (float(weight) * 2.0**self.fraction))
        return scaled.astype(np.int64).astype(f"<i{self.bits // 8}").view(self.dtype)

    def decode(self, words: Words) -> NDArray[np.float64]:
        """The real numbers that an encoding, or a sum of encodings, stands for."""
        signed = words.view(f"<i{self.bits // 8}")
        return signed.astype(np.float64) * 2.0**-self.fraction


def _fraction(bits: int, devices: int, most: int, clip: float) -> int:
    """The most bits after the binary point for which no sum wraps; -1 for none."""
    limit = Fraction(1 << (bits - 1), devices) - Fraction(1, 2)  # for one device's number, rounded
    if most >= limit:  # the weights are summed, too
        return -1
    whole = Fraction(clip) * most
    fraction = -1
    while whole * 2 ** (fraction + 1) < limit and fraction < bits - 1:
        fraction += 1
    return fraction
