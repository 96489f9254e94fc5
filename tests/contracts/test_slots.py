"""What a device gives back: the declared slots in their declared shapes, and of its own state nothing."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping

import numpy as np
import pytest
from _exported import DEVICES, EVERY, Exported, exported
from _federation import STEPS, Federation

from coordinator import tasks, updater
from coordinator.config import RunConfig
from device_agent.interpreter import RoundResult
from device_agent.messages import Speaker, inline
from device_agent.runners import Array, Runner
from device_agent.runners.onnx import OnnxRunner
from device_agent.work import Materials, Product, Workshop
from edgepfl import codec, wire
from edgepfl.plan import Entry, Kind, Role, SlotPlan
from edgepfl.tree import Trees

WRITABLE = {Role.KEEP, Role.WORK, Role.UP}


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


@pytest.mark.parametrize("name", EVERY)
def test_a_round_gives_every_up_and_keep_slot_and_no_other(name: str) -> None:
    federation = Federation(exported(name)).run()
    for result in results(federation):
        assert result.upload.keys() == federation.plan.by_role(Role.UP).keys()
        assert result.keep.keys() == federation.plan.by_role(Role.KEEP).keys()
        assert result.steps == STEPS


@pytest.mark.parametrize("name", EVERY)
def test_the_graphs_set_declared_slots_only_and_finish_sets_every_up_slot(name: str) -> None:
    recorder = Recorder(OnnxRunner(exported(name).bundle))
    federation = Federation(exported(name), runner=recorder).run()
    federation.judgement()
    plan = federation.plan
    assert {entry for entry, _ in recorder.calls} == plan.graphs.keys()
    for entry, outputs in recorder.calls:
        ports = {port.name: port for port in plan.graphs[entry].outputs}
        assert outputs.keys() == ports.keys()
        written = {port.group for port in ports.values() if port.kind is Kind.SLOT}
        assert {plan.slots[slot].role for slot in written} <= (
            WRITABLE if entry is Entry.FINISH else WRITABLE - {Role.UP}
        )
    finished = {(port.group, port.tensor) for port in plan.graphs[Entry.FINISH].outputs if port.kind is Kind.SLOT}
    assert declared(plan.by_role(Role.UP)).keys() <= finished


@pytest.mark.parametrize("name", EVERY)
def test_shapes_and_dtypes_never_drift(name: str) -> None:
    recorder = Recorder(OnnxRunner(exported(name).bundle))
    federation = Federation(exported(name), runner=recorder)
    first, plan = shapes(federation.state), federation.plan
    federation.run()
    assert {dtype for dtype, _ in first.values()} == {"float32"}
    for moved in federation.history:
        assert shapes(moved.state) == first
    for result in results(federation):
        assert shapes(result.upload) == declared(plan.by_role(Role.UP))
        assert shapes(result.keep) == declared(plan.by_role(Role.KEEP))
    for entry, outputs in recorder.calls:
        ports = plan.graphs[entry].outputs
        assert [outputs[port.name].dtype for port in ports] == [np.float32] * len(ports)
        assert [outputs[port.name].shape for port in ports] == [port.spec.shape for port in ports]


def performed(subject: Exported, federation: Federation, keep: bytes | None) -> tuple[wire.Task, Product]:
    """One task of the next round, done by pi-1's workshop from bytes to bytes."""
    down = codec.encode(updater.downloads(federation.algorithm, federation.state, "pi-1"))
    task = tasks.make(
        "contract",
        RunConfig(steps=STEPS, seed=federation.setting.seed, evaluate_every=1, hyper=subject.settings()),
        federation.algorithm,
        federation.plan,
        number=len(federation.history) + 1,
        attempt=0,
        cohort=["pi-1"],
        accepted={},
        bundle=wire.BlobRef(hashlib.sha256(subject.data).hexdigest(), len(subject.data)),
        download=inline(down),
    )
    materials = Materials("pi-1", DEVICES["pi-1"], lambda: subject.data, lambda: down, keep)
    return task, Workshop(OnnxRunner).perform(task, materials, lambda _: None)


def occurs(array: Array, data: bytes) -> bool:
    """Whether an array is in ``data`` as it is stored, or a number as MessagePack writes it."""
    written = {array.tobytes()}
    if array.size == 1:
        written |= {struct.pack(">f", array.item()), struct.pack(">d", array.item())}
    return any(each in data for each in written)


@pytest.mark.parametrize("name", EVERY)
def test_what_a_device_keeps_is_in_nothing_that_it_sends(name: str) -> None:
    """In its third round: before that, a correction that began at 0 may rightly equal what is sent of it."""
    subject = exported(name)
    federation = Federation(subject).run([["pi-1", "pi-2"]] * 2)
    up = {slot: each.tensors for slot, each in federation.plan.by_role(Role.UP).items()}
    own = {slot: each.tensors for slot, each in federation.plan.by_role(Role.KEEP).items()}
    before = federation.kept["pi-1"]
    task, product = performed(subject, federation, codec.encode(before))
    assert product.upload is not None
    assert product.steps == STEPS
    codec.decode(product.upload, up)  # exactly the UP slots, or it raises
    report = Speaker("pi-1", 1, "onnx", 10).report(task, product, inline(product.upload))
    sent = wire.encode(report) + product.upload
    for kept in (before, codec.decode(product.keep, own)):
        for label, tree in kept.items():
            for tensor, array in tree.items():
                assert np.any(array), f"{label}/{tensor} is all zeros, which proves nothing"
                assert not occurs(array, sent), f"{label}/{tensor} leaves the device"
    assert all(occurs(array, sent) for tree in codec.decode(product.upload, up).values() for array in tree.values())
