from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from _graphs import BATCH_X, GRAPHS, LR, SIZE, X, bundle
from _pte import executorch_bundle, lowered
from _runner_library import library_folder

from device_agent.data import Examples, minibatches
from device_agent.evaluate import evaluate
from device_agent.interpreter import Interpreter, Start
from device_agent.runners import Array
from device_agent.runners.executorch import ExecutorchRunner, ExecutorchSettings
from device_agent.runners.library import Library
from device_agent.runners.official import OfficialRunner
from edgepfl.bundle import Bundle, pack, unpack
from edgepfl.errors import BundleError, ConfigError, GraphFailed
from edgepfl.plan import Entry, Graph, Kind, Port, TensorSpec
from edgepfl.tree import Tree

DATA = Examples(
    np.random.default_rng(0).standard_normal((10, 3), dtype=np.float32),
    np.ones(10, np.int64),
    np.arange(21, dtype=np.float32).reshape(7, 3),
    np.array([1, 0, 1, 1, 0, 1, 1]),
)
START = Start({"w": Tree({"mean": np.array([1, 2, 3], np.float32)})}, None, {"lr": 0.25}, seed=4)


def runner(given: Bundle | None = None) -> ExecutorchRunner:
    return ExecutorchRunner(given or executorch_bundle(), ExecutorchSettings(folder=library_folder()))


def step_feeds() -> dict[str, Array]:
    return {
        "x": np.ones(3, np.float32),
        "lr": np.asarray(0.5, np.float32),
        "batch_x": np.ones((SIZE, 3), np.float32) * 3,
        "weight": np.array([1, 1, 0, 0], np.float32),
    }


def drawn(entry: Entry, seed: int) -> dict[str, Array]:
    source = np.random.default_rng(seed)
    return {
        port.name: np.asarray(source.integers(0, 2, port.spec.shape))
        if port.spec.dtype == "int64"
        else np.asarray(source.uniform(0.5, 2, port.spec.shape), np.float32)
        for port in GRAPHS[entry].inputs
    }


def test_a_round_on_executorch_is_the_round_in_numpy() -> None:
    given = unpack(pack(executorch_bundle()))
    result = Interpreter(given.plan, given.model, runner(given)).train(START, DATA, 6)
    x = START.down["w"]["mean"].astype(np.float64)
    losses = []
    for batch in minibatches(DATA, SIZE, 6, START.seed):
        gradient = x - np.average(batch.x[0].astype(np.float64), axis=0, weights=batch.weight)
        losses.append(np.abs(gradient).sum())
        x = x - 0.25 * gradient
    np.testing.assert_allclose(result.upload["delta"]["mean"], x - START.down["w"]["mean"], rtol=1e-5)
    assert result.metrics["loss"] == pytest.approx(np.mean(losses), rel=1e-5)


def test_evaluation_counts_test_rows_and_not_the_filling() -> None:
    given = executorch_bundle()
    found = evaluate(Interpreter(given.plan, given.model, runner()), START, DATA, 3)
    assert found.metrics["accuracy.personal"] == pytest.approx(5 / 7)
    np.testing.assert_array_equal(found.personal["mean"], START.down["w"]["mean"])


@pytest.mark.parametrize("entry", list(GRAPHS))
def test_numbers_are_those_of_executorchs_own_runtime_on_every_call(entry: Entry) -> None:
    native, official = runner(), OfficialRunner(executorch_bundle())
    for seed in range(4):
        feeds = drawn(entry, seed)
        ours, theirs = native.run(entry, feeds), official.run(entry, feeds)
        assert list(ours) == list(theirs) == [port.name for port in GRAPHS[entry].outputs]
        for name, array in ours.items():
            np.testing.assert_array_equal(array, theirs[name])
            assert (array.shape, array.dtype) == (theirs[name].shape, theirs[name].dtype)


def test_feeds_stay_and_outputs_are_the_callers_own() -> None:
    own, feeds = runner(), step_feeds()
    before = {name: array.copy() for name, array in feeds.items()}
    first = own.run(Entry.STEP, feeds)["x_next"]
    copy = first.copy()
    for name, array in feeds.items():
        np.testing.assert_array_equal(array, before[name])
    second = own.run(Entry.STEP, {**feeds, "x": first})["x_next"]
    np.testing.assert_array_equal(first, copy)
    assert not np.shares_memory(first, second)
    same = own.run(Entry.BEGIN, {"w": second})["x"]  # the graph gives its input back
    np.testing.assert_array_equal(same, second)
    assert not np.shares_memory(same, second)


def test_many_threads_share_a_runner_from_its_first_call() -> None:
    own = runner()
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: own.run(Entry.STEP, step_feeds())["x_next"], range(64)))
    assert len(results) == 64
    assert all((result == 2).all() for result in results)


