"""ProxSkip against a NumPy program of single iterations, its invariant, its fixed point and its limits."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from _driver import Federation, Round, schedule
from _problems import Problem, Quadratic, Softmax, Vector, flat

from edgepfl import algorithms
from edgepfl.algorithms import Participation, Setting
from edgepfl.algorithms.fedavg import FedAvg
from edgepfl.algorithms.proxskip import MOST_STEPS, ProxSkip
from edgepfl.errors import ConfigError
from edgepfl.plan import Weighting

PROBLEMS = [Quadratic(4), Softmax(4)]
IDS = ["Quadratic", "Softmax"]


@dataclass
class Program:
    """The paper's algorithm 2, iteration by iteration, the coin given."""

    problem: Problem
    gamma: float
    p: float
    x: dict[str, Vector]
    h: dict[str, Vector] = field(init=False)

    def __post_init__(self) -> None:
        self.h = {k: np.zeros_like(x) for k, x in self.x.items()}

    def round(self, draws: Round) -> None:
        length = len(draws[min(draws)])
        for place in range(length):
            self.iterate(
                {device: self.problem.gradient(device, self.x[device], draws[device][place]) for device in draws},
                heads=place == length - 1,
            )

    def iterate(self, g: dict[str, Vector], *, heads: bool) -> None:
        xh = {k: x - self.gamma * (g[k] - self.h[k]) for k, x in self.x.items()}
        mean = np.mean(list(xh.values()), axis=0)
        self.x = {k: mean if heads else xh[k] for k in xh}
        self.h = {k: h + self.p / self.gamma * (self.x[k] - xh[k]) for k, h in self.h.items()}


def variates(federation: Federation) -> dict[str, Vector]:
    """Each device's ``h_k``, the last round's change in it."""
    algorithm = federation.algorithm
    assert isinstance(algorithm, ProxSkip)
    return {k: flat(algorithm._variate(federation.prepared(k))) for k in federation.problem.examples}


@pytest.mark.parametrize("problem", PROBLEMS, ids=IDS)
def test_follows_the_program_of_single_iterations(problem: Problem) -> None:
    settings = ProxSkip(lr=0.2, p=0.4)
    federation = Federation(settings, problem)
    program = Program(problem, settings.lr, settings.p, dict.fromkeys(problem.examples, problem.start()))
    coins, lengths = np.random.default_rng(1), set()
    for number in range(6):
        steps = settings.local_steps(3, coins)
        (draws,) = schedule(problem, rounds=1, steps=steps, share=1.0, seed=number)
        federation.round(draws)
        program.round(draws)
        lengths |= {steps}
        np.testing.assert_allclose(flat(federation.state["w"]), program.x["pi-0"], rtol=1e-10)
        for device, h in variates(federation).items():
            np.testing.assert_allclose(h, program.h[device], rtol=1e-10, atol=1e-12)
    assert len(lengths) > 2


@pytest.mark.parametrize("problem", PROBLEMS, ids=IDS)
def test_the_variates_sum_to_nothing_and_are_something(problem: Problem) -> None:
    federation = Federation(ProxSkip(lr=0.1, p=0.3), problem)
    for draws in schedule(problem, rounds=5, share=1.0):
        federation.round(draws)
        found = list(variates(federation).values())
        np.testing.assert_allclose(np.sum(found, axis=0), 0, atol=1e-12)
        assert np.abs(found).max() > 0.1


def test_it_settles_at_the_global_minimiser_with_the_devices_gradients_there() -> None:
    problem = Quadratic(4, spectrum=(1.0, 2.0))
    federation = Federation(ProxSkip(lr=0.5, p=0.5), problem)
    coins = np.random.default_rng(0)
    for _ in range(60):
        steps = federation.algorithm.local_steps(1, coins)
        federation.round_of({device: [problem.whole(device)] * steps for device in problem.examples})
    w = problem.minimiser(dict.fromkeys(problem.examples, 0.25))
    np.testing.assert_allclose(flat(federation.state["w"]), w, rtol=1e-9)
    for device, h in variates(federation).items():
        np.testing.assert_allclose(h, problem.A[device] @ (w - problem.b[device]), rtol=1e-8)


