"""The runs of a comparison as a file, which one that was cut off goes on from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgepfl.errors import ConfigError
from simulators import kept
from simulators.report import Summary


@dataclass(frozen=True)
class Ran:
    """What one run came to.

    Attributes:
        algorithm: its name, or that of a baseline.
        seed: of the run.
        methods: each of its models' accuracies, by the row of the table that they belong to.
        failure: why the run failed; then there are no methods.
    """

    algorithm: str
    seed: int
    methods: dict[str, Summary]
    failure: str = ""


@dataclass(frozen=True)
class Setup:
    """What all runs of a file have in common: they are compared, so nothing else may differ."""

    data: str
    devices: int
    rounds: int
    steps: int
    settings: tuple[str, ...]


@dataclass(frozen=True)
class Runs:
    """All runs so far."""

    setup: Setup
    runs: tuple[Ran, ...] = ()

    def of(self, algorithm: str, seed: int) -> Ran | None:
        """A run that was made and did not fail."""
        return next((r for r in self.runs if (r.algorithm, r.seed) == (algorithm, seed) and not r.failure), None)

    def having(self, run: Ran) -> Runs:
        """With one more, in place of an earlier one of the same algorithm and seed."""
        others = tuple(each for each in self.runs if (each.algorithm, each.seed) != (run.algorithm, run.seed))
        return Runs(self.setup, (*others, run))


def read(file: Path | None, setup: Setup) -> Runs:
    """The runs in a file; none where there is no file.

    Raises:
        ConfigError: the file holds something else, or runs of another setup.
    """
    found = None if file is None else kept.read(file, Runs, "holds no runs")
    if found is None:
        return Runs(setup)
    if found.setup != setup:
        raise ConfigError(
            f"its runs are of {found.setup}, and these of {setup}", where=str(file), remedy="Name another file"
        )
    return found


def write(runs: Runs, file: Path | None) -> None:
    """Write the file anew, as a whole or not at all."""
    if file is not None:
        kept.write(runs, file)