def test_feeds_may_lie_anywhere_in_memory() -> None:
    feeds, own = step_feeds(), runner()
    expected = own.run(Entry.STEP, feeds)["x_next"]
    crooked = np.zeros(SIZE * 3 * 4 + 1, np.uint8)[1:].view(np.float32).reshape(SIZE, 3)
    crooked[:] = feeds["batch_x"]
    strided = np.zeros((SIZE, 6), np.float32)[:, ::2]
    strided[:] = feeds["batch_x"]
    frozen = feeds["batch_x"].copy()
    frozen.setflags(write=False)
    assert crooked.ctypes.data % 4 == 1
    for batch in (crooked, strided, frozen):
        np.testing.assert_array_equal(own.run(Entry.STEP, {**feeds, "batch_x": batch})["x_next"], expected)


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"x": np.ones(5, np.float32)}, r"x: float32\[5\]"),
        ({"x": np.ones(3)}, r"x: float64\[3\]"),
        ({"lr": None}, r"instead of x: float32\[3\], lr: float32\[\]"),
        ({"more": np.ones(3)}, r"more: float64\[3\], instead of"),
    ],
)
def test_wrong_feeds_fail_with_graph_and_shapes(changed: Mapping[str, Array | None], what: str) -> None:
    feeds = {name: array for name, array in {**step_feeds(), **changed}.items() if array is not None}
    for own in (runner(), OfficialRunner(executorch_bundle())):
        with pytest.raises(GraphFailed, match=what) as caught:
            own.run(Entry.STEP, feeds)
        assert caught.value.where == "graph step"
        assert r"batch_x: float32[4, 3]" in caught.value.what


def _planned(entry: Entry, graph: Graph) -> Bundle:
    given = executorch_bundle()
    plan = msgspec.structs.replace(given.plan, graphs={**given.plan.graphs, entry: graph})
    return msgspec.structs.replace(given, plan=plan)


STEP = GRAPHS[Entry.STEP]
WIDE = Port("x", Kind.SLOT, "x", TensorSpec((5,)), "mean")
WHOLE = Port("batch_x", Kind.BATCH, "x", TensorSpec((SIZE, 3), "int64"), "0")


@pytest.mark.parametrize(
    ("graph", "what"),
    [
        (Graph(STEP.inputs[1:], STEP.outputs), "4 in the graph and 3 in the plan"),
        (
            Graph((WIDE, *STEP.inputs[1:]), STEP.outputs),
            r"'x' is float32\[3\] in the graph and float32\[5\] in the plan",
        ),
        (Graph((X, LR, WHOLE, STEP.inputs[3]), STEP.outputs), r"int64\[4, 3\] in the plan"),
        (Graph((LR, X, BATCH_X, STEP.inputs[3]), STEP.outputs), r"'lr' is float32\[3\] in the graph"),
        (Graph(STEP.inputs, STEP.outputs[:1]), "2 in the graph and 1 in the plan"),
    ],
)
def test_a_graph_with_another_border_than_the_plans_is_refused(graph: Graph, what: str) -> None:
    given = _planned(Entry.STEP, graph)
    for own in (runner(given), OfficialRunner(given)):
        with pytest.raises(BundleError, match=what) as caught:
            own.run(Entry.STEP, step_feeds())
        assert "graph step, " in caught.value.where


def test_bytes_that_are_no_graph_are_refused() -> None:
    given = executorch_bundle()
    graphs = {**given.graphs["executorch"], Entry.STEP: b"not a graph"}
    broken = msgspec.structs.replace(given, graphs={"executorch": graphs})
    for own in (runner(broken), OfficialRunner(broken)):
        with pytest.raises(GraphFailed, match="could not load") as caught:
            own.run(Entry.STEP, step_feeds())
        assert caught.value.where == "graph step"
        assert own.run(Entry.BEGIN, {"w": np.ones(3, np.float32)})["x"].tolist() == [1, 1, 1]


def test_a_graph_or_runtime_that_the_bundle_lacks_is_named() -> None:
    for make in (runner, OfficialRunner):
        with pytest.raises(BundleError, match="no such graph") as caught:
            make(executorch_bundle()).run(Entry.TUNE, {})
        assert caught.value.where == "graph tune"
        with pytest.raises(BundleError, match="no executorch graphs, only onnx"):
            make(bundle())


def _twice_and_a_constant(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    double = x + x
    return double, double, torch.tensor([1.0, 2.0]), x.reshape(3, 2), double.reshape(6)


@pytest.mark.parametrize("in_place", [True, False])
def test_an_output_may_be_another_an_input_a_constant_or_a_view(in_place: bool) -> None:  # noqa: FBT001  a parameter
    program = Library(library_folder()).load(lowered(_twice_and_a_constant, (torch.zeros(2, 3),), in_place=in_place))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for scale in (1, 2):
        given = x * scale
        outputs = [np.full(port.shape, np.nan, port.dtype) for port in program.outputs]
        program.run([given.ctypes.data], [output.ctypes.data for output in outputs])
        expected = [2 * given, 2 * given, np.array([1, 2]), given.reshape(3, 2), 2 * given.reshape(6)]
        for output, value in zip(outputs, expected, strict=True):
            np.testing.assert_array_equal(output, value)
    assert program.inputs[0].direct == in_place
    assert program.outputs[0].direct == in_place
    np.testing.assert_array_equal(x, np.arange(6, dtype=np.float32).reshape(2, 3))


def test_a_library_that_is_not_there_is_told_with_its_cure(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be loaded") as caught:
        ExecutorchRunner(executorch_bundle(), ExecutorchSettings(folder=tmp_path))
    assert "edgepfl build-runner" in caught.value.remedy
