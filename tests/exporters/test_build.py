from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import onnx as onnx_format
import pytest
import torch
from _breadth import FULL
from _models import PADDINGS, draws_of, fedavg, tiny_cnn

from edgepfl import algorithms, bundle
from edgepfl.bundle import Bundle
from edgepfl.errors import ConfigError, PlanError
from edgepfl.plan import Entry, Kind, Plan, Role
from exporters import onnx
from exporters.binding import Binding
from exporters.build import build, plan_of
from exporters.eager import EagerRunner
from exporters.entries import entry_functions
from exporters.fitting import fitted
from exporters.graph import trace
from exporters.model import Model
from exporters.ort import PoisonedOnnx

BundleOf = Callable[[str], Bundle]
ALWAYS = {Entry.STEP, Entry.FINISH, Entry.MODELS, Entry.EVALUATE, Entry.PREDICT}


@pytest.fixture(scope="module")
def bundle_of() -> BundleOf:
    """Algorithm to its bundle, each built once."""
    return functools.cache(lambda name: build(algorithms.build(name, {}), _model(name)))


def _model(name: str) -> Model:
    """The small model, as an algorithm needs it."""
    return fitted(algorithms.build(name, {}), tiny_cnn())


def kinds() -> list[str]:
    """Of algorithms that have the same graphs, the first; all of them where the matrix is to be full.

    That each algorithm's own numbers are right is the contract tests' business; here convolutions go through them.
    """
    entries = (Entry.BEGIN, Entry.PREPARE, Entry.INNER, Entry.TUNE)
    first = {
        tuple(algorithms.has(algorithms.load(name), entry) for entry in entries): name
        for name in reversed(algorithms.names())
    }
    return sorted(algorithms.names() if FULL else first.values())


every_algorithm = pytest.mark.parametrize("name", kinds())


@every_algorithm
def test_every_graph_gives_what_eager_torch_gives(bundle_of: BundleOf, name: str) -> None:
    made = bundle_of(name)
    algorithm, model = algorithms.build(name, {}), _model(name)
    eager = EagerRunner(algorithm, model)
    draws = draws_of(Binding(algorithm, model), seed=11)
    for entry, ports in made.plan.graphs.items():
        runner = PoisonedOnnx(made.graphs["onnx"][entry], ports)
        for padding in PADDINGS:
            feeds = draws.feeds(ports.inputs, padding)
            found, wanted = runner.run(feeds), eager.run(entry, feeds)
            assert found.keys() == wanted.keys()
            for port in ports.outputs:
                np.testing.assert_allclose(found[port.name], wanted[port.name], rtol=1e-4, atol=1e-5, err_msg=port.name)


@every_algorithm
def test_the_plan_says_what_the_graphs_are(bundle_of: BundleOf, name: str) -> None:
    plan = bundle_of(name).plan
    kind = algorithms.load(name)
    optional = {entry for entry in (Entry.BEGIN, Entry.PREPARE, Entry.TUNE) if algorithms.has(kind, entry)}
    inner = {Entry.INNER} if plan.inner_steps else set()
    assert set(plan.graphs) == ALWAYS | optional | inner
    assert plan.algorithm == name
    assert plan.models[0] == "personal"
    assert {"weighting", *plan.hyper} <= {*plan.server, *plan.hyper}
    inputs = {port.name for graph in plan.graphs.values() for port in graph.inputs}
    outputs = {port.name for graph in plan.graphs.values() for port in graph.outputs}
    assert not inputs & outputs
    sent = {port.group for port in plan.graphs[Entry.FINISH].outputs if port.kind is Kind.SLOT}
    assert set(plan.by_role(Role.UP)) <= sent


