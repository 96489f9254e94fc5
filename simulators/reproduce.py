"""``edgepfl reproduce``: a published experiment through the exported graphs, next to the published numbers."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import msgspec
import torch

from device_agent.evaluate import evaluate
from device_agent.runners.onnx import OnnxRunner
from edgepfl import algorithms, presets
from edgepfl.bundle import Bundle
from edgepfl.errors import ConfigError
from edgepfl.presets import Preset
from edgepfl.seeds import generator
from exporters.build import build
from exporters.fitting import fitted
from exporters.model import Model
from exporters.zoo import mlp
from simulators import federation
from simulators.datasets import FleetData, load
from simulators.federation import InProcess, Moved
from simulators.report.table import PLUS_MINUS, Row, as_markdown, as_text

LINE_EVERY = 100  # rounds between signs of life

Accuracies = Mapping[str, float]
"""Of each of a method's models ("global", "local", "personal") over the test examples of all devices."""

See = Callable[[int, Accuracies], None]
"""Told of rounds on the way: the number, and accuracies where they were measured."""


@dataclass(frozen=True)
class Experiment:
    """What can be reproduced.

    Attributes:
        about: one line for people.
        data: the data set's name in the registry.
        presets: the settings to run, by their names.
        models: the method's models to show, and what its paper calls them.
        options: of the data set.
        data_seed: deals the data out; one for every seed of the training, as in the source.
        hidden: widths of the perceptron's hidden layers; none is softmax regression.
        published: accuracy by preset and model, where there is one.
        source: where these were read.
    """

    about: str
    data: str
    presets: tuple[str, ...]
    models: Mapping[str, str]
    options: Mapping[str, Any]
    data_seed: int = 1
    hidden: tuple[int, ...] = ()
    published: Mapping[tuple[str, str], float] = field(default_factory=dict)
    source: str = ""


_PFEDME = Experiment(
    about="pFedMe on MNIST, softmax regression, the authors' data",
    data="mnist",
    presets=("pfedme/mnist-mclr-global", "pfedme/mnist-mclr"),
    models={"global": "w (GM)", "local": 'w_k,R ("personalized")', "personal": "theta_k (PM)"},
    options={"classes": 2, "train_fraction": 0.75, "published": True},
    published={("pfedme/mnist-mclr-global", "global"): 0.9286, ("pfedme/mnist-mclr", "local"): 0.9454},
    source="authors' code (CharlieDinh/pFedMe), results/*.h5: the last round, means of 10 runs",
)

EXPERIMENTS: Mapping[str, Experiment] = {
    "pfedme/mnist-mclr": _PFEDME,
    "pfedme/mnist-mclr-disjoint": dataclasses.replace(
        _PFEDME,
        about="the same, but no example is on two devices",
        options={**_PFEDME.options, "published": False},
        published={},
        source="",
    ),
}
"""What can be reproduced, by name."""


@dataclass(frozen=True)
class Task:
    """What to reproduce, and how often.

    Attributes:
        name: of the experiment.
        seeds: of models, cohorts and minibatches, one for each training.
        rounds: of each training; 0 for the preset's.
        every: rounds between evaluations on the way; 0 evaluates at the end only.
    """

    name: str
    seeds: tuple[int, ...] = (0, 1, 2)
    rounds: int = 0
    every: int = 0

    def __post_init__(self) -> None:
        if self.name not in EXPERIMENTS:
            raise ConfigError(
                f"there is no experiment {self.name!r}",
                where="reproduce",
                remedy=f"Name one of {', '.join(EXPERIMENTS)}",
            )
        if not self.seeds or min(self.rounds, self.every) < 0:
            raise ConfigError(
                f"{len(self.seeds)} seeds, {self.rounds} rounds, evaluated every {self.every}",
                where="reproduce",
                remedy="Give a seed at least and no negative number",
            )

    @property
    def experiment(self) -> Experiment:
        """The experiment of this name."""
        return EXPERIMENTS[self.name]


@dataclass(frozen=True)
class Outcome:
    """One training.

    Attributes:
        preset: its setting.
        seed: its seed.
        rounds: how many it was.
        accuracy: after the last.
    """

    preset: str
    seed: int
    rounds: int
    accuracy: Accuracies


def reproduce(task: Task, see: Callable[[str], See] = lambda _: lambda *_: None) -> list[Outcome]:
    """Train an experiment's presets with each seed, through the exported graphs, in this process.

    Args:
        task: what to do.
        see: given a training's title, what is told of its rounds.

    Raises:
        ConfigError: a preset does not say what a training needs, or the data do not go round.
        DataError: the data cannot be fetched or read.
    """
    outcomes: list[Outcome] = []
    for name in task.experiment.presets:
        preset, bundle, data = _prepared(task.experiment, name)
        rounds = task.rounds or preset.rounds or 0
        for seed in task.seeds:
            fleet = _federation(task.experiment, preset, bundle, data, seed)
            train(fleet, rounds, preset.goal or 0, task.every, see(f"{name}, seed {seed}: round"))
            outcomes.append(Outcome(name, seed, rounds, accuracies(fleet)))
    return outcomes


