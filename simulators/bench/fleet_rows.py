"""The rows of ``edgepfl bench fleet``: what is exported, and which processes measure what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from edgepfl import algorithms
from edgepfl.bundle import pack
from exporters.build import build
from exporters.fitting import fitted
from simulators.bench.fleet import FleetJob, FleetRow, row
from simulators.bench.fleet_work import measured
from simulators.bench.models import MODELS


@dataclass(frozen=True)
class Matrix:
    """What to measure.

    Attributes:
        agents: how many; a row for each number.
        algorithms: names.
        models: names in :data:`simulators.bench.models.MODELS`.
        cohort: devices of a round; 0: all.
        rounds: that count.
        steps: minibatch steps of a round.
        batch: examples of a minibatch.
        threads: tasks that the fleet works on at once.
        broker: URL of one to use; empty starts private ones.
    """

    agents: Sequence[int]
    algorithms: Sequence[str] = ("fedavg",)
    models: Sequence[str] = ("mlp-60-128-10",)
    cohort: int = 0
    rounds: int = 10
    steps: int = 5
    batch: int = 32
    threads: int = 2
    broker: str = ""


def rows(matrix: Matrix, folder: Path, tell: Callable[[str], None]) -> list[FleetRow]:
    """One row for each model, algorithm and number of agents.

    Args:
        matrix: what to measure.
        folder: for bundles, state and logs.
        tell: told of each stage.

    Raises:
        EdgepflError: a bundle cannot be exported, or a process failed.
    """
    found = []
    for model in matrix.models:
        for algorithm in matrix.algorithms:
            tell(f"{algorithm}, {model}: exporting")
            bundle = folder / f"{algorithm}-{model}.bundle"
            built = algorithms.build(algorithm, {})
            bundle.write_bytes(pack(build(built, fitted(built, MODELS[model](matrix.batch), own=("head.*",)))))
            found += _of_bundle(matrix, FleetJob(0, algorithm, model, str(bundle), str(folder)), folder, tell)
    return found


def _of_bundle(matrix: Matrix, job: FleetJob, folder: Path, tell: Callable[[str], None]) -> list[FleetRow]:
    """A row for each number of agents; what one agent alone takes is measured once."""

    def sized(agents: int) -> FleetJob:
        return msgspec.structs.replace(
            job,
            agents=agents,
            folder=str(folder / f"{job.algorithm}-{job.model}-{agents}"),
            broker=matrix.broker,
            rounds=matrix.rounds,
            steps=matrix.steps,
            cohort=min(matrix.cohort, agents),
            threads=matrix.threads,
        )

    alone = measured(sized(1))
    found = []
    for agents in matrix.agents:
        tell(f"{job.algorithm}, {job.model}: {agents} agents")
        this = sized(agents)
        found.append(row(this, measured(this) if agents > 1 else alone, alone))
    return found
