"""Ditto on an exported graph, carried out by the agent, against the same mathematics in torch."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from device_agent.data import Examples, minibatches
from device_agent.evaluate import evaluate
from device_agent.interpreter import Interpreter, RoundResult, Start
from device_agent.runners import Runner
from device_agent.runners.onnx import OnnxRunner
from edgepfl.algorithms.ditto import Ditto
from edgepfl.bundle import Bundle, pack, unpack
from edgepfl.tree import Tree
from exporters.build import build
from exporters.zoo import mlp

STEPS, LR, LAM, SEED = 7, 0.2, 0.3, 11
Params = dict[str, torch.Tensor]

_SOURCE = np.random.default_rng(1)
DATA = Examples(
    _SOURCE.standard_normal((10, 6), dtype=np.float32),
    _SOURCE.integers(0, 3, 10),
    _SOURCE.standard_normal((7, 6), dtype=np.float32),
    _SOURCE.integers(0, 3, 7),
)


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return unpack(pack(build(Ditto(), mlp(inputs=6, hidden=5, classes=3, batch=4))))


def loss(params: Params, x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    hidden = torch.relu(x @ params["body.weight"].T + params["body.bias"])
    logits = hidden @ params["head.weight"].T + params["head.bias"]
    each = torch.nn.functional.cross_entropy(logits, y, reduction="none")
    return (weight * each).sum() / weight.sum()


def gradient(params: Params, batch: tuple[torch.Tensor, ...]) -> Params:
    leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in params.items()}
    grads = torch.autograd.grad(loss(leaves, *batch), list(leaves.values()))
    return dict(zip(leaves, grads, strict=True))


def ditto_by_hand(w: Params, v: Params, seed: int) -> tuple[Params, Params]:
    """Double precision: how the global model moves, and the personal model."""
    x = w
    for rows in minibatches(DATA, 4, STEPS, seed):
        batch = (torch.tensor(rows.x[0]).double(), torch.tensor(rows.y), torch.tensor(rows.weight).double())
        gx, gv = gradient(x, batch), gradient(v, batch)
        x = {name: x[name] - LR * gx[name] for name in x}
        v = {name: v[name] - LR * (gv[name] + LAM * (v[name] - w[name])) for name in v}
    return {name: x[name] - w[name] for name in x}, v


def double(tree: Tree) -> Params:
    return {name: torch.tensor(np.array(array)).double() for name, array in tree.items()}


def assert_close(found: Tree, expected: Params) -> None:
    assert set(found) == set(expected)
    for name, array in found.items():
        np.testing.assert_allclose(array, expected[name].numpy(), rtol=1e-4, atol=2e-6)


def two_rounds(bundle: Bundle) -> tuple[RoundResult, RoundResult]:
    interpreter = Interpreter(bundle.plan, bundle.model, OnnxRunner(bundle))
    hyper = {"lr": LR, "lam": LAM}
    first = interpreter.train(Start({"w": bundle.model}, None, hyper, SEED), DATA, STEPS)
    moved = bundle.model.zip(lambda a, b: a + b, first.upload["delta"])
    return first, interpreter.train(Start({"w": moved}, first.keep, hyper, SEED + 1), DATA, STEPS)


def test_two_rounds_on_exported_graphs_are_dittos(bundle: Bundle) -> None:
    first, second = two_rounds(bundle)
    w = double(bundle.model)
    delta, v = ditto_by_hand(w, w, SEED)
    assert_close(first.upload["delta"], delta)
    assert_close(first.keep["v"], v)
    w = {name: w[name] + delta[name] for name in w}
    delta, v = ditto_by_hand(w, v, SEED + 1)
    assert_close(second.upload["delta"], delta)
    assert_close(second.keep["v"], v)


def test_doing_it_again_gives_the_same_bits(bundle: Bundle) -> None:
    once, again = two_rounds(bundle), two_rounds(unpack(pack(bundle)))
    for a, b in zip(once, again, strict=True):
        assert a.metrics == b.metrics
        for name in bundle.model:
            np.testing.assert_array_equal(a.keep["v"][name], b.keep["v"][name])


class Single:
    """A runner whose every call is a run of its own."""

    def __init__(self, runner: Runner) -> None:
        self.run = runner.run


def test_repeated_calls_change_no_bit_and_no_result_of_another_training(bundle: Bundle) -> None:
    shared = Interpreter(bundle.plan, bundle.model, OnnxRunner(bundle))
    single = Interpreter(bundle.plan, bundle.model, Single(OnnxRunner(bundle)))

    def train(interpreter: Interpreter, seed: int) -> RoundResult:
        return interpreter.train(Start({"w": bundle.model}, None, {"lr": LR}, seed), DATA, STEPS)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda seed: train(shared, seed), range(12)))
    for seed, result in enumerate(found):
        expected = train(single, seed)
        assert result.metrics == expected.metrics
        for name in bundle.model:
            np.testing.assert_array_equal(result.keep["v"][name], expected.keep["v"][name])
            np.testing.assert_array_equal(result.upload["delta"][name], expected.upload["delta"][name])


def test_both_models_are_evaluated_on_every_test_row(bundle: Bundle) -> None:
    interpreter = Interpreter(bundle.plan, bundle.model, OnnxRunner(bundle))
    first, _ = two_rounds(bundle)
    found = evaluate(interpreter, Start({"w": bundle.model}, first.keep, {}, SEED), DATA, 0)
    rows = (torch.tensor(DATA.test_x).double(), torch.tensor(DATA.test_y), torch.ones(7, dtype=torch.float64))
    for name, params in (("personal", first.keep["v"]), ("global", bundle.model)):
        assert found.metrics[f"loss.{name}"] == pytest.approx(loss(double(params), *rows).item(), rel=1e-5)
    np.testing.assert_array_equal(found.personal["head.bias"], first.keep["v"]["head.bias"])
