"""The options of ``edgepfl run start`` and ``edgepfl simulate`` about differential privacy."""

from __future__ import annotations

import argparse
from typing import Any

from coordinator.privacy import accountant
from coordinator.privacy.config import Accountant, Privacy, Sampling, Trust
from edgepfl.errors import ConfigError
from edgepfl.validation import convert, on_command_line

_DEFAULTS = Privacy()
_NUMBERS = {
    "clip": "greatest L2 norm of what a device sends in a round; a longer one is shortened",
    "noise": "standard deviation of the noise over the clip; edgepfl privacy plan tells how much is needed",
    "epsilon": "budget: the run ends before the round that would exceed it",
    "delta": "probability with which epsilon may be broken; below 1 over the number of devices",
    "fraction": "Poisson sampling: each device is in a round with this probability",
    "population": "Poisson sampling: devices that the fleet has; sums are divided by FRACTION times this",
    "quantile": "let the clip follow this quantile of the norms, such as 0.5; 0 for a clip that stays",
}
_FIELDS = (*_NUMBERS, "accountant")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add them to a command."""
    group = parser.add_argument_group("differential privacy (docs/privacy.md)")
    group.add_argument(
        "--privacy",
        choices=[trust.value for trust in Trust],
        help="bound what models tell of any one device: central noise on sums, by the coordinator, or local noise on "
        "each contribution, by the devices",
    )
    for name, text in _NUMBERS.items():
        default = getattr(_DEFAULTS, name)
        group.add_argument(f"--{name}", type=type(default), help=f"{text} (default: {default:g})")
    group.add_argument(
        "--fixed-sample", action="store_true", help="samples of GOAL devices instead of Poisson sampling"
    )
    group.add_argument(
        "--accountant", choices=[each.value for each in Accountant], help="pld is tighter and slower (default: rdp)"
    )
    group.add_argument(
        "--send-metrics", action="store_true", help="devices tell losses and accuracies, which no noise covers"
    )


def privacy_of(words: argparse.Namespace, command: str) -> Privacy | None:
    """What the options say; None where no privacy is asked for.

    Raises:
        ConfigError: an option is out of range, or is given without ``--privacy``.
    """
    given: dict[str, Any] = {name: getattr(words, name) for name in _FIELDS if getattr(words, name) is not None}
    if words.privacy is None:
        switches = {"fixed-sample": words.fixed_sample, "send-metrics": words.send_metrics}
        other = [*given, *(name for name, on in switches.items() if on)]
        if other:
            raise ConfigError(
                "it is for differential privacy alone", where=f"--{other[0]}", remedy="Give --privacy central, too"
            )
        return None
    fields = {**given, "trust": words.privacy, "metrics": words.send_metrics}
    fields["sampling"] = (Sampling.FIXED if words.fixed_sample else Sampling.POISSON).value
    return convert(fields, Privacy, on_command_line(command), remedy=f"See {command} --help")


def goal_of(privacy: Privacy, rounds: int, most: int) -> int | None:
    """The most devices that a Poisson sample has, but with a chance that delta covers; None for a fixed sample.

    Args:
        privacy: of the run.
        rounds: that train.
        most: devices that a round can have.
    """
    if privacy.sampling is Sampling.FIXED or not privacy.population:
        return None
    return min(accountant.goal_for(privacy.population, privacy.fraction, privacy.tail(rounds) / 2), most)
