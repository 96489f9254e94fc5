"""What a device gives back: the declared slots in their declared shapes, and of its own state nothing."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping

import numpy as np
import pytest
from _breadth import crossed
from _exported import DEVICES, EVERY, RUNTIMES, exported
from _federation import STEPS, Federation, runner, shipped

from coordinator import tasks, updater
from coordinator.config import RunConfig
from device_agent.interpreter import RoundResult
from device_agent.messages import Speaker, inline
from device_agent.runners import Array, Runner
from device_agent.work import Materials, Product, Workshop
from edgepfl import codec, wire
from edgepfl.algorithms import load
from edgepfl.plan import Entry, Kind, Role, SlotPlan
from edgepfl.seeds import generator
from edgepfl.tree import Tree, Trees

ENDS = {Role.UP, Role.TELL}
"""What only ``finish`` sets."""


class Recorder:
    """A runner that remembers what every graph gave."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.calls: list[tuple[Entry, Mapping[str, Array]]] = []

    def run(self, entry: Entry, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        outputs = self._runner.run(entry, feeds)
        self.calls.append((entry, outputs))
        return outputs


def shapes(trees: Trees) -> dict[tuple[str, str], tuple[str, tuple[int, ...]]]:
    return {
        (slot, name): (str(array.dtype), tuple(array.shape))
        for slot, tree in trees.items()
        for name, array in tree.items()
    }


def declared(slots: Mapping[str, SlotPlan]) -> dict[tuple[str, str], tuple[str, tuple[int, ...]]]:
    return {
        (slot, name): (spec.dtype, spec.shape) for slot, each in slots.items() for name, spec in each.tensors.items()
    }


def results(federation: Federation) -> list[RoundResult]:
    return [result for moved in federation.history for result in moved.results.values()]


@pytest.mark.parametrize(("name", "runtime"), crossed(EVERY, RUNTIMES))
def test_a_round_gives_every_up_and_keep_slot_and_no_other(name: str, runtime: str) -> None:
    federation = Federation(shipped(name, runtime), runner=runner(name, runtime)).run()
    for result in results(federation):
        assert result.upload.keys() == federation.plan.by_role(Role.UP).keys()
        assert result.keep.keys() == federation.plan.by_role(Role.KEEP).keys()
        assert federation.plan.by_role(Role.TELL).keys() <= result.metrics.keys()
    for number, moved in enumerate(federation.history, 1):
        coins = generator(federation.setting.seed, "coins", number)
        assert {result.steps for result in moved.results.values()} == {federation.algorithm.local_steps(STEPS, coins)}


@pytest.mark.parametrize(("name", "runtime"), crossed(EVERY, RUNTIMES))
def test_the_graphs_set_declared_slots_only_and_finish_sets_every_up_slot(name: str, runtime: str) -> None:
    recorder = Recorder(runner(name, runtime))
    federation = Federation(shipped(name, runtime), runner=recorder).run()
    federation.judgement()
    plan = federation.plan
    assert {entry for entry, _ in recorder.calls} == plan.graphs.keys()
    for entry, outputs in recorder.calls:
        ports = {port.name: port for port in plan.graphs[entry].outputs}
        assert outputs.keys() == ports.keys()
        written = {plan.slots[port.group].role for port in ports.values() if port.kind is Kind.SLOT}
        assert written <= {Role.KEEP, Role.WORK} | (ENDS if entry is Entry.FINISH else set())
    finished = {(port.group, port.tensor) for port in plan.graphs[Entry.FINISH].outputs if port.kind is Kind.SLOT}
    assert (declared(plan.by_role(Role.UP)) | declared(plan.by_role(Role.TELL))).keys() <= finished


@pytest.mark.parametrize(("name", "runtime"), crossed(EVERY, RUNTIMES))
def test_shapes_and_dtypes_never_drift(name: str, runtime: str) -> None:
    """The server's state may come to hold more, of a device that joins; what it held keeps its shape."""
    recorder = Recorder(runner(name, runtime))
    federation = Federation(shipped(name, runtime), runner=recorder)
    before, plan = shapes(federation.state), federation.plan
    first = federation.state.keys()
    federation.run()
    for moved in federation.history:
        after = {key: spec for key, spec in shapes(moved.state).items() if key[0] in first}  # without FPFC's engine
        assert before.items() <= after.items()
        assert {dtype for (slot, _), (dtype, _) in after.items() if slot != "places"} == {"float32"}
        before = after
    for result in results(federation):
        assert shapes(result.upload) == declared(plan.by_role(Role.UP))
        assert shapes(result.keep) == declared(plan.by_role(Role.KEEP))
    for entry, outputs in recorder.calls:
        ports = plan.graphs[entry].outputs
        assert [outputs[port.name].dtype for port in ports] == [np.float32] * len(ports)
        assert [outputs[port.name].shape for port in ports] == [port.spec.shape for port in ports]


def performed(federation: Federation, runtime: str, keep: bytes) -> tuple[wire.Task, Product]:
    """One task of the next round, done by pi-1's workshop from bytes to bytes."""
    name = federation.plan.algorithm
    data = shipped(name, runtime).data
    down = codec.encode(updater.downloads(federation.tuned, federation.server, "pi-1"))
    task = tasks.make(
        "contract",
        RunConfig(steps=STEPS, seed=federation.setting.seed, evaluate_every=1, hyper=federation.setting.hyper),
        federation.tuned,
        federation.plan,
        number=len(federation.history) + 1,
        attempt=0,
        cohort=["pi-1"],
        accepted={},
        bundle=wire.BlobRef(hashlib.sha256(data).hexdigest(), len(data)),
        download=inline(down),
    )
    materials = Materials("pi-1", DEVICES["pi-1"], lambda: data, lambda: down, keep)
    workshop = Workshop(lambda _: runner(name, runtime), runtime=runtime)
    return task, workshop.perform(task, materials, lambda _: None)


def occurs(array: Array, data: bytes) -> bool:
    """Whether an array is in ``data`` as it is stored, or a number as MessagePack writes it."""
    written = {array.tobytes()}
    if array.size == 1:
        written |= {struct.pack(">f", array.item()), struct.pack(">d", array.item())}
    return any(each in data for each in written)


@pytest.mark.parametrize(("name", "runtime"), crossed(EVERY, RUNTIMES))
def test_what_a_device_keeps_is_in_nothing_that_it_sends(name: str, runtime: str) -> None:
    """Unless the algorithm says that it reveals it.

    In the third round: before that, a correction that began at 0 may rightly equal what is sent of it.
    """
    federation = Federation(shipped(name, runtime), runner=runner(name, runtime)).run([["pi-1", "pi-2"]] * 2)
    up = {slot: each.tensors for slot, each in federation.plan.by_role(Role.UP).items()}
    own = {slot: each.tensors for slot, each in federation.plan.by_role(Role.KEEP).items()}
    before = federation.kept["pi-1"]
    task, product = performed(federation, runtime, codec.encode(before))
    assert product.upload is not None
    assert product.steps == task.steps
    uploaded = codec.decode(product.upload, up)  # exactly the UP slots, or it raises
    report = Speaker("pi-1", 1, runtime, 10, 2, 3, 1024).report(task, product, inline(product.upload))
    sent = wire.encode(report) + product.upload
    after = codec.decode(product.keep, own)
    for slot in own:
        assert seen(after[slot], sent) == (slot in federation.algorithm.revealed), f"{slot} leaves the device"
        assert not seen(before[slot], sent), f"the old {slot} leaves the device"
    assert all(occurs(array, sent) for tree in uploaded.values() for array in tree.values())


def seen(tree: Tree, sent: bytes) -> bool:
    """Whether any tensor of a slot is in what is sent; all zeros would prove nothing."""
    assert all(np.any(array) for array in tree.values())
    return any(occurs(array, sent) for array in tree.values())


def test_the_slots_that_an_algorithm_reveals_are_ones_that_it_keeps() -> None:
    revealing = {name: load(name).revealed for name in EVERY if load(name).revealed}
    assert revealing
    for name, slots in revealing.items():
        assert set(slots) <= exported(name).bundle.plan.by_role(Role.KEEP).keys()
