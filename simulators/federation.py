"""A federation in one process out of the parts that run in the field: interpreter, reduction and updater.

What is missing is bus, storage and time, so what it computes is what a real federation would, and nothing waits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from coordinator import coded, updater
from coordinator.reduction import Upload
from device_agent import sending
from device_agent.data import Examples
from device_agent.evaluate import Evaluation, evaluate
from device_agent.interpreter import Interpreter, RoundResult, Start
from device_agent.runners import Runner
from edgepfl.algorithms import Algorithm
from edgepfl.bundle import Bundle
from edgepfl.seeds import derive, generator
from edgepfl.tree import Trees

Values: TypeAlias = dict[str, NDArray[Any]]
"""What was computed, by a name for people."""


@dataclass(frozen=True)
class Moved:
    """What one round did."""

    results: Mapping[str, RoundResult]
    state: Trees


@dataclass(frozen=True)
class Setting:
    """How a federation trains.

    Attributes:
        hyper: hyperparameters of the run; the others are the plan's.
        steps: minibatch steps of a round.
        tune_steps: of an evaluation.
        seed: of the run.
        decay: factors by which runtime hyperparameters change with each round.
        codec: by which uploads are encoded.
    """

    hyper: updater.Settings = field(default_factory=dict)
    steps: int = 5
    tune_steps: int = 3
    seed: int = 7
    decay: Mapping[str, float] = field(default_factory=dict)
    codec: str = ""


class InProcess:
    """The coordinator's state and every device's KEEP slots, moved round by round.

    Args:
        bundle: plan and model.
        runner: of the graphs.
        devices: each device's data.
        setting: how to train.
    """

    def __init__(
        self,
        bundle: Bundle,
        runner: Runner,
        devices: Mapping[str, Examples],
        setting: Setting,
    ) -> None:
        self.plan, self.model, self.runner = bundle.plan, bundle.model, runner
        self.setting = setting
        self.algorithm = updater.algorithm_of(self.plan, setting.hyper)
        self.devices = {name: examples.fit(self.plan) for name, examples in devices.items()}
        self.interpreter = Interpreter(self.plan, self.model, runner)
        self.server = updater.first_state(self.algorithm, self.plan, self.model)
        self.coding = coded.check(self.algorithm, self.plan, setting.codec)
        self.kept: dict[str, Trees] = {}
        self.residual: dict[str, Trees] = {}
        self.uploaded = 0  # bytes
        self.history: list[Moved] = []
        self._hyper: dict[str, float] | None = None

    def round(self, cohort: Sequence[str], steps: int | None = None) -> Moved:
        """Train the cohort, fold its uploads, update the state."""
        tuned, number = self.tuned, len(self.history) + 1
        reduction = updater.reduction(tuned, self.plan, cohort)
        results = {device: self.train(device, steps) for device in cohort}
        for device, result in results.items():
            result = results[device] = self._sent(device, result)  # noqa: PLW2901  from here on it is what arrived
            self.kept[device] = result.keep
            count = self.devices[device].count
            reduction.offer(device, Upload(count, result.steps, lambda upload=result.upload: upload))  # type: ignore[misc]  # the default binds it now
        got = reduction.close(cohort, number=number, fleet=self.devices, statistics=self.plan.statistics)
        self.server = updater.next_state(tuned, self.server, got)
        self.history.append(Moved(results, _copied(self.server)))
        return self.history[-1]

    def _sent(self, device: str, result: RoundResult) -> RoundResult:
        """A result as the coordinator gets it, and the KEEP slots as they follow from that."""
        if not self.setting.codec:
            return result
        residual = self.residual.get(device, self.coding.none_left())
        sent = sending.sent(result, self.coding, self.tuned.amended, residual, self.start(device).seed)
        self.residual[device] = {name: sent.keep[name] for name in self.coding.residuals}
        self.uploaded += len(sent.upload)
        keep = {name: sent.keep[name] for name in result.keep}
        return dataclasses.replace(result, upload=self.coding.decode(sent.upload), keep=keep)

    def start(self, device: str) -> Start:
        """What a device has when the next round begins."""
        number = len(self.history) + 1
        tuned = self.tuned
        down = updater.downloads(tuned, self.server, device)
        seed = derive(derive(self.setting.seed, "round", number), device)
        return Start(down, self.kept.get(device), self.hyper, seed, number)

    @property
    def state(self) -> Trees:
        """The server's state as NumPy trees."""
        return updater.numpy_of(self.server)

    @property
    def hyper(self) -> dict[str, float]:
        """The runtime hyperparameters that devices get for the next round; may be set, for all rounds to come."""
        if self._hyper is not None:
            return self._hyper
        return {name: float(getattr(self.tuned, name)) for name in self.plan.hyper}

    @hyper.setter
    def hyper(self, values: dict[str, float]) -> None:
        self._hyper = values

    @property
    def tuned(self) -> Algorithm:
        """The algorithm of the next round."""
        number = len(self.history) + 1
        return updater.of_round(
            self.algorithm, self.plan, number=number, seed=self.setting.seed, decay=self.setting.decay
        )

    def train(self, device: str, steps: int | None = None) -> RoundResult:
        """One device's round, which changes nothing here."""
        coins = generator(self.setting.seed, "coins", len(self.history) + 1)
        taken = self.tuned.local_steps(self.setting.steps, coins) if steps is None else steps
        start = self.start(device)
        return self.interpreter.train(start, self.devices[device].of_round(start.round), taken)

    def evaluate(self, device: str) -> Evaluation:
        """How good a device's models are."""
        start = self.start(device)
        return evaluate(self.interpreter, start, self.devices[device].of_round(start.round), self.setting.tune_steps)

    def trajectory(self) -> Values:
        """Every tensor and metric of the training so far."""
        values: Values = {}
        for number, moved in enumerate(self.history, 1):
            values |= named(f"round {number}, server's", moved.state)
            for device, result in moved.results.items():
                place = f"round {number}, {device}'s"
                values |= named(place, result.upload) | named(place, result.keep)
                values |= {f"{place} {name}": np.asarray(value) for name, value in result.metrics.items()}
        return values


def _copied(state: Trees) -> Trees:
    """A state as NumPy trees of its own: the server may change the next one in place."""
    return {slot: tree.map(np.copy) for slot, tree in updater.numpy_of(state).items()}


def named(place: str, trees: Trees) -> Values:
    """Trees as values."""
    return {f"{place} {slot}/{name}": np.asarray(array) for slot, tree in trees.items() for name, array in tree.items()}
