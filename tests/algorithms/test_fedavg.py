"""FedAvg against a NumPy program and the closed forms of full-batch steps on quadratics."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from _driver import Federation, Round, normalised, schedule
from _problems import Problem, Quadratic, Softmax, Vector, flat

from edgepfl.algorithms.fedavg import FedAvg
from edgepfl.plan import Weighting

PROBLEMS = [Quadratic(4), Softmax(4)]


def fedavg(problem: Problem, draws: Round, w: Vector, settings: FedAvg) -> Vector:
    """One round, written from the paper's algorithm 1."""
    change, total = np.zeros_like(w), 0.0
    for device, batches in draws.items():
        x = w.copy()
        for draw in batches:
            x -= settings.lr * problem.gradient(device, x, draw)
        weight = problem.examples[device] if settings.weighting is Weighting.EXAMPLES else 1
        change += weight * (x - w)
        total += weight
    return w + settings.server_lr * change / total


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: type(problem).__name__)
@pytest.mark.parametrize("weighting", list(Weighting))
def test_follows_the_numpy_program(problem: Problem, weighting: Weighting) -> None:
    federation = Federation(FedAvg(lr=0.11, server_lr=0.8, weighting=weighting), problem)
    w = problem.start()
    for draws in schedule(problem, rounds=6):
        federation.round(draws)
        w = fedavg(problem, draws, w, FedAvg(lr=0.11, server_lr=0.8, weighting=weighting))
        np.testing.assert_allclose(flat(federation.state["w"]), w, rtol=1e-10)
        np.testing.assert_allclose(federation.predictor("pi-0"), w, rtol=1e-10)


def settled(problem: Quadratic, algorithm: FedAvg, *, steps: int, rounds: int) -> Vector:
    """The global model after many rounds of full-batch steps by everyone."""
    federation = Federation(algorithm, problem)
    batches = {device: [problem.whole(device)] * steps for device in problem.examples}
    for _ in range(rounds):
        federation.round_of(batches)
    return flat(federation.state["w"])


def test_five_local_steps_settle_at_the_biased_fixed_point() -> None:
    problem, lr = Quadratic(5), 0.2
    p = normalised(problem.examples)
    P = {k: np.eye(6) - np.linalg.matrix_power(np.eye(6) - lr * A, 5) for k, A in problem.A.items()}
    left = sum(p[k] * P[k] for k in P)
    right = sum((p[k] * P[k] @ problem.b[k] for k in P), np.zeros(6))
    w = settled(problem, FedAvg(lr=lr), steps=5, rounds=60)
    np.testing.assert_allclose(w, np.linalg.solve(left, right), rtol=1e-9)
    assert np.abs(w - problem.minimiser(p)).max() > 0.01


@pytest.mark.parametrize("weighting", list(Weighting))
def test_one_local_step_is_gradient_descent_to_the_global_minimiser(weighting: Weighting) -> None:
    problem = Quadratic(5)
    uniform = dict.fromkeys(problem.examples, 1.0)
    p = normalised(problem.examples if weighting is Weighting.EXAMPLES else uniform)
    once = settled(problem, FedAvg(lr=0.3, weighting=weighting), steps=1, rounds=1)
    w = problem.start()
    gradient = sum((p[k] * problem.A[k] @ (w - problem.b[k]) for k in p), np.zeros(6))
    np.testing.assert_allclose(once, w - 0.3 * gradient, rtol=1e-12)
    end = settled(problem, FedAvg(lr=0.5, weighting=weighting), steps=1, rounds=120)
    np.testing.assert_allclose(end, problem.minimiser(p), rtol=1e-9)


def test_the_two_weightings_differ() -> None:
    problem = Quadratic(5)
    by_examples = settled(problem, FedAvg(lr=0.3), steps=2, rounds=3)
    uniform = settled(problem, FedAvg(lr=0.3, weighting=Weighting.UNIFORM), steps=2, rounds=3)
    assert FedAvg().weighting is Weighting.EXAMPLES
    assert np.abs(by_examples - uniform).max() > 0.01


def test_one_device_is_local_training() -> None:
    problem = Softmax(1)
    federation = Federation(FedAvg(lr=0.2), problem)
    w = problem.start()
    for draws in schedule(problem, rounds=5, share=1.0):
        federation.round(draws)
        for draw in draws["pi-0"]:
            w = w - 0.2 * problem.gradient("pi-0", w, draw)
        np.testing.assert_allclose(flat(federation.state["w"]), w, rtol=1e-10)
    assert np.abs(w - problem.start()).max() > 0.1


def test_identical_devices_are_one_device() -> None:
    many, one = Softmax(4), Softmax(4)
    many.x = dict.fromkeys(many.x, many.x["pi-0"])
    many.y = dict.fromkeys(many.y, many.y["pi-0"])
    rows = [[0, 1, 2], [3, 4], [5, 0, 1]]
    together, alone = Federation(FedAvg(lr=0.2), many), Federation(FedAvg(lr=0.2), one)
    for _ in range(5):
        together.round({device: [many.draw("pi-0", part) for part in rows] for device in many.examples})
        alone.round({"pi-0": [one.draw("pi-0", part) for part in rows]})
        np.testing.assert_allclose(flat(together.state["w"]), flat(alone.state["w"]), rtol=1e-12)
    assert np.abs(flat(alone.state["w"]) - one.start()).max() > 0.1


def test_tuning_is_local_steps_from_the_global_model_and_leaves_it_alone() -> None:
    problem = Softmax(4)
    federation = Federation(FedAvg(lr=0.1, tune_lr=0.4), problem)
    (draws, *_) = schedule(problem, rounds=1, steps=4)
    device = min(draws)
    v = problem.start()
    for draw in draws[device]:
        v = v - 0.4 * problem.gradient(device, v, draw)
    tuned = federation.predictor(device, [problem.batch(device, draw) for draw in draws[device]])
    np.testing.assert_allclose(tuned, v, rtol=1e-10)
    np.testing.assert_array_equal(federation.predictor(device), problem.start())


def test_the_servers_step_scales_the_mean_change() -> None:
    problem = Quadratic(4)
    (draws,) = schedule(problem, rounds=1)
    full, half = (Federation(replace(FedAvg(), server_lr=size), problem) for size in (1.0, 0.5))
    full.round(draws)
    half.round(draws)
    change = flat(full.state["w"]) - problem.start()
    np.testing.assert_allclose(flat(half.state["w"]) - problem.start(), change / 2, rtol=1e-12)
    assert np.abs(change).max() > 0.01
