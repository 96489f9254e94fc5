"""Whether a run can be private, and what follows for its tasks and sums."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection

from coordinator import optimisers, updater
from coordinator.config import RunConfig
from coordinator.privacy import accountant
from coordinator.privacy.config import Accountant, Privacy, Sampling, Trust
from coordinator.privacy.events import Event, combined
from coordinator.privacy.release import Adaptive, Release
from edgepfl.algorithms import Algorithm
from edgepfl.coding import codec_of
from edgepfl.errors import ConfigError
from edgepfl.plan import Plan, Role, Weighting
from edgepfl.privacy.terms import Terms
from edgepfl.secagg.vector import Layout


def tailored(algorithm: Algorithm, config: RunConfig) -> Algorithm:
    """The algorithm of a run: under privacy every device weighs the same, for its examples are its own affair."""
    return algorithm if config.privacy is None else dataclasses.replace(algorithm, weighting=Weighting.UNIFORM)


def terms_of(privacy: Privacy | None, clip: float) -> Terms | None:
    """What a task says of it; None for a run without.

    Args:
        privacy: of the run.
        clip: of the round.
    """
    if privacy is None:
        return None
    return Terms(clip, privacy.noise * clip if privacy.trust is Trust.LOCAL else 0.0, privacy.metrics)


def expected(config: RunConfig, privacy: Privacy) -> float:
    """By what a sum is divided: the devices of a round on average, if all that there are were here."""
    return config.goal if privacy.sampling is Sampling.FIXED else privacy.fraction * privacy.population


def release_of(config: RunConfig, clip: float, layout: Layout | None = None) -> Release | None:
    """How the sum of a round is made private; None for a run without.

    Args:
        config: of the run.
        clip: of the round.
        layout: of masked uploads; None where none is masked.
    """
    privacy = config.privacy
    if privacy is None:
        return None
    central = privacy.trust is Trust.CENTRAL
    divisor = expected(config, privacy)
    noise = privacy.noise if central else 0.0
    adaptive = None
    if privacy.quantile and central:
        bits = _bits(config, privacy)
        adaptive = Adaptive(privacy.quantile, privacy.clip_rate, bits if noise else 0.0)
        noise = combined(noise, bits)
    rounding = 0.0 if layout is None else layout.fixed.error
    return Release(clip, noise, divisor, central and layout is None, rounding, adaptive)


def event_of(privacy: Privacy, *, sample: int, source: int) -> Event:
    """What a round releases, for the accountant.

    Args:
        privacy: of the run.
        sample: how many devices a fixed sample has.
        source: of how many it is drawn.
    """
    if privacy.trust is Trust.LOCAL:
        return Event(privacy.noise, replaced=True)
    if privacy.sampling is Sampling.FIXED:
        return Event(privacy.noise, sample=sample, source=source, replaced=True)
    return Event(privacy.noise, fraction=privacy.fraction)


def likely(config: RunConfig, privacy: Privacy, devices: int) -> bool:
    """Whether a Poisson sample of so many devices is so surely of ``minimum`` to ``goal`` that delta covers the rest.

    An attempt with other numbers releases nothing, and who sees that learns something.
    """
    if privacy.sampling is Sampling.FIXED or privacy.trust is Trust.LOCAL:
        return True
    chance = accountant.outside(devices, privacy.fraction, config.minimum, config.goal)
    return chance <= privacy.tail(config.rounds) or privacy.fraction >= 1


def check(algorithm: Algorithm, plan: Plan, config: RunConfig, hubs: Collection[str]) -> None:
    """Refuse what would tell more than the accountant counts, or what noise would spoil.

    Args:
        algorithm: the run's.
        plan: of its bundle.
        config: its settings.
        hubs: the coordinator's.

    Raises:
        ConfigError: with the reason.
    """
    privacy = config.privacy
    if privacy is None:
        return
    if why := _algorithms(algorithm, plan) or _settings(config, privacy, hubs):
        raise ConfigError(why, where="privacy", remedy="Leave one of the two out, or choose another algorithm")
    _check_numbers(config, privacy)
    _check_budget(config, privacy)


def check_aggregated(config: RunConfig) -> None:
    """Refuse privacy where aggregators do the mathematics.

    Raises:
        ConfigError: the run wants it.
    """
    if config.privacy is not None:
        raise ConfigError(
            "aggregators fold uploads without clipping or noise",
            where="privacy",
            remedy="Leave [aggregator] out of the coordinator's settings",
        )


def _algorithms(algorithm: Algorithm, plan: Plan) -> str:
    """Why noise on sums of changes is not enough for an algorithm; empty where it is."""
    sent = plan.by_role(Role.UP)
    if single := plan.stacked:
        return f"{plan.algorithm} needs each device's own {' and '.join(single)}, and only a noisy sum is private"
    if own := plan.addressed:
        return f"{plan.algorithm} sends each device its own {' and '.join(own)}, made from single uploads"
    if mirrored := sorted({each.keep for each in algorithm.amended}):
        return (
            f"{plan.algorithm} is right only while its server knows the sum of the devices' own "
            f"{' and '.join(mirrored)}, and noise would part the two for ever"
        )
    if other := sorted(name for name, slot in algorithm.declared().items() if slot.role is Role.UP and not slot.change):
        return f"{plan.algorithm} sends {' and '.join(other)}, which is no change, so that clipping would spoil it"
    found, why = optimisers.summands(algorithm, plan, functools.partial(updater.first_state, algorithm))
    if why or sent.keys() | algorithm.rebuilt.keys() != set(found):
        return f"the server of {plan.algorithm} does more than add the mean change ({why or 'it reckons with others'})"
    if noisy := sorted({name for slot in sent.values() for name in slot.tensors} & set(plan.statistics)):
        return (
            f"{noisy[0]} is a running statistic, and with noise a variance can be negative: export with --personal "
            "and the names of the normalisation layers, which then stay on the device"
        )
    return ""


def _settings(config: RunConfig, privacy: Privacy, hubs: Collection[str]) -> str:
    """Which setting of a run breaks the bound on one device's part; in words, empty for none."""
    if config.robust:
        return f"one device can change what {config.robust} gives by more than its contribution's norm"
    if config.codec and codec_of(config.codec).biased:
        return f"what {config.codec} leaves out of one contribution it adds to the next one, beside its clip"
    if config.buffer:
        return "in a buffered run nobody is sampled: who reports depends on who is fast"
    if config.over > 1:
        return "with over-selection the reports that count depend on which come first, and are no sample"
    if config.exact or hubs:
        return "sums of hubs are not clipped device by device"
    if privacy.quantile and config.secagg:
        return "an adaptive clip must see each contribution's norm, and under secure aggregation nobody does"
    if privacy.quantile and privacy.trust is Trust.LOCAL:
        return "an adaptive clip is for central privacy: local noise hides the norms"
    if privacy.sampling is Sampling.FIXED and privacy.accountant is Accountant.PLD:
        return "the pld accountant does not know samples of a fixed size"
    return ""


