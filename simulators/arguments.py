"""Command-line values as records."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from coordinator.config import RunConfig
from edgepfl import algorithms
from edgepfl.algorithms import Setting
from edgepfl.validation import convert, on_command_line
from simulators.datasets.arguments import add_data

LEARNING_RATE = 0.1


def add_fleet(parser: argparse.ArgumentParser) -> None:
    """The options of a fleet and of what it is to do."""
    add_data(parser)
    parser.add_argument("--devices", type=int, default=20, help="agents, at least 2 (default: 20)")
    parser.add_argument("--rounds", type=int, default=60, help="training rounds (default: 60)")
    parser.add_argument("--steps", type=int, default=10, help="minibatch steps a round and device (default: 10)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a hyperparameter (lam=0.1)")
    parser.add_argument("--broker", default="", metavar="URL", help="a broker to use; else a private one is started")


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
    place = on_command_line("command line", {"goal": "--devices", "minimum": "--devices"})
    return convert(fields, RunConfig, place, remedy="See --help")
