"""Who is in a round, drawn so that nobody can foretell it: sampling hides a device only from those who do not know."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_BITS = 53


def poisson(devices: Sequence[str], fraction: float, draw: Callable[[int], int]) -> tuple[str, ...]:
    """Each device with probability ``fraction``, by itself, in the order of their names.

    Args:
        devices: who could take part.
        fraction: to 53 bits.
        draw: so many random bits that nobody can guess, as a number.
    """
    bound = round(fraction * (1 << _BITS))
    return tuple(device for device in sorted(devices) if draw(_BITS) < bound)


def fixed(devices: Sequence[str], count: int, draw: Callable[[int], int]) -> tuple[str, ...]:
    """``count`` devices, each set of so many with the same probability, in the order of their names."""
    left = sorted(devices)
    return tuple(sorted(left.pop(_below(len(left), draw)) for _ in range(min(count, len(left)))))


def _below(count: int, draw: Callable[[int], int]) -> int:
    """A number below ``count``, all with the same probability."""
    bits = count.bit_length()
    while (found := draw(bits)) >= count:
        pass
    return found
