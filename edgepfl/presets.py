"""Published hyperparameters by name, such as ``pfedme/mnist-mclr``, each with its source.

>>> load("ditto/vehicle").hyper["lam"]
1.0
"""

from __future__ import annotations

import difflib
import functools
import math
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from types import MappingProxyType
from typing import Annotated

import msgspec
from msgspec import Meta

from edgepfl.errors import ConfigError

__all__ = ["Preset", "every", "load"]

Positive = Annotated[int, Meta(ge=1)]


class Preset(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One published setting of an algorithm; what its source does not tell is None.

    Attributes:
        algorithm: its name in ``edgepfl.algorithms``.
        data: the data set and how the devices share it.
        model: what was trained.
        hyper: the hyperparameters that were published; the others keep their defaults.
        batch: rows of a minibatch.
        rounds: of training.
        steps: minibatch steps of a round and device.
        epochs: in their place, passes over the device's examples.
        examples: what a device trains on, the mean over the devices.
        goal: devices of a round.
        devices: of the fleet.
        decay: factors by which hyperparameters change with each round.
        source: where these numbers were read.
        note: what we do otherwise than the source, and what to know.
    """

    algorithm: str
    data: str
    source: str
    model: str = ""
    hyper: dict[str, bool | int | float | str] = {}
    batch: Positive | None = None
    rounds: Positive | None = None
    steps: Positive | None = None
    epochs: Positive | None = None
    examples: Positive | None = None
    goal: Positive | None = None
    devices: Positive | None = None
    decay: dict[str, float] = {}
    note: str = ""

    def __post_init__(self) -> None:
        if self.steps is not None and self.epochs is not None:
            raise ValueError("a round has steps or epochs, not both")

    @property
    def settings(self) -> dict[str, str]:
        """The hyperparameters as the texts of a command line."""
        return {name: str(value) for name, value in self.hyper.items()}

    @property
    def local_steps(self) -> int | None:
        """Minibatch steps of a round; None where there are epochs and nobody says of how many steps."""
        if self.epochs is None or self.examples is None or self.batch is None:
            return self.steps
        return self.epochs * math.ceil(self.examples / self.batch)

    @property
    def run(self) -> dict[str, int]:
        """What the preset says of a run, by the names of its settings."""
        told = {"rounds": self.rounds, "steps": self.local_steps, "goal": self.goal}
        return {name: value for name, value in told.items() if value is not None}


@functools.cache
def every() -> Mapping[str, Preset]:
    """All presets, in the order of their names."""
    tables = tomllib.loads((files("edgepfl") / "presets.toml").read_text("utf-8"))
    return MappingProxyType({name: msgspec.convert(tables[name], Preset) for name in sorted(tables)})


def load(name: str) -> Preset:
    """The preset of this name.

    Raises:
        ConfigError: there is none.
    """
    presets = every()
    if name not in presets:
        of_same = [known for known in presets if known.partition("/")[0] == name.partition("/")[0]]
        close = of_same or difflib.get_close_matches(name, presets, cutoff=0.4)
        hint = f"Did you mean {' or '.join(close)}? " if close else ""
        raise ConfigError(
            f"there is no preset {name!r}",
            where="--preset",
            remedy=f"{hint}List them with edgepfl algorithms --presets",
        )
    return presets[name]
