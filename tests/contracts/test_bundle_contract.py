"""What is in every algorithm's bundle, and that it comes out of its file as it went in."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from _exported import EVERY, RUNTIMES, exported
from _federation import runner, shipped

from edgepfl.bundle import golden_vectors, pack, unpack
from edgepfl.plan import Entry, Kind
from edgepfl.tree import Tree
from exporters.check import FLOOR, TOLERANCE


@pytest.mark.parametrize("name", EVERY)
def test_the_models_of_the_plan_are_the_predictor_and_the_others(name: str) -> None:
    subject = exported(name)
    plan = subject.bundle.plan
    slots = {
        slot: Tree({tensor: torch.ones(spec.shape) for tensor, spec in each.tensors.items()})
        for slot, each in plan.slots.items()
    }
    others = subject.algorithm.others(slots)
    assert plan.models == ("personal", *others)
    for model in (subject.algorithm.predictor(slots), *others.values()):
        assert model.keys() == plan.predictor.keys()
    given = [(port.group, port.tensor) for port in plan.graphs[Entry.MODELS].outputs if port.kind is Kind.MODEL]
    assert sorted(given) == sorted((model, tensor) for model in plan.models for tensor in plan.predictor)


@pytest.mark.parametrize("name", EVERY)
def test_a_bundle_comes_out_of_its_file_as_it_went_in(name: str) -> None:
    subject = exported(name)
    bundle = unpack(subject.data)
    assert pack(bundle) == subject.data
    assert bundle.plan == subject.bundle.plan
    assert bundle.plan.algorithm == name
    assert bundle.graphs["onnx"].keys() == bundle.golden.keys() == bundle.plan.graphs.keys()
    for tensor, initial in subject.model.parameters.items():
        np.testing.assert_array_equal(bundle.model[tensor], initial.numpy(), strict=True)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("name", EVERY)
def test_the_golden_vectors_replay_in_every_runtime(name: str, runtime: str) -> None:
    bundle = unpack(shipped(name, runtime).data)
    for entry, graph in bundle.plan.graphs.items():
        given, expected, _ = golden_vectors(graph, bundle.golden[entry], where=entry)
        found = runner(name, runtime).run(entry, dict(given))
        assert found.keys() == expected.keys()
        for port, wanted in expected.items():
            allowed = TOLERANCE * float(np.abs(wanted).max()) + FLOOR
            np.testing.assert_allclose(found[port], wanted, rtol=0, atol=allowed, err_msg=f"{entry} {port}")
        assert any(np.any(wanted) for wanted in expected.values())
