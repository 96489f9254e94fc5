"""What a run says of differential privacy."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

TAIL = 0.01
"""The part of delta for the chance that a Poisson sample is outside ``minimum`` to ``goal`` devices."""


class Trust(StrEnum):
    """Who adds the noise, and so whom a device must trust."""

    CENTRAL = "central"  # the coordinator, to the sum: it sees clipped contributions
    LOCAL = "local"  # the device, to its contribution: the coordinator sees nothing exact


class Sampling(StrEnum):
    """How the devices of a round are drawn."""

    POISSON = "poisson"  # each that is here with probability ``fraction``, by itself
    FIXED = "fixed"  # as many as the run's goal, without replacement


class Accountant(StrEnum):
    """By which composition the budget is counted."""

    RDP = "rdp"  # Renyi divergences: fast
    PLD = "pld"  # distributions of the privacy loss: tighter, slower, and not for fixed samples


class Privacy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How much a run may tell of any one device.

    Attributes:
        clip: the greatest L2 norm of a device's contribution, all UP slots together; where it adapts, the first one.
        noise: standard deviation of the noise on the sum (of local privacy, on each contribution) over ``clip``.
        delta: the probability that epsilon may be broken; below one over the number of devices.
        epsilon: the budget: the run ends before the round that would exceed it.
        trust: see :class:`Trust`.
        sampling: see :class:`Sampling`.
        fraction: of Poisson sampling, the probability with which each device is drawn.
        population: of Poisson sampling, the devices that the fleet has, which is public: the sum is divided by
            ``fraction * population``, whoever came.
        quantile: of the norms, which the clip follows (Andrew et al. 2021); 0 for a clip that stays.
        clip_rate: by which the clip moves in a round, on a logarithmic scale.
        bits_noise: of an adaptive clip, the standard deviation of the noise on the number of contributions below it;
            0 for a twentieth of the expected cohort.
        accountant: see :class:`Accountant`.
        metrics: whether devices tell losses, accuracies and times, which no noise covers.
    """

    clip: Annotated[float, Meta(gt=0, le=1e30)] = 1.0
    noise: Annotated[float, Meta(ge=0, le=1e6)] = 1.0
    delta: Annotated[float, Meta(gt=0, lt=1)] = 1e-5
    epsilon: Annotated[float, Meta(gt=0, le=1e6)] = 8.0
    trust: Trust = Trust.CENTRAL
    sampling: Sampling = Sampling.POISSON
    fraction: Annotated[float, Meta(gt=0, le=1)] = 1.0
    population: Annotated[int, Meta(ge=0, le=1 << 31)] = 0
    quantile: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    clip_rate: Annotated[float, Meta(gt=0, le=2)] = 0.2
    bits_noise: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    accountant: Accountant = Accountant.RDP
    metrics: bool = False

    @property
    def counted_delta(self) -> float:
        """The delta that the accountant may use: the rest is for samples that are too small or too large."""
        sampled = self.sampling is Sampling.POISSON and self.fraction < 1
        return self.delta * (1 - TAIL) if sampled and self.trust is Trust.CENTRAL else self.delta

    def tail(self, rounds: int) -> float:
        """The chance of a sample that is too small or too large, of which delta covers the harm, in each round.

        Where a mechanism differs from an (epsilon, delta)-private one with probability ``p``, delta grows by
        ``(1 + exp(epsilon)) p``.

        Args:
            rounds: that train.
        """
        return TAIL * self.delta / ((1 + math.exp(min(self.epsilon, 700.0))) * rounds)
