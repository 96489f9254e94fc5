"""Epsilon, by ``dp-accounting``, and what follows from it: how much noise, how many rounds, how large a cohort.

``dp-accounting`` is an extra of the coordinator (``pip install 'edgepfl[privacy]'``) and is imported when it is asked
for: it takes a second and brings SciPy.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import math
from collections.abc import Iterator, Mapping
from typing import Any

from coordinator.privacy.config import Accountant
from coordinator.privacy.events import Event
from edgepfl.errors import ConfigError

_FINEST = 1e-4  # relative, of a noise that is looked for
_MOST_NOISE = 1e6


def epsilon(events: Mapping[Event, int], delta: float, accountant: Accountant = Accountant.RDP) -> float:
    """The least epsilon for which the accountant proves all of it to be (epsilon, delta)-differentially private.

    Args:
        events: how often each happened; all have neighbours of the same kind.
        delta: above 0.
        accountant: by which.

    Returns:
        Infinite where one of them has no noise, 0 where nothing happened.

    Raises:
        ConfigError: the library is not there, or the accountant does not know an event.
    """
    return _epsilon(frozenset((event, count) for event, count in events.items() if count), delta, accountant)


def known(event: Event, times: int, delta: float) -> float:
    """Epsilon for whoever knows that a device was in an event so many times: exact, of Gaussian mechanisms.

    Raises:
        ConfigError: the library is not there.
    """
    if not times:
        return 0.0
    if event.multiplier == 0:
        return math.inf
    return float(_library().get_epsilon_gaussian(event.multiplier / math.sqrt(times), delta))


@functools.lru_cache(maxsize=256)
def _epsilon(events: frozenset[tuple[Event, int]], delta: float, accountant: Accountant) -> float:
    happened = dict(events)
    if not happened:
        return 0.0
    if any(event.noise == 0 for event in happened):
        return math.inf
    counter = _opened(accountant, replaced=any(event.replaced for event in happened))
    for event, count in happened.items():
        try:
            with _quiet():
                counter.compose(_theirs(event), count)
        except Exception as error:
            if type(error).__name__ != "UnsupportedEventError":
                raise
            raise ConfigError(
                f"the {accountant} accountant does not know samples of a fixed size",
                where="accountant",
                remedy=f"Use {Accountant.RDP}, or Poisson sampling",
            ) from error
    return max(float(counter.get_epsilon(delta)), 0.0)


def noise_for(like: Event, rounds: int, budget: float, delta: float, accountant: Accountant = Accountant.RDP) -> float:
    """The least noise with which so many rounds stay within a budget, to 1 in 10,000.

    Args:
        like: what each round releases, of whatever noise.
        rounds: how many.
        budget: the greatest epsilon.
        delta: its delta.
        accountant: by which.

    Raises:
        ConfigError: no noise does, or as :func:`epsilon`.
    """

    def spent(noise: float) -> float:
        event = Event(noise, like.fraction, like.sample, like.source, like.replaced)
        return epsilon({event: rounds}, delta, accountant)

    low, high = 0.0, 1.0
    while spent(high) > budget:
        low, high = high, 2 * high
        if high > _MOST_NOISE:
            raise ConfigError(f"no noise keeps {rounds} rounds within epsilon {budget:g}", where="epsilon")
    while high - low > _FINEST * high:
        middle = (low + high) / 2
        low, high = (middle, high) if spent(middle) > budget else (low, middle)
    return high


def rounds_for(event: Event, budget: float, delta: float, most: int, accountant: Accountant = Accountant.RDP) -> int:
    """How many rounds stay within a budget, ``most`` at most.

    Raises:
        ConfigError: as :func:`epsilon`.
    """
    low, high = 0, most + 1  # low fits, high is not asked for
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if epsilon({event: middle}, delta, accountant) <= budget else (low, middle)
    return low


def outside(devices: int, fraction: float, least: int, most: int) -> float:
    """The probability that a Poisson sample has fewer than ``least`` or more than ``most`` devices.

    Args:
        devices: of which each is drawn by itself.
        fraction: the probability of each.
        least: devices.
        most: devices.
    """
    if fraction >= 1:
        return 0.0 if least <= devices <= most else 1.0
    inside_below = (_probability(devices, fraction, count) for count in range(min(least, devices + 1)))
    above = (_probability(devices, fraction, count) for count in range(max(most + 1, 0), devices + 1))
    return math.fsum(inside_below) + math.fsum(above)


def goal_for(devices: int, fraction: float, chance: float) -> int:
    """The least size that a Poisson sample exceeds with no more than this chance."""
    if fraction >= 1:
        return devices
    tail, size = 0.0, devices
    while size > 0 and tail + _probability(devices, fraction, size) <= chance:
        tail += _probability(devices, fraction, size)
        size -= 1
    return max(size, 1)


def _probability(devices: int, fraction: float, count: int) -> float:
    """That of a binomial number."""
    choices = math.lgamma(devices + 1) - math.lgamma(count + 1) - math.lgamma(devices - count + 1)
    return math.exp(choices + count * math.log(fraction) + (devices - count) * math.log1p(-fraction))


def _opened(accountant: Accountant, *, replaced: bool) -> Any:  # noqa: ANN401  the library has no types
    library = _library()
    relation = library.NeighboringRelation
    neighbours = relation.REPLACE_ONE if replaced else relation.ADD_OR_REMOVE_ONE
    if accountant is Accountant.PLD:
        return importlib.import_module("dp_accounting.pld").PLDAccountant(neighbours)
    return importlib.import_module("dp_accounting.rdp").RdpAccountant(neighboring_relation=neighbours)


def _theirs(event: Event) -> Any:  # noqa: ANN401  likewise
    """The event as the library writes it."""
    library = _library()
    gaussian = library.GaussianDpEvent(event.multiplier)
    if event.sample and event.sample < event.source:
        return library.SampledWithoutReplacementDpEvent(event.source, event.sample, gaussian)
    if event.fraction < 1:
        return library.PoissonSampledDpEvent(event.fraction, gaussian)
    return gaussian


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's warning for each order of Renyi that it leaves out, which does no harm."""
    log = logging.getLogger("absl")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _library() -> Any:  # noqa: ANN401  likewise
    try:
        return importlib.import_module("dp_accounting")
    except ImportError as error:
        raise ConfigError(
            "epsilon is computed by dp-accounting, which is not installed",
            where="privacy",
            remedy="pip install 'edgepfl[privacy]'",
        ) from error
