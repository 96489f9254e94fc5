"""FedProx against a NumPy program, the exact proximal step and its fixed point."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from _driver import Federation, Round, normalised, schedule
from _problems import Problem, Quadratic, Softmax, Vector, flat

from edgepfl.algorithms.fedavg import FedAvg
from edgepfl.algorithms.fedprox import FedProx
from edgepfl.plan import Weighting

PROBLEMS = [Quadratic(4), Softmax(4)]


def fedprox(
    problem: Problem,
    draws: Round,
    w: Vector,
    lr: float,
    mu: float,
    weighting: Weighting = Weighting.EXAMPLES,
    gamma: dict[str, float] | None = None,
) -> Vector:
    """One round, written from the paper's algorithm 2 with SGD as its solver; notes each device's inexactness."""
    models, counts = [], []
    for device, batches in draws.items():
        x, norms = w.copy(), []
        for draw in batches:
            direction = problem.gradient(device, x, draw) + mu * (x - w)
            norms.append(np.linalg.norm(direction))
            x = x - lr * direction
        models.append(x)
        counts.append(problem.examples[device] if weighting is Weighting.EXAMPLES else 1)
        if gamma is not None:
            gamma[device] = float(norms[-1] / norms[0])
    return np.average(models, axis=0, weights=counts)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: type(problem).__name__)
@pytest.mark.parametrize("weighting", list(Weighting))
def test_follows_the_numpy_program(problem: Problem, weighting: Weighting) -> None:
    federation = Federation(FedProx(lr=0.11, mu=0.7, weighting=weighting), problem)
    w = problem.start()
    for draws in schedule(problem, rounds=6):
        federation.round(draws)
        gamma: dict[str, float] = {}
        w = fedprox(problem, draws, w, 0.11, 0.7, weighting, gamma)
        np.testing.assert_allclose(flat(federation.state["w"]), w, rtol=1e-10)
        np.testing.assert_allclose(federation.predictor("pi-0"), w, rtol=1e-10)
        for device in draws:
            np.testing.assert_allclose(federation.told[device]["gamma"], gamma[device], rtol=1e-10)
    assert FedProx().weighting is Weighting.EXAMPLES


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: type(problem).__name__)
@pytest.mark.parametrize("weighting", list(Weighting))
def test_without_a_pull_it_is_fedavg_bit_for_bit(problem: Problem, weighting: Weighting) -> None:
    prox = Federation(FedProx(lr=0.11, mu=0.0, weighting=weighting), problem)
    plain = Federation(FedAvg(lr=0.11, weighting=weighting), problem)
    pulled = Federation(FedProx(lr=0.11, mu=0.1, weighting=weighting), problem)
    for draws in schedule(problem, rounds=5):
        for federation in (prox, plain, pulled):
            federation.round(draws)
        for name, tensor in plain.state["w"].items():
            assert torch.equal(prox.state["w"][name], tensor)
    assert np.abs(flat(pulled.state["w"]) - flat(plain.state["w"])).max() > 1e-4


def test_many_steps_reach_the_exact_proximal_point() -> None:
    problem, mu = Quadratic(1), 0.9
    federation = Federation(FedProx(lr=0.4, mu=mu), problem)
    federation.round_of({"pi-0": [problem.whole("pi-0")] * 60})
    exact = problem.prox("pi-0", problem.start(), mu)
    np.testing.assert_allclose(flat(federation.state["w"]), exact, rtol=1e-9)
    moreau = problem.start() - problem.A["pi-0"] @ (exact - problem.b["pi-0"]) / mu
    np.testing.assert_allclose(exact, moreau, rtol=1e-9)


def test_the_inexactness_is_the_definitions_and_falls_with_more_work() -> None:
    problem, mu, lr = Quadratic(1), 0.9, 0.3
    federation = Federation(FedProx(lr=lr, mu=mu), problem)
    H = problem.A["pi-0"] + mu * np.eye(6)
    start = problem.A["pi-0"] @ (problem.start() - problem.b["pi-0"])  # the gradient of h at w is that of f
    told = []
    for steps in (1, 2, 5, 60):
        federation.train("pi-0", [problem.whole("pi-0")] * steps)
        told.append(federation.told["pi-0"]["gamma"])
        at_last = np.linalg.matrix_power(np.eye(6) - lr * H, steps - 1) @ start
        wanted = np.linalg.norm(at_last) / np.linalg.norm(start)
        np.testing.assert_allclose(told[-1], wanted, rtol=1e-6, atol=1e-14)
    assert told[0] == 1 > told[1] > told[2] > told[3]
    assert told[3] < 1e-9


def test_a_round_without_a_step_tells_no_inexactness() -> None:
    problem = Quadratic(1)
    federation = Federation(FedProx(), problem)
    upload = federation.train("pi-0", [])
    assert federation.told["pi-0"] == {"gamma": 0.0}
    assert not flat(upload["delta"]).any()


def test_settles_where_the_proximal_changes_cancel_and_not_at_the_minimiser() -> None:
    problem, mu = Quadratic(4, spectrum=(1.0, 2.0)), 0.7
    federation = Federation(FedProx(lr=0.4, mu=mu), problem)
    for _ in range(40):
        federation.round_of({device: [problem.whole(device)] * 25 for device in problem.examples})
    w, p = flat(federation.state["w"]), normalised(problem.examples)
    M = {k: np.linalg.solve(A + mu * np.eye(6), A) for k, A in problem.A.items()}
    changes = [p[k] * M[k] @ (w - problem.b[k]) for k in p]
    np.testing.assert_allclose(np.sum(changes, axis=0), np.zeros(6), atol=1e-10)
    assert np.abs(w - problem.minimiser(p)).max() > 0.01


def test_a_device_that_stops_early_still_counts() -> None:
    problem = Quadratic(4)
    (draws,) = schedule(problem, rounds=1, share=1.0)
    uneven = {device: batches[: 1 + place] for place, (device, batches) in enumerate(sorted(draws.items()))}
    federation = Federation(FedProx(lr=0.2, mu=0.3), problem)
    federation.round(uneven)
    expected = fedprox(problem, uneven, problem.start(), 0.2, 0.3)
    np.testing.assert_allclose(flat(federation.state["w"]), expected, rtol=1e-10)
    assert np.abs(expected - fedprox(problem, draws, problem.start(), 0.2, 0.3)).max() > 1e-3
