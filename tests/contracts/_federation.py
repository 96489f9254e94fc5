"""The federation of the contract tests, and how its values are compared."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Self

import numpy as np
from _exported import BATCH, DEVICES, INPUTS, RUNTIMES, Exported, exported
from _runner_library import library_folder
from numpy.typing import NDArray

from coordinator import updater
from device_agent.config import RuntimeSettings
from device_agent.runners import Runner
from device_agent.runners.choice import Choice, choose
from device_agent.runners.onnx import OnnxRunner
from edgepfl.plan import Entry, Kind
from edgepfl.tree import Tree
from exporters.eager import EagerRunner
from simulators.federation import InProcess, Setting, Values, named

STEPS, TUNE_STEPS = 5, 3
COHORTS = (("pi-1", "pi-2", "pi-3"), ("pi-1", "pi-3"), ("pi-2", "pi-3"))


class Federation(InProcess):
    """The three devices of these tests.

    Args:
        exported: algorithm, model and bundle.
        settings: the run's hyperparameters.
        runner: of the graphs; ONNX Runtime unless given.
        seed: of the run.
        codec: by which uploads are encoded.
    """

    def __init__(
        self,
        exported: Exported,
        settings: updater.Settings | None = None,
        *,
        runner: Runner | None = None,
        seed: int = 7,
        codec: str = "",
    ) -> None:
        hyper = exported.settings() if settings is None else settings
        setting = Setting(hyper, STEPS, TUNE_STEPS, seed, codec=codec)
        super().__init__(exported.bundle, runner or OnnxRunner(exported.bundle), DEVICES, setting)

    def run(self, cohorts: Sequence[Sequence[str]] = COHORTS) -> Self:
        """A round for each cohort."""
        for cohort in cohorts:
            self.round(cohort)
        return self

    def predict(self, model: Tree, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """The outputs for one minibatch of inputs."""
        graph = self.plan.graphs[Entry.PREDICT]
        feeds = {port.name: x if port.kind is Kind.BATCH else model[port.tensor] for port in graph.inputs}
        outputs: NDArray[np.float32] = self.runner.run(Entry.PREDICT, feeds)[graph.outputs[0].name]
        return outputs

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


def shipped(name: str, runtime: str) -> Exported:
    """An algorithm with graphs for this runtime, and for all before it in :data:`RUNTIMES`."""
    return exported(name, runtimes=RUNTIMES[: RUNTIMES.index(runtime) + 1])


@cache
def choice(runtime: str) -> Choice:
    """What an agent takes for this runtime."""
    if runtime == "onnx":
        return choose(RuntimeSettings())
    return choose(RuntimeSettings(kind="executorch", library=str(library_folder())))


@cache
def runner(name: str, runtime: str) -> Runner:
    """Runs an algorithm's graphs; made once, since ExecuTorch's are each tried in another process first."""
    return choice(runtime).runner(shipped(name, runtime).bundle)


def eager(exported: Exported) -> EagerRunner:
    """The reference: torch's own operators and gradients."""
    return EagerRunner(exported.algorithm, exported.model)


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


def assert_apart(found: Values, expected: Values) -> None:
    """Some value differs by more than rounding explains."""
    assert found.keys() == expected.keys()
    assert any(np.abs(array - expected[name]).max(initial=0) > 1e-3 for name, array in found.items())
