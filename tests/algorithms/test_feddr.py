"""FedDR against a NumPy program that holds every device's part, its fixed points and its regulariser."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
import torch
from _driver import Federation, Round, schedule, settle, uneven
from _problems import Problem, Quadratic, Softmax, flat

from edgepfl.algorithms import Cohort, Minibatch
from edgepfl.algorithms.feddr import FedDR
from edgepfl.errors import ConfigError
from edgepfl.plan import Weighting
from edgepfl.tree import Tree
from exporters.statistics import Measured

PROBLEMS = [Quadratic(4), Softmax(4)]
IDS = ["Quadratic", "Softmax"]


class Program:
    """Written from the paper's algorithm 1, in which the server sees every ``xh_k``."""

    def __init__(self, problem: Problem, settings: FedDR) -> None:
        self.problem, self.settings = problem, settings
        self.w = self.y = problem.start()
        self.x_k, self.y_k, self.xh_k = (dict.fromkeys(problem.examples, self.w) for _ in range(3))

    def round(self, draws: Round) -> None:
        eta, alpha, m = self.settings.eta, self.settings.alpha, len(self.x_k)
        for device, batches in draws.items():
            y = self.y_k[device] + alpha * (self.w - self.x_k[device])
            x = self.x_k[device].copy()
            for draw in batches:
                x = x - self.settings.lr * (self.problem.gradient(device, x, draw) + (x - y) / eta)
            self.x_k[device], self.y_k[device], self.xh_k[device] = x, y, 2 * x - y
        xt = np.mean(list(self.xh_k.values()), axis=0)
        self.y = self.y + alpha * (self.w - self.y)
        self.w = xt
        if self.settings.gamma:
            centre = m / (m + 1) * xt + 1 / (m + 1) * self.y
            threshold = self.settings.gamma * eta * m / (m + 1)
            self.w = np.where(np.abs(centre) > threshold, centre - threshold * np.sign(centre), 0.0)


@pytest.mark.parametrize("problem", PROBLEMS, ids=IDS)
@pytest.mark.parametrize("gamma", [0.0, 0.3])
def test_follows_the_numpy_program(problem: Problem, gamma: float) -> None:
    settings = FedDR(lr=0.11, eta=0.8, alpha=1.3, gamma=gamma)
    federation, program = Federation(settings, problem), Program(problem, settings)
    for draws in map(uneven, schedule(problem, rounds=8)):
        federation.round(draws)
        program.round(draws)
        np.testing.assert_allclose(flat(federation.state["w"]), program.w, rtol=1e-10, atol=1e-13)
        np.testing.assert_allclose(flat(federation.state["y"]), program.y, rtol=1e-10, atol=1e-13)
        for device, kept in federation.kept.items():
            np.testing.assert_allclose(flat(kept["x"]), program.x_k[device], rtol=1e-10)
            np.testing.assert_allclose(flat(kept["y"]), program.y_k[device], rtol=1e-10)
    assert len(federation.kept) == 4
    assert np.any(program.w == 0) == (gamma > 0)


@pytest.mark.parametrize("alpha", [1.0, 1.5])
@pytest.mark.parametrize(("share", "rounds"), [(1.0, 60), (0.5, 160)])
def test_settles_at_the_global_minimiser_whoever_takes_part(alpha: float, share: float, rounds: int) -> None:
    problem, eta = Quadratic(4, spectrum=(1.0, 2.0)), 0.8
    federation = Federation(FedDR(lr=0.35, eta=eta, alpha=alpha), problem)
    settle(federation, problem, rounds=rounds, share=share)
    w = flat(federation.state["w"])
    np.testing.assert_allclose(w, problem.minimiser(dict.fromkeys(problem.examples, 0.25)), rtol=1e-8)
    for device, kept in federation.kept.items():
        np.testing.assert_allclose(flat(kept["x"]), w, rtol=1e-7)
        np.testing.assert_allclose(problem.prox(device, flat(kept["y"]), 1 / eta), w, rtol=1e-7)


@pytest.mark.parametrize(("share", "rounds"), [(1.0, 80), (0.5, 200)])
def test_with_the_regulariser_it_settles_where_zero_is_a_subgradient(share: float, rounds: int) -> None:
    problem, gamma = Quadratic(4, spectrum=(1.0, 2.0)), 1.2
    federation = Federation(FedDR(lr=0.35, eta=0.8, alpha=1.3, gamma=gamma), problem)
    settle(federation, problem, rounds=rounds, share=share)
    w = flat(federation.state["w"])
    gradient = np.mean([problem.A[k] @ (w - problem.b[k]) for k in problem.examples], axis=0)
    np.testing.assert_allclose(gradient[w != 0], -gamma * np.sign(w[w != 0]), rtol=1e-7)
    assert np.abs(gradient[w == 0]).max() < gamma
    assert 0 < np.sum(w != 0) < 6


