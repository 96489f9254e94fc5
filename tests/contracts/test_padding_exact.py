"""Padding rows count for nothing, in every graph; and FedAvg on awkward numbers of examples is exact."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import pytest
from _exported import BATCH, EVERY, examples, exported
from _federation import Federation, assert_same_bits
from _inputs import only
from numpy.typing import NDArray

from device_agent.evaluate import evaluate
from device_agent.interpreter import Start
from device_agent.runners.onnx import OnnxRunner
from edgepfl.bundle import golden_vectors
from edgepfl.plan import Kind
from edgepfl.seeds import generator

Vector: TypeAlias = NDArray[np.float64]
Params: TypeAlias = dict[str, Vector]

LR, SEED = 0.25, 17


@pytest.mark.parametrize("name", EVERY)
def test_what_stands_in_a_padding_row_changes_no_bit_of_any_graphs_outputs(name: str) -> None:
    bundle = exported(name).bundle
    runner = OnnxRunner(bundle)
    weighted = {
        entry: graph
        for entry, graph in bundle.plan.graphs.items()
        if any((port.kind, port.group) == (Kind.BATCH, "weight") for port in graph.inputs)
    }
    assert weighted
    for entry, graph in weighted.items():
        given = golden_vectors(graph, bundle.golden[entry], where=entry).feeds
        padding = given["batch:weight"] == 0
        assert padding.any()
        garbage = {port: np.array(array) for port, array in given.items()}
        garbage["batch:x0"][padding] = 7.5
        garbage["batch:y"][padding] = 2
        assert_same_bits(dict(runner.run(entry, garbage)), dict(runner.run(entry, dict(given))))


def forward(params: Params, x: Vector) -> tuple[Vector, Vector]:
    """The hidden layer before ReLU, and the logits less their logarithmic sum."""
    before = x @ params["body.weight"].T + params["body.bias"]
    logits = np.maximum(before, 0) @ params["head.weight"].T + params["head.bias"]
    return before, logits - np.log(np.exp(logits).sum(1, keepdims=True))


def mean_loss(params: Params, x: Vector, y: NDArray[np.int64]) -> float:
    return float(-forward(params, x)[1][np.arange(len(y)), y].mean())


def gradient(params: Params, x: Vector, y: NDArray[np.int64]) -> Params:
    """By hand: of the mean cross-entropy over these rows alone."""
    before, log_odds = forward(params, x)
    at_logits = (np.exp(log_odds) - np.eye(3)[y]) / len(y)
    at_hidden = (at_logits @ params["head.weight"]) * (before > 0)
    return {
        "body.bias": at_hidden.sum(0),
        "body.weight": at_hidden.T @ x,
        "head.bias": at_logits.sum(0),
        "head.weight": at_logits.T @ np.maximum(before, 0),
    }


def one_epoch(params: Params, x: Vector, y: NDArray[np.int64]) -> tuple[Params, float]:
    """SGD over each example once, the last minibatch as short as it is; and the mean loss over the minibatches."""
    order = generator(SEED, "minibatch", 0).permutation(len(x))
    cuts = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
    losses = []
    for rows in cuts:
        losses.append(mean_loss(params, x[rows], y[rows]))
        slope = gradient(params, x[rows], y[rows])
        params = {name: params[name] - LR * slope[name] for name in params}
    return params, float(np.mean(losses))


@pytest.mark.parametrize("count", [1, 3, 4, 7, 10])
def test_an_epoch_of_fedavg_is_exact_for_every_number_of_examples(count: int) -> None:
    federation = Federation(exported("fedavg"))
    data = examples("pi-9", count, 6).fit(federation.plan)
    w: Params = {name: np.asarray(array, np.float64) for name, array in federation.state["w"].items()}
    expected, loss = one_epoch(w, only(data.train_x).astype(np.float64), data.train_y)
    start = Start(federation.state, None, {"lr": LR}, SEED)
    result = federation.interpreter.train(start, data, -(-count // BATCH))
    for name, array in result.upload["delta"].items():
        np.testing.assert_allclose(array, expected[name] - w[name], rtol=0, atol=2e-6)
    assert result.metrics["loss"] == pytest.approx(loss, rel=1e-5)
    assert max(float(np.abs(array).max()) for array in result.upload["delta"].values()) > 1e-2


@pytest.mark.parametrize("count", [1, 3, 4, 9])
def test_an_evaluation_is_exact_for_every_number_of_examples(count: int) -> None:
    federation = Federation(exported("fedavg"))
    data = examples("pi-9", 5, count).fit(federation.plan)
    w: Params = {name: np.asarray(array, np.float64) for name, array in federation.state["w"].items()}
    x, y = only(data.test_x).astype(np.float64), data.test_y
    found = evaluate(federation.interpreter, Start(federation.state, None, {}, SEED), data, 0)
    assert found.metrics["loss.global"] == pytest.approx(mean_loss(w, x, y), rel=1e-5)
    assert found.metrics["accuracy.global"] == pytest.approx(float((forward(w, x)[1].argmax(1) == y).mean()))
