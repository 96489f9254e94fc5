"""L2SGD against a NumPy program of single iterations, its optimum, and its limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from _driver import Federation, Round, normalised, schedule
from _problems import Problem, Quadratic, Softmax, Vector, flat, tree_of

from edgepfl import algorithms
from edgepfl.algorithms import Minibatch, Setting
from edgepfl.algorithms.fedavg import FedAvg
from edgepfl.algorithms.l2sgd import L2SGD, MOST_STEPS
from edgepfl.errors import ConfigError
from edgepfl.plan import Weighting
from edgepfl.tree import Trees

PROBLEMS = [Quadratic(4), Softmax(4)]
IDS = ["Quadratic", "Softmax"]


@dataclass
class Program:
    """The paper's algorithm 1: each iteration is a local step, or a step towards the mean."""

    problem: Problem
    settings: L2SGD
    xbar: Vector
    x: dict[str, Vector]

    def round(self, heads: int, draws: Round) -> None:
        a, p = self.settings.lr, self.settings.p
        for device, batches in draws.items():
            x = self.x.get(device, self.xbar)
            for _ in range(heads):
                omega = a * self.settings.lam / p
                x = (1 - omega) * x + omega * self.xbar
            for draw in batches:
                x = x - a / (1 - p) * self.problem.gradient(device, x, draw)
            self.x[device] = x
        by_examples = self.settings.weighting is Weighting.EXAMPLES
        weights = [self.problem.examples[device] if by_examples else 1 for device in draws]
        self.xbar = np.average([self.x[device] for device in draws], axis=0, weights=weights)


@pytest.mark.parametrize("problem", PROBLEMS, ids=IDS)
@pytest.mark.parametrize("weighting", list(Weighting))
def test_follows_the_program_of_single_iterations(problem: Problem, weighting: Weighting) -> None:
    settings = L2SGD(lr=0.15, lam=1.2, p=0.4, weighting=weighting)
    federation = Federation(settings, problem, coins=np.random.default_rng(7))
    program = Program(problem, settings, problem.start(), {})
    coins, lengths = np.random.default_rng(7), np.random.default_rng(8)
    rows = set()
    for number in range(8):
        heads, tails = int(coins.geometric(1 - settings.p)), settings.local_steps(3, lengths)
        (draws,) = schedule(problem, rounds=1, steps=tails, seed=number)
        federation.round(draws)
        program.round(heads, draws)
        rows |= {(heads, tails)}
        np.testing.assert_allclose(flat(federation.state["xbar"]), program.xbar, rtol=1e-10)
        for device, x in program.x.items():
            np.testing.assert_allclose(flat(federation.kept[device]["x"]), x, rtol=1e-10)
    assert len(rows) > 4


def moved(
    problem: Quadratic, settings: L2SGD, x: Mapping[str, Vector], xbar: Vector, *, steps: int
) -> dict[str, Vector]:
    """Each device's model after a round with ``settings.omega`` and so many full-batch steps."""
    federation = Federation(settings, problem)
    federation.state = {"xbar": tree_of(xbar, problem.shapes)}
    federation.kept = {device: {"x": tree_of(x[device], problem.shapes)} for device in x}
    for device in x:
        federation.train(device, [problem.whole(device)] * steps)
    return {device: flat(federation.kept[device]["x"]) for device in x}


def expected(
    problem: Quadratic, settings: L2SGD, x: Mapping[str, Vector], share: Mapping[str, float]
) -> dict[str, Vector]:
    """The mean over its coin of one iteration from ``x``."""
    p = settings.p
    xbar = sum((share[k] * x[k] for k in x), np.zeros(6))
    tails = moved(problem, replace(settings, omega=0.0), x, xbar, steps=1)
    heads = moved(problem, replace(settings, omega=settings.lr * settings.lam / p), x, xbar, steps=0)
    return {k: (1 - p) * tails[k] + p * heads[k] for k in x}


def optimum(problem: Quadratic, lam: float, share: Mapping[str, float]) -> dict[str, Vector]:
    """pFedMe's: ``xbar = (sum M_k)^-1 sum M_k b_k`` with ``M_k = A_k (A_k + lam)^-1``, and each device's prox of it."""
    M = {k: A @ np.linalg.inv(A + lam * np.eye(6)) for k, A in problem.A.items()}
    left = sum((share[k] * M[k] for k in M), np.zeros((6, 6)))
    right = sum((share[k] * M[k] @ problem.b[k] for k in M), np.zeros(6))
    xbar = np.linalg.solve(left, right)
    return {k: problem.prox(k, xbar, lam) for k in M}


@pytest.mark.parametrize("p", [0.1, 0.6])
def test_an_iteration_is_in_expectation_a_gradient_step_on_the_objective(p: float) -> None:
    problem, rng = Quadratic(4), np.random.default_rng(3)
    settings = L2SGD(lr=0.05, lam=0.9, p=p)
    x = {device: rng.normal(size=6) for device in problem.examples}
    xbar = np.mean(list(x.values()), axis=0)
    found = expected(problem, settings, x, dict.fromkeys(x, 0.25))
    for device, start in x.items():
        gradient = problem.A[device] @ (start - problem.b[device]) + settings.lam * (start - xbar)
        np.testing.assert_allclose(found[device], start - settings.lr * gradient, rtol=1e-12)
        assert np.abs(found[device] - start).max() > 0.01


@pytest.mark.parametrize("weighting", list(Weighting))
def test_in_expectation_it_settles_at_pfedmes_optimum(weighting: Weighting) -> None:
    problem = Quadratic(4, spectrum=(1.0, 2.0))
    settings = L2SGD(lr=0.5, lam=0.8, p=0.45, weighting=weighting)
    share = normalised(problem.examples if weighting is Weighting.EXAMPLES else dict.fromkeys(problem.examples, 1.0))
    x = dict.fromkeys(problem.examples, problem.start())
    for _ in range(60):
        x = expected(problem, settings, x, share)
    best = optimum(problem, settings.lam, share)
    for device in x:
        np.testing.assert_allclose(x[device], best[device], rtol=1e-9)
    pulls = [share[k] * problem.A[k] @ (x[k] - problem.b[k]) for k in x]
    np.testing.assert_allclose(np.sum(pulls, axis=0), 0, atol=1e-9)


@dataclass(frozen=True)
class Recorded(L2SGD):
    """Notes every iterate, the merged ones of a round's opening too."""

    path: ClassVar[list[Vector]] = []

    def begin(self, s: Trees) -> Trees:
        x, xbar, single = s["x"], s["xbar"], self.lr * self.lam / self.p
        heads = round(float(np.log1p(-self.omega) / np.log1p(-single)))
        self.path.extend(flat(xbar + (1 - single) ** i * (x - xbar)) for i in range(1, heads + 1))
        return super().begin(s)

    def step(self, s: Trees, b: Minibatch) -> Trees:
        after = super().step(s, b)
        self.path.append(flat(after["y"]))
        return after


def test_the_time_average_is_near_the_optimum_and_the_last_iterate_is_not() -> None:
    problem = Quadratic(3)
    settings = Recorded(lr=0.1, lam=0.8, p=0.3)
    federation = Federation(settings, problem)
    coins = np.random.default_rng(2)
    sums, count = dict.fromkeys(problem.examples, np.zeros(6)), 0
    for number in range(200):
        steps = settings.local_steps(1, coins)
        federation.algorithm = replace(settings, omega=settings.round_hyper(number, coins)["omega"])
        uploads = {}
        for device in problem.examples:
            settings.path.clear()
            uploads[device] = federation.train(device, [problem.whole(device)] * steps)["delta"]
            if number >= 20:
                sums[device] = sums[device] + np.sum(settings.path, axis=0)
        count += len(settings.path) * (number >= 20)
        deltas = list(uploads.values())
        federation.state = {"xbar": federation.state["xbar"] + sum(deltas[1:], deltas[0]) / len(deltas)}
    best = optimum(problem, settings.lam, dict.fromkeys(problem.examples, 1 / 3))
    apart = max(np.abs(sums[k] / count - best[k]).max() for k in best)
    last = max(np.abs(flat(federation.kept[k]["x"]) - best[k]).max() for k in best)
    assert apart < 0.03
    assert last > 10 * apart


@pytest.mark.parametrize("heads", [1, 2, 5])
def test_merged_averaging_steps_equal_single_ones_and_leave_the_mean(heads: int) -> None:
    problem, rng = Quadratic(4), np.random.default_rng(4)
    single = 0.3
    x = {device: rng.normal(size=6) for device in problem.examples}
    xbar = np.mean(list(x.values()), axis=0)
    stepwise = x
    for _ in range(heads):
        stepwise = moved(problem, L2SGD(omega=single), stepwise, xbar, steps=0)
    merged = moved(problem, L2SGD(omega=1 - (1 - single) ** heads), x, xbar, steps=0)
    for device in x:
        np.testing.assert_allclose(merged[device], stepwise[device], rtol=1e-12)
    np.testing.assert_allclose(np.mean(list(merged.values()), axis=0), xbar, rtol=1e-12)


