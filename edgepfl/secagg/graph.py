"""Who exchanges masks with whom, and how many shares open a secret.

Few devices all exchange masks with each other.  Among many, each has ``k`` neighbours in a Harary graph on a ring in
random order, the ``k/2`` next on either side, as Bell et al. 2020 have it.  A secret opens with the
shares of more than half of its owner's neighbours, so a coordinator can never collect both of a device's secrets, even
if it tells its neighbours different things: each reveals only one of the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from math import comb

import numpy as np

MOST_NEIGHBOURS = 254
"""Shares lie at the points 1 to 255 of a field of 256 elements."""
COMPLETE = 32
"""Devices up to which everyone is everyone's neighbour."""
DROPOUT = Fraction(3, 10)
"""The part of the devices that may drop out."""
FAILURE = Fraction(1, 1 << 20)
"""The probability that a round with so many dropouts cannot be opened."""


def degree(devices: int, wanted: int = 0) -> int:
    """How many neighbours each of ``devices`` has.

    Args:
        devices: at least 2.
        wanted: neighbours that a person asks for; 0 for as many as keep the failures rare.
    """
    if wanted:
        return min(devices - 1, MOST_NEIGHBOURS, wanted + wanted % 2)
    if devices <= COMPLETE:
        return devices - 1
    return min(devices - 1, MOST_NEIGHBOURS, _degree(devices))


def threshold(devices: int, neighbours: int) -> int:
    """Shares that open a secret: two thirds where everyone is a neighbour, and always more than half.

    Args:
        devices: how many there are.
        neighbours: that each of them has.
    """
    half = neighbours // 2 + 1
    return max(half, 2 * neighbours // 3) if neighbours == devices - 1 else half


def neighbours(names: Sequence[str], k: int, rng: np.random.Generator) -> dict[str, tuple[str, ...]]:
    """The neighbours of each device, in the order of their names.

    Args:
        names: of the devices, in any order.
        k: how many each has: even, or one fewer than there are devices.
        rng: puts the ring in order.
    """
    ordered = sorted(names)
    count = len(ordered)
    if k >= count - 1:
        return {name: tuple(other for other in ordered if other != name) for name in ordered}
    ring = [ordered[place] for place in rng.permutation(count)]
    steps = [step for near in range(1, k // 2 + 1) for step in (near, -near)]
    return {name: tuple(sorted(ring[(place + step) % count] for step in steps)) for place, name in enumerate(ring)}


def failure(devices: int, k: int, t: int, dropped: int) -> Fraction:
    """A bound on the probability that some device has fewer than ``t`` of its ``k`` neighbours left.

    Of the others that a device might have as neighbours ``dropped`` are gone, so those it has left are
    hypergeometric; times the number of devices, it bounds the probability for any of them.
    """
    alive = devices - 1 - dropped
    ways = sum(comb(alive, left) * comb(dropped, k - left) for left in range(min(t, k + 1)) if k - left <= dropped)
    return devices * Fraction(ways, comb(devices - 1, k))


@lru_cache(maxsize=64)
def _degree(devices: int) -> int:
    dropped = int(DROPOUT * devices)
    for k in range(2, devices - 1, 2):
        if failure(devices, k, threshold(devices, k), dropped) <= FAILURE:
            return k
    return devices - 1
