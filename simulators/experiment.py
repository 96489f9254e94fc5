"""What demo and comparison have in common: data, model, bundle, and one run on a stage."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from coordinator.config import RunConfig
from coordinator.journal import Result
from coordinator.status import RunStatus
from edgepfl import algorithms
from edgepfl.algorithms import Algorithm, Setting
from edgepfl.bundle import Bundle, pack
from edgepfl.errors import ConfigError
from exporters import zoo
from exporters.build import build
from exporters.fitting import fitted
from exporters.model import Model
from simulators.datasets import FleetData
from simulators.fleet import AgentFleet
from simulators.processes import Command
from simulators.stage import Stage, Trained

BATCH = 16
HEAD = ("head.*",)
"""The personal part of our models, where an algorithm has one."""


@dataclass(frozen=True)
class Kill:
    """Kill a process with SIGKILL, and start it again, as soon as a round is committed.

    Attributes:
        who: "coordinator" or "agent".
        round: after which round.
    """

    who: str
    round: int

    @classmethod
    def parse(cls, text: str) -> Kill:
        """``WHO@ROUND``.

        Raises:
            ConfigError: it is something else.
        """
        who, _, round_ = text.partition("@")
        if who not in {"coordinator", "agent"} or not round_.isdigit():
            raise ConfigError(f"{text!r} names no process and round", where="--kill", remedy="Write coordinator@5")
        return cls(who, int(round_))


def model_for(data: FleetData, seed: int, *, algorithm: Algorithm | None = None) -> Model:
    """The model that suits a data set, with initial parameters that follow from the seed, as an algorithm needs it."""
    if algorithm is not None:
        return fitted(algorithm, model_for(data, seed), own=HEAD, seed=seed)
    classes = len(data.classes)
    if data.model == "cnn1d":
        channels, length = data.input_shape
        return zoo.cnn1d(channels=channels, length=length, classes=classes, batch=BATCH, seed=seed)
    return zoo.mlp(inputs=math.prod(data.input_shape), classes=classes, batch=BATCH, seed=seed)


def bundle_for(name: str, settings: Mapping[str, Setting], data: FleetData, seed: int) -> Bundle:
    """The bundle of an algorithm on the data set's model; a personal head for algorithms that have one."""
    algorithm = algorithms.build(name, settings)
    return build(algorithm, model_for(data, seed, algorithm=algorithm))


def with_seed(bundle: Bundle, data: FleetData, seed: int) -> Bundle:
    """The same graphs, with initial parameters that follow from another seed."""
    algorithm = algorithms.build(bundle.plan.algorithm, bundle.plan.fixed)
    parameters = model_for(data, seed, algorithm=algorithm).parameters.map(
        lambda tensor: tensor.detach().numpy().copy()
    )
    return msgspec.structs.replace(bundle, model=parameters)


def save(bundle: Bundle, folder: Path) -> Path:
    """A bundle as a file in a folder."""
    path = folder / f"{bundle.plan.algorithm}.bundle"
    path.write_bytes(pack(bundle))
    return path


async def run_on(
    stage: Stage,
    fleet: AgentFleet,
    bundle: Path,
    config: RunConfig,
    see: Callable[[RunStatus], None],
    kills: tuple[Kill, ...] = (),
) -> Trained:
    """One run on a stage, with its planned kills."""
    processes: Mapping[str, Command] = {"coordinator": stage.coordinator, "agent": stage.agent}
    waiting = sorted(kills, key=lambda kill: kill.round)

    def look(status: RunStatus) -> None:
        while waiting and status.round >= waiting[0].round:
            victim = waiting.pop(0).who
            processes[victim].kill()
            processes[victim].start()
            print(f"killed the {victim} after round {status.round}, and started it again", file=sys.stderr, flush=True)
        see(status)

    return await stage.train(fleet, bundle, config, look)


def accuracy_of(model: str, results: tuple[Result, ...], round_: int) -> dict[str, float]:
    """Each device's accuracy with one of its models ("personal", "global"), as evaluated in a round."""
    name = f"accuracy.{model}"
    return {r.device: r.metrics[name] for r in results if r.round == round_ and name in r.metrics}