def test_the_ports_of_the_fixed_graphs(bundle_of: BundleOf) -> None:
    graphs = bundle_of("ditto").plan.graphs
    evaluate, predict, step = graphs[Entry.EVALUATE], graphs[Entry.PREDICT], graphs[Entry.STEP]
    assert [port.name for port in evaluate.outputs] == ["metric:loss", "metric:accuracy", "metric:weight"]
    assert [port.name for port in predict.outputs] == ["output"]
    assert {port.name for port in predict.inputs if port.kind is Kind.BATCH} == {"batch:x0"}
    assert step.outputs[-1].name == "metric:loss"
    assert {port.name for port in step.inputs if port.kind is Kind.HYPER} == {
        "hyper:lam",
        "hyper:lr",
        "hyper:personal_steps",
    }
    assert bundle_of("ditto").plan.models == ("personal", "global")


def test_a_pattern_is_no_matter_to_an_algorithm_without_personal_slots(bundle_of: BundleOf) -> None:
    plain, split = bundle_of("fedavg").plan, bundle_of("fedper").plan
    assert set(plain.slots["w"].tensors) == {"conv.bias", "conv.weight", "head.bias", "head.weight"}
    assert set(split.slots["body"].tensors) == {"conv.bias", "conv.weight"}
    assert plain.personal == split.personal == ("head.bias", "head.weight")


def _plan(name: str, settings: dict[str, float], model: Model) -> Plan:
    """The plan that a bundle would have, without making its graphs."""
    binding = Binding(algorithms.build(name, settings), model)
    functions = entry_functions(binding)
    return plan_of(binding, {entry: trace(function).ports for entry, function in functions.items()})


def test_an_algorithm_with_personal_slots_and_no_pattern_shares_everything() -> None:
    plan = _plan("fedper", {}, tiny_cnn(()))
    assert plan.slots["head"].tensors == {}
    assert set(plan.slots["delta"].tensors) == set(plan.model)


def test_settings_become_defaults() -> None:
    plan = _plan("fedavg", {"lr": 0.5, "server_lr": 0.7}, tiny_cnn())
    assert plan.hyper == {"lr": 0.5, "tune_lr": 0.05}
    assert plan.server == {"server_lr": 0.7, "weighting": "examples"}
    assert plan.fixed == {"inner_steps": 0}


def test_the_same_graph_gives_the_same_bytes_and_no_more_than_it_needs(bundle_of: BundleOf) -> None:
    made = bundle_of("ditto").graphs["onnx"]
    functions = entry_functions(Binding(algorithms.build("ditto", {}), tiny_cnn()))
    for entry in (Entry.STEP, Entry.EVALUATE):
        assert onnx.export(trace(functions[entry])) == made[entry]
    assert sum(map(len, made.values())) < 30_000
    proto = onnx_format.load_from_string(made[Entry.STEP])
    assert not proto.graph.value_info
    assert not any(node.doc_string or node.metadata_props for node in proto.graph.node)


def test_a_bundle_survives_its_file_and_holds_the_initial_model(bundle_of: BundleOf) -> None:
    made = bundle_of("apfl")
    read = bundle.unpack(bundle.pack(made))
    assert read.plan == made.plan
    assert read.graphs == made.graphs
    for name, tensor in tiny_cnn().parameters.items():
        np.testing.assert_array_equal(read.model[name], tensor.numpy())


def test_progress_is_told_and_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    stages: list[str] = []

    def stop(stage: str, entry: Entry) -> None:
        stages.append(f"{stage} {entry}")
        if stage == "onnx":
            raise InterruptedError

    with pytest.raises(InterruptedError):
        build(fedavg(), tiny_cnn(), progress=stop)
    assert stages[0] == "trace begin"
    assert stages[-1] == "onnx begin"
    assert torch.get_num_threads() == before


def test_there_must_be_such_a_runtime() -> None:
    with pytest.raises(ConfigError, match="no runtime 'tvm'") as caught:
        build(fedavg(), tiny_cnn(), runtimes=("tvm",))
    assert "onnx" in caught.value.remedy


@pytest.mark.parametrize("steps", [3, -1])
def test_inner_steps_without_an_inner_step_are_refused_at_export(steps: int) -> None:
    with pytest.raises(PlanError, match=f"inner_steps is {steps}, and it has no inner step") as caught:
        build(algorithms.build("ditto", {"inner_steps": steps}), tiny_cnn())
    assert caught.value.remedy == "Leave inner_steps at 0"