def test_the_coins_are_geometric_and_the_weight_is_that_of_a_row_of_heads() -> None:
    settings, coins = L2SGD(lr=0.2, lam=0.5, p=0.25), np.random.default_rng(0)
    lengths = [settings.local_steps(99, coins) for _ in range(4000)]
    omegas = np.array([settings.round_hyper(2, coins)["omega"] for _ in range(4000)])
    heads = np.log(1 - omegas) / np.log(1 - 0.2 * 0.5 / 0.25)
    np.testing.assert_allclose(heads, np.rint(heads), rtol=1e-9)
    assert min(lengths) == heads.min().round() == 1
    assert np.mean(lengths) == pytest.approx(1 / 0.25, rel=0.05)
    assert heads.mean() == pytest.approx(1 / 0.75, rel=0.05)
    assert replace(settings, p=1e-9, lam=0.0).local_steps(1, coins) == MOST_STEPS


@pytest.mark.parametrize("problem", PROBLEMS, ids=IDS)
def test_without_a_pull_it_is_local_training_bit_for_bit(problem: Problem) -> None:
    federation = Federation(L2SGD(lr=0.15, lam=0.0, p=0.4), problem)
    x = dict.fromkeys(problem.examples, federation.model)
    for draws in schedule(problem, rounds=1, share=1.0) + schedule(problem, rounds=4):
        federation.round(draws)
        for device in draws:
            for draw in draws[device]:
                x[device] = x[device] - 0.15 / (1 - 0.4) * problem.batch(device, draw).grad(x[device])
            assert all(torch.equal(federation.kept[device]["x"][name], tensor) for name, tensor in x[device].items())
    ends = [flat(tree) for tree in x.values()]
    assert min(np.abs(ends[0] - end).max() for end in ends[1:]) > 0.01


def test_with_the_hardest_pull_it_is_fedavg() -> None:
    problem = Softmax(4)
    federation = Federation(L2SGD(lr=0.1, lam=4.0, p=0.4), problem)
    plain = Federation(FedAvg(lr=0.1 / (1 - 0.4), weighting=Weighting.UNIFORM), problem)
    for draws in schedule(problem, rounds=5):
        federation.round(draws)
        plain.round(draws)
        np.testing.assert_allclose(flat(federation.state["xbar"]), flat(plain.state["w"]), rtol=1e-10)
    assert np.abs(flat(plain.state["w"]) - problem.start()).max() > 0.1


def test_a_device_predicts_with_its_own_model_as_the_round_opens() -> None:
    problem = Softmax(4)
    federation = Federation(L2SGD(lr=0.2, lam=0.7, p=0.5), problem)
    first, second = schedule(problem, rounds=2, share=0.5, seed=3)
    federation.round(first)
    federation.round(second)
    x, xbar = {k: flat(kept["x"]) for k, kept in federation.kept.items()}, flat(federation.state["xbar"])
    federation.algorithm = replace(federation.algorithm, omega=0.25)  # type: ignore[call-arg]  # it is L2SGD
    (device,) = sorted(first.keys() - second.keys())[:1]
    np.testing.assert_allclose(federation.predictor(device), 0.75 * x[device] + 0.25 * xbar, rtol=1e-12)
    np.testing.assert_array_equal(federation.other(device, "global"), xbar)
    never = min(problem.examples.keys() - federation.kept.keys())
    np.testing.assert_array_equal(federation.predictor(never), xbar)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"p": 0.0}, r"p = 0.0 is outside 0 \.\. 1"),
        ({"p": 1.0}, r"p = 1.0 is outside 0 \.\. 1"),
        ({"lam": -0.1}, "would push the models apart"),
        ({"lr": 0.5, "lam": 1.0, "p": 0.4}, r"would go past it: lr lam / p = 1\.25 > 1"),
    ],
)
def test_refuses_what_cannot_be_coins_or_a_pull(settings: dict[str, Setting], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        algorithms.build("l2sgd", settings)
    assert caught.value.where == "L2SGD"
