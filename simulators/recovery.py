"""``edgepfl recover``: does FPFC find the clusters that the data were made of?"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import starmap
from math import comb
from statistics import fmean

import msgspec

from coordinator.clusters import Clusters, clusters_of, describe
from device_agent.data import Examples
from device_agent.runners.onnx import OnnxRunner
from edgepfl import algorithms
from edgepfl.algorithms import Setting
from edgepfl.errors import ConfigError
from edgepfl.seeds import generator
from exporters.build import build
from exporters.fitting import fitted
from exporters.zoo import mlp
from simulators import federation
from simulators.datasets import clustered
from simulators.federation import InProcess, Moved

LINE_EVERY = 20  # rounds between lines on the way
PUBLISHED: Mapping[str, Setting] = {"lr": 0.1, "lam": 0.6, "rho": 1.0, "a": 3.7, "xi": 1e-4, "nu": 3.0}
"""The authors' hyperparameters on this data set; their text has ``nu`` = 0.1, their code 3."""

NUS = (0.0, 0.1, 3.0)
"""Further ``nu`` to look at: 0 is our usual choice."""


@dataclass(frozen=True)
class Task:
    """What to recover, and how long to try.

    Attributes:
        devices: of the fleet.
        clusters: that they fall into.
        most: examples of a device; a step is on all that it trains on.
        rounds: of training.
        share: of the devices, drawn for each round.
        steps: of a round.
        seed: of data, model and cohorts.
        settings: hyperparameters that differ from the published ones.
    """

    devices: int = 100
    clusters: int = 4
    most: int = 2000
    rounds: int = 300
    share: float = 0.3
    steps: int = 10
    seed: int = 0
    settings: Mapping[str, Setting] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if min(self.devices, self.clusters, self.rounds, self.steps) < 1 or not 0 < self.share <= 1:
            raise ConfigError(
                f"{self.devices} devices in {self.clusters} clusters, {self.rounds} rounds of {self.steps} steps, "
                f"{self.share} of the devices in each",
                where="recover",
                remedy="Give numbers of at least 1 and a share above 0, at most 1",
            )


@dataclass(frozen=True)
class Outcome:
    """How it went.

    Attributes:
        rand: adjusted Rand index of the found clusters with the true ones: 1 is the same, 0 is chance.
        clusters: how many were found.
        truth: how many there are.
        accuracy: of the devices' own models on their own test examples, mean over the devices.
        found: the clusters themselves.
        others: with other ``nu``: that, how many clusters, and their adjusted Rand index.
    """

    rand: float
    clusters: int
    truth: int
    accuracy: float
    found: Clusters
    others: tuple[tuple[float, int, float], ...]


def adjusted_rand(found: Sequence[int], truth: Sequence[int]) -> float:
    """How alike two partitions of the same things are; both as labels.

    Hubert and Arabie 1985, "Comparing partitions", equation 5.

    Returns:
        1 for the same partition under other labels; 0 in the mean for random ones of these sizes.
    """
    together = _pairs(Counter(zip(found, truth, strict=True)))
    one, other, every = _pairs(Counter(found)), _pairs(Counter(truth)), comb(len(found), 2)
    chance = one * other / every if every else 0.0
    most = (one + other) / 2
    return 1.0 if most == chance else (together - chance) / (most - chance)


def recover(task: Task, see: Callable[[int, float, Clusters], None] = lambda *_: None) -> Outcome:
    """Train FPFC on devices of known clusters, through the exported graphs, in this process.

    Args:
        task: what to do.
        see: told of rounds on the way: number, adjusted Rand index, clusters.
    """
    clustering = clustered.Clustering(task.clusters, task.most)
    devices = clustered.fleet(task.devices, task.seed, clustering)
    truth = dict(zip(devices, clustered.truth(task.devices, clustering), strict=True))
    fleet = _federation(task, devices)
    cohort = max(round(task.share * task.devices), 1)
    for number in range(1, task.rounds + 1):
        drawn = generator(task.seed, "cohort", number).choice(sorted(devices), cohort, replace=False)
        fleet.round(sorted(drawn.tolist()))
        fleet.history[-1] = Moved({}, {})  # a state is all pairs of models: too big to remember every round's
        if number % LINE_EVERY == 0 or number == task.rounds:
            found = clusters_of(fleet.algorithm, fleet.server)
            see(number, _rand(found, truth), found)
    accuracy = fmean(fleet.evaluate(device).metrics["accuracy.personal"] for device in devices)
    looked = [clusters_of(fleet.algorithm, fleet.server, nu=nu) for nu in NUS]
    others = tuple((each.nu, len(each.groups), _rand(each, truth)) for each in looked)
    return Outcome(_rand(found, truth), len(found.groups), len(set(truth.values())), accuracy, found, others)


def main(arguments: list[str]) -> int:
    """Run the experiment."""
    words = vars(_parser().parse_args(arguments))
    as_json, settings = words.pop("json"), algorithms.parse_settings(words.pop("set"))
    outcome = recover(Task(**words, settings=settings), _tell)
    if as_json:
        print(json.dumps(asdict(outcome) | {"found": msgspec.to_builtins(outcome.found)}))
        return 0
    print(describe(outcome.found))
    print(f"clusters: {outcome.clusters} found, {outcome.truth} in truth")
    print(f"adjusted Rand index: {outcome.rand:.3f}")
    for nu, count, rand in outcome.others:
        print(f"  with nu = {nu:.3g}: {count} found, {rand:.3f}")
    print(f"accuracy, mean over the devices: {outcome.accuracy:.3f}")
    return 0


def _federation(task: Task, devices: Mapping[str, Examples]) -> InProcess:
    fpfc = algorithms.build("fpfc", {**PUBLISHED, **task.settings})
    full = max(examples.count for examples in devices.values())
    model = mlp(inputs=clustered.FEATURES, hidden=(), classes=clustered.CLASSES, batch=full, seed=task.seed)
    bundle = build(fpfc, fitted(fpfc, model))
    setting = federation.Setting(steps=task.steps, tune_steps=0, seed=task.seed)
    return InProcess(bundle, OnnxRunner(bundle), devices, setting)


def _rand(found: Clusters, truth: Mapping[str, int]) -> float:
    """Of the devices that a cluster has; those that never took part are in none."""
    label = {device: number for number, group in enumerate(found.groups) for device in group}
    return adjusted_rand(list(label.values()), [truth[device] for device in label])


def _pairs(sizes: Counter[object]) -> int:
    return sum(starmap(comb, ((size, 2) for size in sizes.values())))


def _tell(number: int, rand: float, found: Clusters) -> None:
    print(f"round {number}: {len(found.groups)} clusters, adjusted Rand index {rand:.3f}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="edgepfl recover",
        description="Train devices of known clusters with FPFC, and print how well it finds the clusters: the "
        "synthetic experiment of its paper, with the authors' hyperparameters. Each step is on all of a device's "
        "training examples. Everything runs in this process, through the exported graphs.",
    )
    usual = Task()
    parser.add_argument("--devices", type=int, default=usual.devices, help="of the fleet (default: %(default)s)")
    parser.add_argument("--clusters", type=int, default=usual.clusters, help="in truth (default: %(default)s)")
    parser.add_argument("--most", type=int, default=usual.most, help="examples of a device (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=usual.rounds, help="of training (default: %(default)s)")
    parser.add_argument(
        "--share", type=float, default=usual.share, help="of the devices a round (default: %(default)s)"
    )
    parser.add_argument("--steps", type=int, default=usual.steps, help="of a round (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=usual.seed, help="of everything random (default: %(default)s)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a hyperparameter (lam=0.6)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser
