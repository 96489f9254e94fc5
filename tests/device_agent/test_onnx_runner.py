from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pytest
from _graphs import BATCH_X, GRAPHS, LR, SIZE, X, bundle

from device_agent.data import Examples, minibatches
from device_agent.evaluate import evaluate
from device_agent.interpreter import Interpreter, Start
from device_agent.runners import Array
from device_agent.runners.onnx import OnnxRunner, OnnxSettings
from edgepfl.bundle import Bundle, pack, unpack
from edgepfl.errors import BundleError, GraphFailed
from edgepfl.plan import Entry, Graph, Kind, Port, TensorSpec
from edgepfl.tree import Tree

DATA = Examples(
    np.random.default_rng(0).standard_normal((10, 3), dtype=np.float32),
    np.ones(10, np.int64),
    np.arange(21, dtype=np.float32).reshape(7, 3),
    np.array([1, 0, 1, 1, 0, 1, 1]),
)
START = Start({"w": Tree({"mean": np.array([1, 2, 3], np.float32)})}, None, {"lr": 0.25}, seed=4)


def step_feeds() -> dict[str, Array]:
    return {
        "x": np.ones(3, np.float32),
        "lr": np.asarray(0.5, np.float32),
        "batch_x": np.ones((SIZE, 3), np.float32) * 3,
        "weight": np.array([1, 1, 0, 0], np.float32),
    }


@pytest.mark.parametrize("settings", [OnnxSettings(), OnnxSettings(threads=2, spin=True)])
def test_a_round_on_onnx_runtime_is_the_round_in_numpy(settings: OnnxSettings) -> None:
    given = unpack(pack(bundle()))
    interpreter = Interpreter(given.plan, given.model, OnnxRunner(given, settings))
    result = interpreter.train(START, DATA, 6)
    x = START.down["w"]["mean"].astype(np.float64)
    losses = []
    for batch in minibatches(DATA, SIZE, 6, START.seed):
        gradient = x - np.average(batch.x[0].astype(np.float64), axis=0, weights=batch.weight)
        losses.append(np.abs(gradient).sum())
        x = x - 0.25 * gradient
    np.testing.assert_allclose(result.upload["delta"]["mean"], x - START.down["w"]["mean"], rtol=1e-5)
    assert result.metrics["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert result.keep == {}


def test_evaluation_counts_test_rows_and_not_the_filling() -> None:
    given = bundle()
    found = evaluate(Interpreter(given.plan, given.model, OnnxRunner(given)), START, DATA, 3)
    assert found.metrics["accuracy.personal"] == pytest.approx(5 / 7)
    np.testing.assert_array_equal(found.personal["mean"], START.down["w"]["mean"])


def test_outputs_are_the_callers_own() -> None:
    runner, feeds = OnnxRunner(bundle()), step_feeds()
    first = runner.run(Entry.STEP, feeds)["x_next"]
    copy = first.copy()
    feeds["x"] = np.zeros(3, np.float32)
    second = runner.run(Entry.STEP, feeds)["x_next"]
    np.testing.assert_array_equal(first, copy)
    assert not np.shares_memory(first, second)


def test_many_threads_share_a_runner_from_its_first_call() -> None:
    runner = OnnxRunner(bundle())
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: runner.run(Entry.STEP, step_feeds())["x_next"], range(64)))
    assert len(results) == 64
    assert all((result == 2).all() for result in results)


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"x": np.ones(5, np.float32)}, r"x: float32\[5\]"),
        ({"x": np.ones(3)}, r"x: float64\[3\]"),
        ({"lr": None}, "could not run it"),
    ],
)
def test_wrong_feeds_fail_with_graph_and_shapes(changed: Mapping[str, Array | None], what: str) -> None:
    feeds = {name: array for name, array in {**step_feeds(), **changed}.items() if array is not None}
    with pytest.raises(GraphFailed, match=what) as caught:
        OnnxRunner(bundle()).run(Entry.STEP, feeds)
    assert caught.value.where == "graph step"
    assert r"batch_x: float32[4, 3]" in caught.value.what


def _planned(entry: Entry, graph: Graph) -> Bundle:
    given = bundle()
    return msgspec.structs.replace(
        given, plan=msgspec.structs.replace(given.plan, graphs={**given.plan.graphs, entry: graph})
    )


STEP = GRAPHS[Entry.STEP]
WIDE = Port("x", Kind.SLOT, "x", TensorSpec((5,)), "mean")
WHOLE = Port("batch_x", Kind.BATCH, "x", TensorSpec((SIZE, 3), "int64"))


@pytest.mark.parametrize(
    ("graph", "what"),
    [
        (Graph(STEP.inputs[1:], STEP.outputs), r"'x' is float32\[3\] in the graph and missing in the plan"),
        (Graph((*STEP.inputs, X, GRAPHS[Entry.BEGIN].inputs[0]), STEP.outputs), "'w' is missing in the graph"),
        (Graph((WIDE, *STEP.inputs[1:]), STEP.outputs), r"float32\[3\] in the graph and float32\[5\] in the plan"),
        (Graph((X, LR, WHOLE, STEP.inputs[3]), STEP.outputs), r"int64\[4, 3\] in the plan"),
        (Graph(STEP.inputs, STEP.outputs[:1]), "'loss' is"),
    ],
)
def test_a_graph_with_another_border_than_the_plans_is_refused(graph: Graph, what: str) -> None:
    runner = OnnxRunner(_planned(Entry.STEP, graph))
    with pytest.raises(BundleError, match=what) as caught:
        runner.run(Entry.STEP, step_feeds())
    assert "graph step, " in caught.value.where
    assert BATCH_X in STEP.inputs


def test_bytes_that_are_no_graph_are_refused() -> None:
    given = bundle()
    broken = msgspec.structs.replace(given, graphs={"onnx": {**given.graphs["onnx"], Entry.STEP: b"not a graph"}})
    runner = OnnxRunner(broken)
    with pytest.raises(GraphFailed, match="could not load") as caught:
        runner.run(Entry.STEP, step_feeds())
    assert caught.value.where == "graph step"
    assert runner.run(Entry.BEGIN, {"w": np.ones(3, np.float32)})["x"].tolist() == [1, 1, 1]


def test_a_graph_or_runtime_that_the_bundle_lacks_is_named() -> None:
    with pytest.raises(BundleError, match="no such graph") as caught:
        OnnxRunner(bundle()).run(Entry.TUNE, {})
    assert caught.value.where == "graph tune"
    with pytest.raises(BundleError, match="no onnx graphs, only executorch"):
        OnnxRunner(msgspec.structs.replace(bundle(), graphs={"executorch": {}}))
