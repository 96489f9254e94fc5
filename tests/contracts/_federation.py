"""A federation in one process out of the parts that run in the field: interpreter, reduction and updater.

What is missing is what contracts do not depend on: bus, storage, time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from _exported import BATCH, DEVICES, INPUTS, Exported
from numpy.typing import NDArray

from coordinator import updater
from coordinator.reduction import Reduction, Upload
from device_agent.evaluate import Evaluation, evaluate
from device_agent.interpreter import Interpreter, RoundResult, Start
from device_agent.runners import Runner
from device_agent.runners.onnx import OnnxRunner
from edgepfl.algorithms import Algorithm
from edgepfl.plan import Entry, Kind, Role
from edgepfl.seeds import derive
from edgepfl.tree import Tree, Trees
from exporters.eager import EagerRunner

STEPS, TUNE_STEPS = 5, 3
COHORTS = (("pi-1", "pi-2", "pi-3"), ("pi-1", "pi-3"), ("pi-2", "pi-3"))

Values: TypeAlias = dict[str, NDArray[Any]]
"""What was computed, by a name for people."""


@dataclass(frozen=True)
class Moved:
    """What one round did."""

    results: Mapping[str, RoundResult]
    state: Trees


class Federation:
    """The coordinator's state and every device's KEEP slots, moved round by round.

    Args:
        exported: algorithm, model and bundle.
        settings: the run's hyperparameters.
        runner: of the graphs; ONNX Runtime unless given.
        seed: of the run.
        carry: what becomes of trees between two rounds; nothing unless given.
    """

    def __init__(
        self,
        exported: Exported,
        settings: updater.Settings | None = None,
        *,
        runner: Runner | None = None,
        seed: int = 7,
        carry: Callable[[Trees], Trees] = lambda trees: trees,
    ) -> None:
        self.plan, self.model = exported.bundle.plan, exported.bundle.model
        self.algorithm: Algorithm = updater.algorithm_of(
            self.plan, exported.settings() if settings is None else settings
        )
        self.runner = runner or OnnxRunner(exported.bundle)
        self.interpreter = Interpreter(self.plan, self.model, self.runner)
        self.hyper = {name: float(getattr(self.algorithm, name)) for name in self.plan.hyper}
        self.seed = seed
        self.state = updater.first_state(self.algorithm, self.plan, self.model)
        self.kept: dict[str, Trees] = {}
        self.history: list[Moved] = []
        self._carry = carry

    def run(self, cohorts: Sequence[Sequence[str]] = COHORTS) -> Federation:
        """A round for each cohort."""
        for cohort in cohorts:
            self.round(cohort)
        return self

    def round(self, cohort: Sequence[str], steps: int = STEPS) -> Moved:
        """Train the cohort, fold its uploads, update the state."""
        reduction = Reduction(self.plan.by_role(Role.UP), cohort, self.algorithm.weighting)
        results = {device: self.train(device, steps) for device in cohort}
        for device, result in results.items():
            self.kept[device] = self._carry(result.keep)
            count = len(DEVICES[device].train_x)
            reduction.offer(device, Upload(count, result.steps, lambda upload=result.upload: upload))  # type: ignore[misc]  # the default binds it now
        self.state = self._carry(updater.next_state(self.algorithm, self.state, reduction.close(cohort)))
        self.history.append(Moved(results, self.state))
        return self.history[-1]

    def start(self, device: str) -> Start:
        """What a device has when the next round begins."""
        number = len(self.history) + 1
        down = updater.downloads(self.algorithm, self.state, device)
        seed = derive(derive(self.seed, "round", number), device)
        return Start(down, self.kept.get(device), self.hyper, seed, number)

    def train(self, device: str, steps: int = STEPS) -> RoundResult:
        """One device's round, which changes nothing here."""
        return self.interpreter.train(self.start(device), DEVICES[device].fit(self.plan), steps)

    def evaluate(self, device: str) -> Evaluation:
        """How good a device's models are."""
        return evaluate(self.interpreter, self.start(device), DEVICES[device].fit(self.plan), TUNE_STEPS)

    def predict(self, model: Tree, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """The outputs for one minibatch of inputs."""
        graph = self.plan.graphs[Entry.PREDICT]
        feeds = {port.name: x if port.kind is Kind.BATCH else model[port.tensor] for port in graph.inputs}
        outputs: NDArray[np.float32] = self.runner.run(Entry.PREDICT, feeds)[graph.outputs[0].name]
        return outputs

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

    def judgement(self) -> Values:
        """Every metric of every device's evaluation now, and the outputs of its own model."""
        values: Values = {}
        x = np.random.default_rng(3).standard_normal((BATCH, INPUTS)).astype(np.float32)
        for device in DEVICES:
            found = self.evaluate(device)
            values |= {f"{device}'s {name}": np.asarray(value) for name, value in found.metrics.items()}
            values |= named(f"{device}'s", {"model": found.personal})
            values[f"{device}'s predictions"] = self.predict(found.personal, x)
        return values

    def everything(self) -> Values:
        """The trajectory and where it led."""
        return self.trajectory() | self.judgement()


def eager(exported: Exported) -> EagerRunner:
    """The reference: torch's own operators and gradients."""
    return EagerRunner(exported.algorithm, exported.model)


def named(place: str, trees: Trees) -> Values:
    """Trees as values."""
    return {f"{place} {slot}/{name}": np.asarray(array) for slot, tree in trees.items() for name, array in tree.items()}


def assert_same_bits(found: Values, expected: Values) -> None:
    """Not one bit of difference."""
    assert_equal(found, expected)
    for name, array in found.items():
        assert array.tobytes() == expected[name].tobytes(), name


def assert_equal(found: Values, expected: Values) -> None:
    """Not one bit of difference, but for the sign of zero."""
    assert found.keys() == expected.keys()
    for name, array in found.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name, strict=True)


def assert_near(found: Values, expected: Values, *, tolerance: float) -> None:
    """Each value within ``tolerance`` of the expected one's greatest element, or within 1e-6 where that is tiny."""
    assert found.keys() == expected.keys()
    for name, array in found.items():
        assert array.shape == expected[name].shape, name
        allowed = max(tolerance * float(np.abs(expected[name]).max(initial=0)), 1e-6)
        np.testing.assert_allclose(array, expected[name], rtol=0, atol=allowed, err_msg=name)


def differ(found: Values, expected: Values) -> set[str]:
    """The names of the values that are not the same."""
    return {name for name in found if not np.array_equal(found[name], expected[name])}
