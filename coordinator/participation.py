"""Algorithms that need every device in every round."""

from __future__ import annotations

import logging
from collections.abc import Collection

from coordinator.config import RunConfig
from edgepfl.algorithms import Algorithm, Participation
from edgepfl.errors import ConfigError

log = logging.getLogger(__name__)


def check(algorithm: Algorithm, config: RunConfig) -> None:
    """Refuse a run that could go on without a device where the algorithm needs them all.

    Raises:
        ConfigError: it is one.
    """
    if algorithm.participation is Participation.ALL and config.minimum < config.goal:
        raise ConfigError(
            f"{_name(algorithm)} needs every device in every round, and {config.minimum} of {config.goal} do",
            where="minimum",
            remedy=f"Set minimum to {config.goal}, and goal to the number of devices",
        )


def check_over(algorithm: Algorithm, config: RunConfig) -> None:
    """Refuse over-selection for an algorithm that needs every device: some would be released in every round.

    Raises:
        ConfigError: it is so.
    """
    if algorithm.participation is Participation.ALL and config.over > 1:
        raise ConfigError(
            f"{_name(algorithm)} needs every device in every round, and over-selection leaves some out",
            where="over",
            remedy="Leave it out",
        )


def warn(algorithm: Algorithm, run: str, number: int, left_out: Collection[str]) -> None:
    """Say who is missing in a round in which the algorithm needs them all."""
    if left_out and algorithm.participation is Participation.ALL:
        log.warning(
            "%s: %s needs every device in every round, and round %d is without %d: %s",
            run,
            _name(algorithm),
            number,
            len(left_out),
            ", ".join(sorted(left_out)[:3]),
        )


def _name(algorithm: Algorithm) -> str:
    return type(algorithm).__module__.rpartition(".")[2]
