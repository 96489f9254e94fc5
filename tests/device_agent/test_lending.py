"""Agents that take turns in one process: what one task left for the next must change nothing of it."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from _bundles import ditto_bundle
from _graphs import GRAPHS, bundle
from _hand import examples
from _tasks import task

from device_agent.interpreter import Stopped
from device_agent.runners.lending import Lending
from device_agent.runners.onnx import OnnxRunner
from device_agent.work import Materials, Product, Workshop
from edgepfl import codec
from edgepfl.bundle import pack
from edgepfl.plan import Entry, Role
from edgepfl.tree import Tree
from edgepfl.wire import BlobRef, Task

HIDDEN = 8
DEVICES = tuple(f"device-{number}" for number in range(6))


def blob(data: bytes) -> BlobRef:
    return BlobRef(hashlib.sha256(data).hexdigest(), len(data))


class Scene:
    """A bundle and a download of each round."""

    def __init__(self) -> None:
        bundle_ = ditto_bundle(HIDDEN)
        self.data = pack(bundle_)
        self._down = bundle_.plan.by_role(Role.DOWN)

    def download(self, round_: int) -> bytes:
        source = np.random.default_rng(round_)
        return codec.encode(
            {
                name: Tree(
                    {
                        tensor: source.normal(0, 0.1, spec.shape).astype(spec.dtype)
                        for tensor, spec in slot.tensors.items()
                    }
                )
                for name, slot in self._down.items()
            }
        )

    def task(self, round_: int, *, evaluate: bool = False) -> Task:
        fields = {name: getattr(task(), name) for name in Task.__struct_fields__}
        fields |= {"round": round_, "bundle": blob(self.data), "download": blob(self.download(round_)), "hyper": {}}
        return Task(**{**fields, "steps": 5, "evaluate": evaluate, "seed": round_})

    def perform(self, workshop: Workshop, device: str, round_: int, keep: bytes | None) -> Product:
        materials = Materials(device, examples(), lambda: self.data, lambda: self.download(round_), keep)
        return workshop.perform(self.task(round_, evaluate=round_ % 2 == 0), materials, lambda _: None)


@pytest.fixture(scope="module")
def scene() -> Scene:
    return Scene()


def outcome(product: Product) -> tuple[object, ...]:
    return product.keep, product.upload, product.serving, dict(product.metrics)


def rounds(scene: Scene, workshop: Workshop, device: str) -> list[tuple[object, ...]]:
    found, keep = [], None
    for round_ in (1, 2, 3):
        product = scene.perform(workshop, device, round_, keep)
        keep = product.keep
        found.append(outcome(product))
    return found


def test_agents_in_turn_get_what_each_gets_alone(scene: Scene) -> None:
    shared = Workshop(OnnxRunner, shared=True)
    alone = {device: rounds(scene, Workshop(OnnxRunner), device) for device in DEVICES}
    with ThreadPoolExecutor(3) as pool:
        together = dict(zip(DEVICES, pool.map(lambda device: rounds(scene, shared, device), DEVICES), strict=True))
    assert together == alone
    assert len({str(each) for each in alone.values()}) == len(DEVICES)  # else nothing could be mixed up


def test_a_task_that_was_stopped_leaves_nothing_behind(scene: Scene) -> None:
    shared = Workshop(OnnxRunner, shared=True)

    def stop(done: int) -> None:
        if done == 2:
            raise Stopped("enough")

    materials = Materials(DEVICES[0], examples(), lambda: scene.data, lambda: scene.download(1), None)
    with pytest.raises(Stopped):
        shared.perform(scene.task(1), materials, stop)
    [(_, lending)] = shared._open.values()
    assert isinstance(lending, Lending)
    assert not any(lending._spare.values())
    assert rounds(scene, shared, DEVICES[1]) == rounds(scene, Workshop(OnnxRunner), DEVICES[1])


def test_what_two_threads_hold_at_once_is_not_the_same() -> None:
    lending = Lending(OnnxRunner(bundle()), GRAPHS)
    mine = lending.repeat(Entry.STEP)
    with ThreadPoolExecutor(1) as pool:
        theirs = pool.submit(lending.repeat, Entry.STEP).result()
        assert theirs is not mine
        pool.submit(lending.give_back).result()
    assert lending.repeat(Entry.STEP) is theirs
    lending.give_back()
    assert {lending.repeat(Entry.STEP), lending.repeat(Entry.STEP)} == {mine, theirs}


def test_examples_that_fit_are_fitted_once_and_never_held_twice() -> None:
    plan = ditto_bundle(HIDDEN).plan
    data = examples()
    assert data.fit(plan) is data.fit(plan)
    double = replace(data, train_x=np.asarray(data.train_x, np.float64), test_x=np.asarray(data.test_x, np.float64))
    assert double.fit(plan) is not double.fit(plan)
    other = ditto_bundle(HIDDEN + 1).plan
    assert data.fit(other) is not data.fit(plan)
