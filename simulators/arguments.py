"""Command-line values as records."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from coordinator.config import RunConfig
from edgepfl import algorithms
from edgepfl.algorithms import Setting
from edgepfl.errors import ConfigError

LEARNING_RATE = 0.1


def settings_for(name: str, given: Mapping[str, Setting]) -> dict[str, Setting]:
    """The algorithm's hyperparameters: the demo's step sizes, unless told otherwise.

    Raises:
        ConfigError: there is no such algorithm or hyperparameter.
    """
    has = algorithms.hyperparameters(algorithms.load(name))
    settings: dict[str, Setting] = {key: LEARNING_RATE for key in ("lr", "tune_lr", "alpha_lr") if key in has}
    settings |= given
    algorithms.build(name, settings)
    return settings


def convert_config(**fields: str | float) -> RunConfig:
    """A run's settings, validated.

    Raises:
        ConfigError: a value is impossible.
    """
    try:
        return msgspec.convert(fields, RunConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(str(error), where="command line", remedy="See --help") from error