def train(fleet: InProcess, rounds: int, goal: int, every: int, see: See) -> None:
    """So many rounds, each with ``goal`` devices drawn at random; the others do not compute."""
    names = sorted(fleet.devices)
    for number in range(1, rounds + 1):
        drawn = generator(fleet.setting.seed, "cohort", number).choice(names, goal, replace=False)
        fleet.round(sorted(drawn.tolist()))
        fleet.history[-1] = Moved({}, {})  # hundreds of rounds are too many to remember
        looked = every > 0 and number % every == 0
        if looked or number % LINE_EVERY == 0 or number == rounds:
            see(number, accuracies(fleet) if looked else {})


def accuracies(fleet: InProcess) -> dict[str, float]:
    """How good each of the method's models is, over the test examples of all devices, each example counting the same.

    The global model is the server's.  What a device keeps is what it would keep of one more round: every device trains
    from the server's present model, and nothing is uploaded.  pFedMe's authors measure so too: in each round all
    devices train, all are evaluated, and a few of them are averaged.
    """
    right: dict[str, float] = defaultdict(float)
    tested = 0
    for device, examples in fleet.devices.items():
        start = dataclasses.replace(fleet.start(device), keep=fleet.train(device).keep)
        found = evaluate(fleet.interpreter, start, examples, fleet.setting.tune_steps)
        count = len(examples.test_y)
        tested += count
        for model in fleet.plan.models if count else ():
            right[model] += found.metrics[f"accuracy.{model}"] * count
    return {model: total / tested for model, total in right.items()}


def main(arguments: list[str]) -> int:
    """Run the experiment."""
    words = _parser().parse_args(arguments)
    if words.list:
        print(as_text(("experiment", "what"), [(name, each.about) for name, each in EXPERIMENTS.items()]))
        return 0
    task = Task(words.name, tuple(range(words.seed, words.seed + words.seeds)), words.rounds, words.every)
    outcomes = reproduce(task, lambda title: partial(_tell, title))
    head, rows = table(task.experiment, outcomes)
    print(as_text(head, rows))
    if words.markdown is not None:
        words.markdown.write_text(as_markdown(head, rows) + "\n", encoding="utf-8")
    if words.json is not None:
        words.json.write_text(json.dumps(_told(task, outcomes), indent=2) + "\n", encoding="utf-8")
    return 0


def table(experiment: Experiment, outcomes: Sequence[Outcome]) -> tuple[Row, list[Row]]:
    """One line for each preset and model: the published number, ours with its spread over the seeds, the difference."""
    rows: list[Row] = []
    for preset in experiment.presets:
        for model, title in experiment.models.items():
            ours = [each.accuracy[model] for each in outcomes if each.preset == preset]
            known = experiment.published.get((preset, model))
            spread = f" {PLUS_MINUS} {stdev(ours):.4f}" if len(ours) > 1 else ""
            apart = "" if known is None else f"{fmean(ours) - known:+.4f}"
            rows.append((preset, title, "" if known is None else f"{known:.4f}", f"{fmean(ours):.4f}{spread}", apart))
    return ("preset", "model", "published", "ours", "difference"), rows


def _prepared(experiment: Experiment, name: str) -> tuple[Preset, Bundle, FleetData]:
    preset = presets.load(name)
    if None in {preset.rounds, preset.local_steps, preset.goal, preset.devices, preset.batch}:
        raise ConfigError("it does not say how long and with whom to train", where=f"preset {name}")
    data = load(experiment.data, devices=preset.devices or 0, seed=experiment.data_seed, **experiment.options)
    algorithm = algorithms.build(preset.algorithm, preset.hyper)
    bundle = build(algorithm, fitted(algorithm, _model(experiment, preset, data, 0)))
    return preset, bundle, data


def _model(experiment: Experiment, preset: Preset, data: FleetData, seed: int) -> Model:
    (inputs,) = data.input_shape
    return mlp(inputs=inputs, hidden=experiment.hidden, classes=len(data.classes), batch=preset.batch or 0, seed=seed)


def _federation(experiment: Experiment, preset: Preset, bundle: Bundle, data: FleetData, seed: int) -> InProcess:
    """A fresh one, whose first model follows from the seed."""
    first = _model(experiment, preset, data, seed).parameters.map(torch.Tensor.numpy)
    own = msgspec.structs.replace(bundle, model=first)
    setting = federation.Setting(steps=preset.local_steps or 0, tune_steps=0, seed=seed, decay=preset.decay)
    return InProcess(own, OnnxRunner(own), data.devices, setting)


def _told(task: Task, outcomes: Sequence[Outcome]) -> dict[str, object]:
    published = [
        {"preset": preset, "model": model, "accuracy": accuracy}
        for (preset, model), accuracy in task.experiment.published.items()
    ]
    runs = [asdict(outcome) for outcome in outcomes]
    return {"experiment": task.name, "source": task.experiment.source, "published": published, "runs": runs}


def _tell(title: str, number: int, found: Accuracies) -> None:
    line = ", ".join([f"{title} {number}", *(f"{model} {accuracy:.4f}" for model, accuracy in found.items())])
    print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="edgepfl reproduce",
        description="Run a published experiment, and print its accuracies next to the published ones. Everything runs "
        "in this process, through the exported graphs. Data are fetched at first use.",
    )
    output = parser.add_mutually_exclusive_group(required=True)
    output.add_argument("name", nargs="?", metavar="NAME", help="of the experiment")
    output.add_argument("--list", action="store_true", help="list what can be reproduced")
    parser.add_argument("--rounds", type=int, default=0, help="fewer than published, for a look")
    parser.add_argument("--every", type=int, default=0, metavar="N", help="evaluate every N rounds, too")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every training's numbers for a program")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table for a document")
    return parser
