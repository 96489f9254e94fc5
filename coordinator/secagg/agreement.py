"""Whether a run can hide its uploads from its coordinator, and how."""

from __future__ import annotations

from collections.abc import Collection

from coordinator.config import RunConfig
from edgepfl.algorithms import Algorithm
from edgepfl.errors import ConfigError
from edgepfl.plan import Plan, Reduce, Role, Weighting
from edgepfl.secagg.fixed import FixedPoint
from edgepfl.secagg.terms import SLOTS_LIMIT, Terms
from edgepfl.secagg.vector import Layout

LEAST = 3
"""Devices in a sum, at least: of two, each would know the other's upload."""


def terms_of(algorithm: Algorithm, plan: Plan, config: RunConfig) -> Terms | None:
    """What a task says of it; None for a run without secure aggregation.

    Raises:
        ConfigError: sums over so many devices and examples do not fit.
    """
    if not config.secagg:
        return None
    fixed = FixedPoint.of(config.selected, config.max_examples, config.secagg_clip)
    means = {name for name, slot in plan.by_role(Role.UP).items() if slot.reduce is Reduce.MEAN}
    weighted = () if algorithm.weighting is Weighting.UNIFORM else tuple(sorted(means))
    return Terms(fixed.bits, fixed.fraction, fixed.clip, fixed.most, weighted)


def layout_of(algorithm: Algorithm, plan: Plan, config: RunConfig) -> Layout | None:
    """What a masked upload looks like; None for a run without secure aggregation."""
    terms = terms_of(algorithm, plan, config)
    return None if terms is None else Layout.of(terms, plan)


def check(algorithm: Algorithm, plan: Plan, config: RunConfig, hubs: Collection[str]) -> None:
    """Refuse what needs single uploads, or cannot be had together with masks.

    Args:
        algorithm: the run's.
        plan: of its bundle.
        config: its settings.
        hubs: the coordinator's.

    Raises:
        ConfigError: with the reason.
    """
    if not config.secagg:
        return
    if why := _algorithms(algorithm, plan) or _settings(config, hubs):
        raise ConfigError(why, where="secagg", remedy="Leave one of the two out, or choose another algorithm")
    if config.minimum < LEAST:
        raise ConfigError(
            f"minimum is {config.minimum}: of a sum of two uploads each of the two devices knows the other's",
            where="secagg",
            remedy=f"Set minimum to {LEAST} or more",
        )
    terms_of(algorithm, plan, config)


def check_aggregated(config: RunConfig) -> None:
    """Refuse secure aggregation where aggregators do the mathematics.

    Raises:
        ConfigError: the run wants it.
    """
    if config.secagg:
        raise ConfigError(
            "aggregators fold single uploads as real numbers",
            where="secagg",
            remedy="Leave [aggregator] out of the coordinator's settings",
        )


def _algorithms(algorithm: Algorithm, plan: Plan) -> str:
    """Why a sum of uploads is not enough for an algorithm; empty where it is."""
    sent = plan.by_role(Role.UP)
    if stacked := plan.stacked:
        return f"{plan.algorithm} needs each device's own {' and '.join(stacked)}, and only sums are seen"
    if own := plan.addressed:
        return f"{plan.algorithm} sends each device its own {' and '.join(own)}, made from its own uploads"
    if algorithm.rebuilt:
        made = " and ".join(sorted(algorithm.rebuilt))
        return f"{plan.algorithm} computes {made} from each single upload, and only sums are seen"
    whole = [n for n, slot in sent.items() if any(spec.dtype != "float32" for spec in slot.tensors.values())]
    if whole or len(sent) > SLOTS_LIMIT:
        return f"{plan.algorithm} sends {'whole numbers' if whole else f'{len(sent)} slots'}, which cannot be masked"
    return ""


def _settings(config: RunConfig, hubs: Collection[str]) -> str:
    """Which setting of a run looks into single uploads, or changes their form; in words, empty for none."""
    if config.robust:
        return f"the robust rule {config.robust} looks at each device's own upload, and only sums are seen"
    if config.codec:
        return f"{config.codec} makes uploads of numbers that cannot be summed under masks"
    if config.buffer:
        return "a buffered run takes reports of different rounds together, and masks cancel within one"
    if config.exact:
        return "exact sums are of real numbers: the sums under masks are exact by themselves"
    if hubs:
        return f"{' and '.join(sorted(hubs))} would see the uploads of the devices behind it"
    return ""
