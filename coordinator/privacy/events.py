"""What was released, as the accountant sees it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """One noisy sum.  Of local privacy, one noisy contribution.

    Attributes:
        noise: standard deviation over the clip: what the sum and, where the clip adapts, the number of contributions
            below it come to together.
        fraction: with which each device was in it; of Poisson samples and of no sampling (1).
        sample: of fixed samples, how many devices were in it; 0 for the others.
        source: of how many they were drawn.
        replaced: whether neighbours differ by what one device's data are, rather than by whether it is there: then the
            sum can change by twice the clip.
    """

    noise: Annotated[float, Meta(ge=0)]
    fraction: Annotated[float, Meta(gt=0, le=1)] = 1.0
    sample: Annotated[int, Meta(ge=0)] = 0
    source: Annotated[int, Meta(ge=0)] = 0
    replaced: bool = False

    @property
    def multiplier(self) -> float:
        """Standard deviation over the L2 sensitivity."""
        return self.noise / 2 if self.replaced else self.noise

    @property
    def known(self) -> Event:
        """The same for whoever knows that a device was in it."""
        return Event(self.noise, replaced=self.replaced)


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of a run's ledger, written before what it is about is released.

    Attributes:
        round: whose sum, or whose contributions, are released.
        attempt: at the round: one that came to nothing may be in the ledger, too.
        event: for the accountant.
        devices: who was in it.
        clip: the bound on their contributions.
        epsilon: spent with this line, by the run's accountant.
        known: likewise for whoever knows who took part.
    """

    round: int
    attempt: int
    event: Event
    devices: tuple[str, ...]
    clip: float
    epsilon: float = math.inf
    known: float = math.inf


def counted(entries: Iterable[Entry]) -> Counter[Event]:
    """How often each event is in a ledger."""
    return Counter(entry.event for entry in entries)


def most(entries: Iterable[Entry]) -> int:
    """In how many lines of a ledger the device is that is in most of them; 0 where there is none."""
    found = Counter(device for entry in entries for device in entry.devices)
    return max(found.values(), default=0)


def combined(noise: float, bits: float) -> float:
    """The noise of the sum that leaves ``noise`` for it and the number of bits together.

    Andrew et al. 2021, "Differentially private learning with adaptive clipping", arXiv:1905.03871, theorem 1::

        z_sum = (z^-2 - (2 sigma_b)^-2)^(-1/2)

    Args:
        noise: ``z``: what the accountant is to count.
        bits: ``sigma_b``, the standard deviation of the noise on the number of bits, which count -1/2 or 1/2.

    Returns:
        Infinite where the bits alone tell more than ``noise`` allows.
    """
    if noise == 0:
        return 0.0
    left = noise**-2 - (2 * bits) ** -2 if bits > 0 else -math.inf
    return left**-0.5 if left > 0 else math.inf
