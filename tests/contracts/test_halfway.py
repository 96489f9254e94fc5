"""A training that is cut between two steps, and goes on from its checkpoint in another process, has the same bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from _exported import DEVICES, EVERY, Exported, exported
from _federation import Federation, assert_same_bits, runner, shipped

from device_agent.checkpoint import Checkpoint, CheckpointFile
from device_agent.interpreter import Halfway, Interpreter, RoundResult, Start
from device_agent.runners import Runner
from device_agent.runners.onnx import OnnxRunner
from edgepfl.bundle import unpack
from edgepfl.plan import Role
from simulators.federation import Values, named

STEPS, CUTS = 7, (1, 4, 7)  # over more than two epochs of the device's, each of two minibatches
DEVICE = "pi-2"
SOME = ("apfl", "fedcr", "pfedbred", "scaffold")  # with inner and prepared steps, noise, and what counts the steps


def values(result: RoundResult) -> Values:
    """Everything that a training gave."""
    metrics = {f"metric {name}": np.asarray(value) for name, value in result.metrics.items()}
    return named("up", result.upload) | named("keep", result.keep) | metrics | {"steps": np.asarray(result.steps)}


def checkpointed(interpreter: Interpreter, start: Start, folder: Path) -> tuple[RoundResult, int]:
    """A whole training, and the most bytes of its checkpoints after the steps of :data:`CUTS`."""
    sizes = []

    def between(halfway: Callable[[], Halfway]) -> None:
        now = halfway()
        if now.steps in CUTS:
            sizes.append(CheckpointFile(folder / str(now.steps)).save("key", Checkpoint(now, 1.0, 0.0, {}, None)))

    result = interpreter.train(start, DEVICES[DEVICE].fit(interpreter.plan), STEPS, between=between)
    assert len(sizes) == len(CUTS)
    return result, max(sizes)


def goes_on(subject: Exported, make: Callable[[], Runner], folder: Path) -> None:
    """Cut and gone on with is the same as never cut."""
    federation = Federation(subject, runner=make())
    federation.round((DEVICE, "pi-3"))  # so that the kept slots are not the first
    start = federation.start(DEVICE)
    whole, size = checkpointed(federation.interpreter, start, folder)
    assert values(whole)
    for at in CUTS:
        bundle = unpack(subject.data)
        other = Interpreter(bundle.plan, bundle.model, make())
        found = CheckpointFile(folder / str(at)).load("key", other.lasting)
        assert found is not None
        assert found.halfway.steps == at
        told: list[int] = []
        rest = other.train(start, DEVICES[DEVICE].fit(other.plan), STEPS, told.append, since=found.halfway)
        assert told == list(range(at + 1, STEPS + 1))
        assert_same_bits(values(rest), values(whole))
    kept = sum(spec.nbytes for slot in federation.plan.slots.values() for spec in slot.tensors.values())
    assert size <= kept + 4096


@pytest.mark.parametrize("name", EVERY)
def test_every_algorithm_goes_on_with_the_same_bits(name: str, tmp_path: Path) -> None:
    subject = exported(name)
    goes_on(subject, lambda: OnnxRunner(subject.bundle), tmp_path)


@pytest.mark.parametrize("name", SOME)
def test_so_it_does_on_executorch(name: str, tmp_path: Path) -> None:
    goes_on(shipped(name, "executorch"), lambda: runner(name, "executorch"), tmp_path)


@pytest.mark.parametrize("name", ["ditto", "fedavg", "scaffold"])  # others have tensors that matter only at times
def test_all_that_a_checkpoint_holds_is_needed(name: str) -> None:
    """With another value of any one of its tensors the result is another."""
    subject = exported(name)
    federation = Federation(subject)
    start = federation.start(DEVICE)
    lasting = federation.interpreter.lasting
    assert {place[1] for place in lasting} <= {
        slot for role in (Role.KEEP, Role.WORK, Role.UP, Role.TELL) for slot in federation.plan.by_role(role)
    }
    taken: list[Halfway] = []

    def between(halfway: Callable[[], Halfway]) -> None:
        now = halfway()
        if now.steps == CUTS[1]:
            taken.append(Halfway(now.steps, {place: array.copy() for place, array in now.tensors.items()}, now.sums))

    examples = DEVICES[DEVICE].fit(federation.plan)
    whole = values(federation.interpreter.train(start, examples, STEPS, between=between))
    [halfway] = taken
    for place in lasting:
        changed = {**halfway.tensors, place: np.asarray(halfway.tensors[place] + 0.125, halfway.tensors[place].dtype)}
        since = Halfway(halfway.steps, changed, halfway.sums)
        other = values(federation.interpreter.train(start, examples, STEPS, since=since))
        assert any(other[each].tobytes() != array.tobytes() for each, array in whole.items()), place
