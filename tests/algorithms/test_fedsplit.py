"""FedSplit against a NumPy program, its fixed point, and the mean of its z_k when devices are lost or come late."""

from __future__ import annotations

import numpy as np
import pytest
from _driver import Federation, Round, schedule
from _problems import Problem, Quadratic, Softmax, Vector, flat

from edgepfl import algorithms
from edgepfl.algorithms import Participation, Setting
from edgepfl.algorithms.fedsplit import FedSplit
from edgepfl.errors import ConfigError

PROBLEMS = [Quadratic(4), Softmax(4)]
IDS = ["Quadratic", "Softmax"]


def round_problem() -> Quadratic:
    """Three devices whose functions have nearly round level sets, so that thirty rounds settle."""
    return Quadratic(3, spectrum=(1.0, 2.0))


def minimiser(problem: Quadratic) -> Vector:
    return problem.minimiser(dict.fromkeys(problem.examples, 1 / len(problem.examples)))


def fedsplit(problem: Problem, draws: Round, x: Vector, z: dict[str, Vector], settings: FedSplit) -> Vector:
    """One round, written from the paper's algorithm 1; moves ``z``."""
    for device, batches in draws.items():
        old = z.get(device, x)
        centre, y = 2 * x - old, x
        for draw in batches:
            y = y - settings.lr * (problem.gradient(device, y, draw) + (y - centre) / settings.s)
        z[device] = old + 2 * (y - x)
    return np.asarray(np.mean(list(z.values()), axis=0))


@pytest.mark.parametrize("problem", PROBLEMS, ids=IDS)
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_follows_the_numpy_program(problem: Problem, share: float) -> None:
    settings = FedSplit(lr=0.11, s=0.7)
    federation = Federation(settings, problem)
    x, z = problem.start(), dict[str, Vector]()
    for draws in schedule(problem, rounds=7, share=share):
        federation.round(draws)
        x = fedsplit(problem, draws, x, z, settings)
        np.testing.assert_allclose(flat(federation.state["x"]), x, rtol=1e-10)
        assert federation.kept.keys() == z.keys()
        for device, each in z.items():
            np.testing.assert_allclose(flat(federation.kept[device]["z"]), each, rtol=1e-10)
        np.testing.assert_array_equal(federation.predictor("pi-0"), flat(federation.state["x"]))


@pytest.mark.parametrize("s", [0.5, 0.8, 1.2])
def test_it_settles_at_the_global_minimiser_for_every_s(s: float) -> None:
    problem = round_problem()
    federation = Federation(FedSplit(lr=1 / (1.5 + 1 / s), s=s), problem)
    for _ in range(30):
        federation.round_of({device: [problem.whole(device)] * 6 for device in problem.examples})
    x = minimiser(problem)
    np.testing.assert_allclose(flat(federation.state["x"]), x, rtol=1e-8)
    for device in problem.examples:
        z = x - s * problem.A[device] @ (x - problem.b[device])
        np.testing.assert_allclose(flat(federation.kept[device]["z"]), z, rtol=1e-8)


def test_a_solved_round_is_the_closed_form() -> None:
    problem = round_problem()
    federation = Federation(FedSplit(lr=0.4, s=1.0), problem)
    x = problem.start()
    z = dict.fromkeys(problem.examples, x)
    for _ in range(3):
        federation.round_of({device: [problem.whole(device)] * 20 for device in problem.examples})
        z = {k: z[k] + 2 * (problem.prox(k, 2 * x - z[k], 1.0) - x) for k in z}
        x = np.mean(list(z.values()), axis=0)
        np.testing.assert_allclose(flat(federation.state["x"]), x, rtol=1e-9)
    assert np.abs(x - problem.start()).max() > 0.1


def test_one_inner_step_has_the_same_fixed_point() -> None:
    problem = round_problem()
    federation = Federation(FedSplit(lr=0.3, s=0.5), problem)
    for _ in range(100):
        federation.round_of({device: [problem.whole(device)] for device in problem.examples})
    x = minimiser(problem)
    np.testing.assert_allclose(flat(federation.state["x"]), x, rtol=1e-8)


@pytest.mark.parametrize("problem", PROBLEMS, ids=IDS)
def test_the_model_stays_the_mean_of_z_when_devices_are_lost_or_come_late(problem: Problem) -> None:
    federation = Federation(FedSplit(lr=0.2, s=0.8), problem)
    absent = [{"pi-3"}, {"pi-3", "pi-1"}, {"pi-0"}, set(), {"pi-2", "pi-3"}]
    for gone, draws in zip(absent, schedule(problem, rounds=5, share=1.0), strict=True):
        federation.round({device: each for device, each in draws.items() if device not in gone})
        z = [flat(kept["z"]) for kept in federation.kept.values()]
        np.testing.assert_allclose(flat(federation.state["x"]), np.mean(z, axis=0), rtol=1e-12)
        assert federation.state["joined"].keys() == federation.kept.keys()
    assert len(federation.kept) == 4


def test_after_lost_rounds_it_still_settles_at_the_minimiser() -> None:
    problem = round_problem()
    federation = Federation(FedSplit(lr=0.4, s=0.8), problem)
    for number in range(40):
        gone = f"pi-{number % 3}" if number < 10 else ""
        federation.round_of({k: [problem.whole(k)] * 6 for k in problem.examples if k != gone})
    x = minimiser(problem)
    np.testing.assert_allclose(flat(federation.state["x"]), x, rtol=1e-8)
    assert np.abs(problem.start() - x).max() > 0.1


def test_resetting_z_each_round_would_lose_the_method() -> None:
    problem = round_problem()
    federation = Federation(FedSplit(lr=0.4, s=0.8), problem)
    for _ in range(30):
        federation.kept = {}
        federation.round_of({device: [problem.whole(device)] * 6 for device in problem.examples})
    assert np.abs(flat(federation.state["x"]) - minimiser(problem)).max() > 0.01
    assert FedSplit.participation is Participation.ALL


def test_a_round_without_steps_moves_nothing() -> None:
    problem = Softmax(4)
    federation = Federation(FedSplit(), problem)
    federation.round(schedule(problem, rounds=1, share=1.0)[0])
    x, z = flat(federation.state["x"]), flat(federation.kept["pi-1"]["z"])
    federation.round_of({"pi-1": []})
    np.testing.assert_array_equal(flat(federation.state["x"]), x)
    np.testing.assert_array_equal(flat(federation.kept["pi-1"]["z"]), z)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"weighting": "examples"}, "weighting = examples will not do: x is the plain mean"),
        ({"s": 0.0}, "s = 0.0 must be above 0"),
        ({"lr": -0.1}, "lr = -0.1 and s = 1.0 must be above 0"),
        ({"lr": 0.5, "s": 0.25}, "the inner solver would diverge: lr / s = 2 >= 2"),
    ],
)
def test_refuses_what_breaks_the_splitting(settings: dict[str, Setting], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        algorithms.build("fedsplit", settings)
    assert caught.value.where == "FedSplit"