def test_one_device_and_many_steps_are_the_exact_splitting() -> None:
    problem = Quadratic(1)
    federation = Federation(FedDR(lr=0.4, eta=1.0, alpha=1.9), problem)
    w = x = y = problem.start()
    for _ in range(5):
        settle(federation, problem, rounds=1, steps=60)
        y = y + 1.9 * (w - x)
        x = problem.prox("pi-0", y, 1.0)
        w = 2 * x - y
        np.testing.assert_allclose(flat(federation.state["w"]), w, rtol=1e-8)
    assert np.abs(w - problem.start()).max() > 0.1


def test_xt_is_the_mean_of_all_parts_with_lost_reports_and_devices_that_come_late() -> None:
    problem, start = Softmax(4), Softmax(4).start()
    federation = Federation(FedDR(lr=0.2), problem)
    late = problem.examples.pop("pi-3")
    for number, draws in enumerate(schedule(Softmax(4), rounds=8, share=0.75)):
        if number == 4:
            problem.examples["pi-3"] = late
        known = {device: draws[device] for device in draws if device in problem.examples}
        lost = min(known)
        before = flat(federation.opening(lost)["x"])
        dropped = federation.lose(lost, [problem.batch(lost, draw) for draw in known.pop(lost)])
        assert np.abs(flat(dropped["x"]) - before).max() > 1e-3
        federation.round(known)
        parts = {device: 2 * flat(kept["x"]) - flat(kept["y"]) for device, kept in federation.kept.items()}
        everyone = [parts.get(device, start) for device in problem.examples]
        np.testing.assert_allclose(flat(federation.state["w"]), np.mean(everyone, axis=0), rtol=1e-10)
    assert "pi-3" in federation.kept


class Measuring:
    """A minibatch whose ``head`` is a running statistic."""

    def grad(self, params: Tree) -> Tree:
        return Tree({"body": 0.5 * params["body"], "head": Measured(0.9 * params["head"] + 0.1)})


def test_running_statistics_become_the_mean_of_the_devices_last() -> None:
    problem = Quadratic(1)
    algorithm = FedDR(alpha=1.9)
    federation = Federation(algorithm, problem)
    s = dict(federation.opening("pi-0"))
    expected = s["x"]["head"]
    for _ in range(3):
        start = s["x"]["head"]
        s |= algorithm.begin(s)
        for _ in range(2):
            moved = algorithm.step(s, cast(Minibatch, Measuring()))
            s |= {
                name: tree.map(lambda t: t.resolved() if isinstance(t, Measured) else t) for name, tree in moved.items()
            }
            expected = 0.9 * expected + 0.1
        s |= algorithm.finish(s)
        np.testing.assert_allclose(s["x"]["head"].numpy(), expected.numpy(), rtol=1e-12)
        np.testing.assert_allclose(s["change"]["head"].numpy(), (expected - start).numpy(), rtol=1e-12)


def test_the_regulariser_leaves_running_statistics_alone() -> None:
    problem = Quadratic(2)
    federation = Federation(FedDR(gamma=0.5), problem)
    w = federation.state["w"]
    devices = ("pi-0", "pi-1")
    total = {"change": 0 * w + 2.0}
    plain, told = (Cohort(devices, (5, 5), (3, 3), total, {}, 1, devices, names) for names in ((), ("head",)))
    after = federation.algorithm.update(federation.state, told)["w"]
    without = federation.algorithm.update(federation.state, plain)["w"]
    np.testing.assert_allclose(flat(after.like(["head"])), flat(w.like(["head"])) + 1.0, rtol=1e-12)
    assert torch.equal(after["body"], without["body"])
    assert not torch.equal(after["head"], without["head"])


def test_what_breaks_the_theory_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"weighting = examples will not do: .* share of each device is 1/m"):
        FedDR(weighting=Weighting.EXAMPLES).check()
    wrong = [FedDR(alpha=2.0), FedDR(alpha=0.0), FedDR(eta=0.0), FedDR(lr=2.0), FedDR(lr=0.0), FedDR(gamma=-1.0)]
    for settings in wrong:
        with pytest.raises(ConfigError, match="needs 0 < alpha < 2"):
            settings.check()
