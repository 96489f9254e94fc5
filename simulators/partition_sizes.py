"""How many examples each device has: equal shares, or a few devices that have most.

Each law gives the devices' shares of the whole; :func:`sizes` makes whole numbers of them that leave no device below a
minimum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from edgepfl.errors import ConfigError
from simulators.partition import Counts, apportion

Shares: TypeAlias = npt.NDArray[np.float64]
"""(devices,), at least 0, their sum is 1."""


@dataclass(frozen=True)
class Power:
    """A power law of the rank: the device of rank r (1, 2, ..., in random order) has a share like ``r ** -exponent``.

    Attributes:
        exponent: 0 is equal shares, 1 is Zipf's law.
        least: examples of every device.
    """

    exponent: float
    least: int = 8

    def __post_init__(self) -> None:
        _check("power", self.exponent, self.least, zero=True)

    def shares(self, devices: int, rng: np.random.Generator) -> Shares:
        """The devices' shares."""
        weights = np.arange(1, devices + 1, dtype=np.float64) ** -self.exponent
        return np.asarray(rng.permutation(weights / weights.sum()))


@dataclass(frozen=True)
class Sizes:
    """A draw from a symmetric Dirichlet distribution.

    Li et al. 2022, "Federated learning on non-IID data silos: an experimental study" (arXiv 2102.02079), quantity skew.

    Attributes:
        alpha: the smaller, the fewer devices have most.
        least: examples of every device.
    """

    alpha: float
    least: int = 8

    def __post_init__(self) -> None:
        _check("sizes", self.alpha, self.least)

    def shares(self, devices: int, rng: np.random.Generator) -> Shares:
        """The devices' shares."""
        return np.asarray(rng.dirichlet(np.full(devices, self.alpha)))


@dataclass(frozen=True)
class Lognormal:
    """Shares like ``exp(N(0, sigma^2))``, as FedProx's and FPFC's sizes are made.

    Attributes:
        sigma: 0 is equal shares.
        least: examples of every device.
    """

    sigma: float
    least: int = 8

    def __post_init__(self) -> None:
        _check("lognormal", self.sigma, self.least, zero=True)

    def shares(self, devices: int, rng: np.random.Generator) -> Shares:
        """The devices' shares."""
        weights = rng.lognormal(0.0, self.sigma, devices)
        return np.asarray(weights / weights.sum())


Law: TypeAlias = Power | Sizes | Lognormal


def sizes(total: int, shares: Shares, least: int) -> Counts:
    """Whole numbers like ``shares`` that sum to ``total``: each device has ``least``, and its share of the rest.

    Raises:
        ConfigError: there is not enough.
    """
    devices = len(shares)
    if devices * least > total:
        raise ConfigError(
            f"{total} examples are not {least} for each of {devices} devices",
            where="partition",
            remedy=f"Ask for at most {total // max(least, 1)} devices, or for a smaller least=",
        )
    return least + apportion(shares, total - devices * least)


def resized(hands: Counts, wanted: Counts, least: int) -> Counts:
    """Other sizes for devices that keep their classes.

    Each device gets the classes of its hand, in the proportions of its hand as long as they last: first ``least`` of
    everybody's own, then what is wanted, the device that wants least coming first.  So it is the largest devices that
    fall short where a class runs out, and what is left over then is nobody's.

    Args:
        hands: (devices, classes), as the labels were dealt.
        wanted: (devices,), the sizes.
        least: examples of every device, as far as its hand has them.

    Returns:
        (devices, classes); no class has more than in ``hands``.
    """
    held = np.stack([apportion(hand / hand.sum(), min(least, int(hand.sum()))) for hand in hands])
    left = hands.sum(axis=0) - held.sum(axis=0)
    for device in np.argsort(wanted, kind="stable"):
        need = int(wanted[device] - held[device].sum())
        while need > 0 and (there := hands[device] * (left > 0)).any():
            taken = np.minimum(apportion(there / there.sum(), need), left)
            held[device] += taken
            left -= taken
            need -= int(taken.sum())
    kept: Counts = held
    return kept


def mixed(wishes: npt.NDArray[np.float64], wanted: Counts, totals: Counts) -> Counts:
    """Sizes that are exact, and mixes of classes as far as the classes last.

    The devices are served in their order; where a class has run out, the others take its place in their proportions,
    and for a device that wishes none of them whatever there is.

    Args:
        wishes: (devices, classes), each row's sum is 1.
        wanted: (devices,), the sizes; their sum is that of ``totals``.
        totals: (classes,), how many examples there are.

    Returns:
        (devices, classes), with row sums ``wanted`` and column sums ``totals``.
    """
    left, held = totals.copy(), np.zeros(wishes.shape, np.int64)
    for device, need in enumerate(wanted.tolist()):
        while need > 0:
            there = wishes[device] * (left > 0)
            there = there if there.sum() > 0 else left.astype(np.float64)
            taken = np.minimum(apportion(there / there.sum(), need), left)
            held[device] += taken
            left -= taken
            need -= int(taken.sum())  # noqa: PLW2901  what is still needed
    return held


def _check(name: str, value: float, least: int, *, zero: bool = False) -> None:
    if not (0 < value < np.inf or (zero and value == 0)) or least < 1:
        raise ConfigError(
            f"{value} with at least {least} examples a device",
            where=f"partition {name}",
            remedy=f"Give a finite number {'of at least' if zero else 'above'} 0, and a least of at least 1",
        )