def _check_numbers(config: RunConfig, privacy: Privacy) -> None:
    """Refuse numbers that contradict each other.

    Raises:
        ConfigError: with the reason.
    """
    bits = _bits(config, privacy)
    if privacy.quantile and privacy.noise and not math.isfinite(combined(privacy.noise, bits)):
        raise ConfigError(
            f"bits with noise {bits:g} tell more of who is below the clip than noise {privacy.noise:g} allows in all",
            where="privacy.bits_noise",
            remedy=f"Set bits_noise above {privacy.noise / 2:g}, or noise below {2 * bits:g}",
        )
    if privacy.sampling is Sampling.FIXED:
        return
    if not privacy.population:
        raise ConfigError(
            "a sum is divided by fraction times population, and population is not given",
            where="privacy.population",
            remedy="Give the number of devices that the fleet has, with --population",
        )
    if not likely(config, privacy, privacy.population):
        raise ConfigError(_unlikely(config, privacy), where="privacy.fraction", remedy=_remedy(config, privacy))


def _unlikely(config: RunConfig, privacy: Privacy) -> str:
    chance = accountant.outside(privacy.population, privacy.fraction, config.minimum, config.goal)
    return (
        f"of {privacy.population} devices a Poisson sample of {privacy.fraction:g} has fewer than {config.minimum} "
        f"(minimum) or more than {config.goal} (goal) with a probability of {chance:.2g}, and delta covers "
        f"{privacy.tail(config.rounds):.2g} in each round"
    )


def _remedy(config: RunConfig, privacy: Privacy) -> str:
    goal = accountant.goal_for(privacy.population, privacy.fraction, privacy.tail(config.rounds) / 2)
    few = (1 - privacy.fraction) ** privacy.population > privacy.tail(config.rounds) / 2
    return (
        f"Raise fraction: with {privacy.fraction:g} of {privacy.population} devices nobody may come"
        if few
        else f"Set goal to {goal} and minimum to 1"
    )


def _check_budget(config: RunConfig, privacy: Privacy) -> None:
    """Refuse a run that could not train one round.

    Raises:
        ConfigError: with the noise that its rounds need.
    """
    event = event_of(privacy, sample=config.goal, source=max(privacy.population, config.goal))
    delta = privacy.counted_delta
    if accountant.epsilon({event: 1}, delta, privacy.accountant) <= privacy.epsilon:
        return
    needed = accountant.noise_for(event, config.rounds, privacy.epsilon, delta, privacy.accountant)
    raise ConfigError(
        f"one round with noise {privacy.noise:g} spends more than epsilon {privacy.epsilon:g}",
        where="privacy.noise",
        remedy=f"Give noise {needed:.4g}, with which {config.rounds} rounds stay within it",
    )


def _bits(config: RunConfig, privacy: Privacy) -> float:
    """The noise on the number of contributions below the clip; a twentieth of the cohort, as Andrew et al. have it."""
    return privacy.bits_noise or expected(config, privacy) / 20