def test_without_its_variates_it_would_settle_elsewhere() -> None:
    problem = Quadratic(4, spectrum=(1.0, 2.0))
    ends = []
    for p in (0.25, 0.0):  # a chance of 0 is refused; here it is what leaves the variates at 0
        federation = Federation(ProxSkip(lr=0.4), problem)
        federation.algorithm = ProxSkip(lr=0.4, p=p)
        for _ in range(25):
            federation.round_of({device: [problem.whole(device)] * 4 for device in problem.examples})
        ends.append(flat(federation.state["w"]))
    w = problem.minimiser(dict.fromkeys(problem.examples, 0.25))
    np.testing.assert_allclose(ends[0], w, rtol=1e-4)
    assert np.abs(ends[1] - w).max() > 0.01


@pytest.mark.parametrize("problem", PROBLEMS, ids=IDS)
def test_the_first_round_is_fedavg_bit_for_bit(problem: Problem) -> None:
    federation = Federation(ProxSkip(lr=0.11), problem)
    plain = Federation(FedAvg(lr=0.11, weighting=Weighting.UNIFORM), problem)
    first, second = schedule(problem, rounds=2, share=1.0)
    federation.round(first)
    plain.round(first)
    assert all(torch.equal(federation.state["w"][name], tensor) for name, tensor in plain.state["w"].items())
    federation.round(second)
    plain.round(second)
    assert np.abs(flat(federation.state["w"]) - flat(plain.state["w"])).max() > 1e-3


def test_heads_every_time_is_gradient_descent_whatever_the_variates() -> None:
    problem = Quadratic(4)
    federation = Federation(ProxSkip(lr=0.3, p=1.0), problem)
    w = problem.start()
    for _ in range(6):
        federation.round_of({device: [problem.whole(device)] for device in problem.examples})
        w = w - 0.3 * np.mean([problem.A[k] @ (w - problem.b[k]) for k in problem.A], axis=0)
        np.testing.assert_allclose(flat(federation.state["w"]), w, rtol=1e-10)
    assert federation.algorithm.local_steps(7, np.random.default_rng(0)) == 1
    assert np.abs(list(variates(federation).values())).max() > 0.1


def test_a_device_that_joins_late_leaves_the_sum_at_nothing() -> None:
    problem = Softmax(4)
    federation = Federation(ProxSkip(lr=0.2, p=0.5), problem)
    for number, draws in enumerate(schedule(problem, rounds=6, share=1.0)):
        federation.round({device: each for device, each in draws.items() if device != "pi-3" or number >= 3})
    np.testing.assert_allclose(np.sum(list(variates(federation).values()), axis=0), 0, atol=1e-12)
    assert np.abs(variates(federation)["pi-3"]).max() > 0.01


def test_the_coins_are_geometric_and_everyone_takes_part() -> None:
    coins = np.random.default_rng(0)
    lengths = [ProxSkip(p=0.2).local_steps(99, coins) for _ in range(4000)]
    assert min(lengths) == 1
    assert np.mean(lengths) == pytest.approx(1 / 0.2, rel=0.05)
    assert ProxSkip(p=1e-9).local_steps(1, coins) == MOST_STEPS
    assert ProxSkip.participation is Participation.ALL


def test_the_evaluated_model_is_the_global_one() -> None:
    problem = Softmax(4)
    federation = Federation(ProxSkip(), problem)
    federation.round(schedule(problem, rounds=1, share=1.0)[0])
    w = flat(federation.state["w"])
    np.testing.assert_array_equal(federation.predictor("pi-1"), w)
    np.testing.assert_array_equal(federation.other("pi-1", "global"), w)
    assert np.abs(flat(federation.kept["pi-1"]["xh"]) - w).max() > 0.01


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"weighting": "examples"}, "weighting = examples will not do: the variates sum to 0.*plain mean"),
        ({"p": 0.0}, r"p = 0.0 is no chance"),
        ({"p": 1.5}, r"p = 1.5 is no chance"),
        ({"lr": 0.0}, r"lr = 0.0: the variates' step p / lr needs lr > 0"),
    ],
)
def test_refuses_what_breaks_the_variates(settings: dict[str, Setting], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        algorithms.build("proxskip", settings)
    assert caught.value.where == "ProxSkip"
