"""Which device is of which profile, from shares and a seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from edgepfl import seeds
from edgepfl.errors import ConfigError


def counts(shares: Mapping[str, float], devices: int) -> dict[str, int]:
    """How many devices each profile gets: whole numbers that sum to ``devices``, by the largest remainder.

    Equal remainders go to the profile named first (Hamilton's method).

    Raises:
        ConfigError: there are no shares, one is negative or not finite, or all are 0.
    """
    total = math.fsum(shares.values())
    if not 0 < total < math.inf or min(shares.values(), default=-1.0) < 0:
        raise ConfigError(
            f"{dict(shares)} are no shares", where="profiles", remedy="Give numbers of 0 or more, such as pi-4=3,host=1"
        )
    exact = {name: devices * share / total for name, share in shares.items()}
    whole = {name: math.floor(value) for name, value in exact.items()}
    left = devices - sum(whole.values())
    neediest = sorted(exact, key=lambda name: whole[name] - exact[name])
    return {name: whole[name] + (name in neediest[:left]) for name in shares}


def dealt(shares: Mapping[str, float], devices: Sequence[str], seed: int) -> dict[str, str]:
    """The profile's name of each device: exact counts, in an order of the seed's.

    Args:
        shares: of profiles, by name; they need not sum to 1.
        devices: their names.
        seed: of the order.

    Raises:
        ConfigError: as :func:`counts`.
    """
    names = [name for name, count in counts(shares, len(devices)).items() for _ in range(count)]
    order = seeds.generator(seed, "profiles").permutation(len(devices))
    return {devices[place]: name for place, name in zip(order, names, strict=True)}
