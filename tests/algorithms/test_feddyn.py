"""FedDyn against a NumPy program, its invariant, its local solutions and its fixed point."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from _driver import Federation, Round, schedule, settle, uneven
from _problems import Problem, Quadratic, Softmax, Vector, flat

from edgepfl.algorithms import Cohort
from edgepfl.algorithms.feddyn import FedDyn
from edgepfl.algorithms.fedprox import FedProx
from edgepfl.errors import ConfigError
from edgepfl.plan import Role, Weighting

PROBLEMS = [Quadratic(4), Softmax(4)]
IDS = ["Quadratic", "Softmax"]


def feddyn(
    problem: Problem, draws: Round, w: Vector, h: Vector, gradients: dict[str, Vector], settings: FedDyn
) -> tuple[Vector, Vector, Vector]:
    """One round, written from the paper's algorithm 1: the new w and h, and the mean model; moves ``gradients``."""
    models = []
    for device, batches in draws.items():
        theta = w.copy()
        for draw in batches:
            direction = problem.gradient(device, theta, draw) - gradients[device] + settings.mu * (theta - w)
            norm = float(np.linalg.norm(direction))
            theta = theta - settings.lr * direction * min(1.0, settings.clip / norm)
        gradients[device] = gradients[device] - settings.mu * (theta - w)
        models.append(theta)
    h = h - settings.mu / len(gradients) * sum((theta - w for theta in models), np.zeros_like(w))
    mean = np.asarray(np.mean(models, axis=0))
    return mean - h / settings.mu, h, mean


@pytest.mark.parametrize("problem", PROBLEMS, ids=IDS)
@pytest.mark.parametrize("clip", [1e9, 0.7])
def test_follows_the_numpy_program(problem: Problem, clip: float) -> None:
    settings = FedDyn(lr=0.11, mu=0.4, clip=clip)
    federation = Federation(settings, problem)
    w = problem.start()
    h, gradients = np.zeros_like(w), {device: np.zeros_like(w) for device in problem.examples}
    for draws in map(uneven, schedule(problem, rounds=8)):
        federation.round(draws)
        w, h, mean = feddyn(problem, draws, w, h, gradients, settings)
        np.testing.assert_allclose(flat(federation.state["w"]), w, rtol=1e-10)
        np.testing.assert_allclose(flat(federation.state["mean"]), mean, rtol=1e-10)
        np.testing.assert_allclose(flat(federation.state["g_sum"]) / 4, h, rtol=1e-10, atol=1e-14)
        for device, kept in federation.kept.items():
            np.testing.assert_allclose(flat(kept["g"]), gradients[device], rtol=1e-10, atol=1e-14)
    assert len(federation.kept) == 4


@pytest.mark.parametrize("problem", PROBLEMS, ids=IDS)
def test_the_devices_first_round_is_fedprox_bit_for_bit(problem: Problem) -> None:
    federation = Federation(FedDyn(lr=0.11, mu=0.4), problem)
    prox = Federation(FedProx(lr=0.11, mu=0.4, weighting=Weighting.UNIFORM), problem)
    first, second = schedule(problem, rounds=2)
    for federated in (federation, prox):
        federated.round(first)
    for name, tensor in prox.state["w"].items():
        assert torch.equal(federation.state["mean"][name], tensor)
    for federated in (federation, prox):
        federated.round(second)
    assert np.abs(flat(federation.state["mean"]) - flat(prox.state["w"])).max() > 1e-3


def test_many_steps_solve_the_local_problem_and_g_is_the_gradient_there() -> None:
    problem, mu = Quadratic(4), 0.8
    federation = Federation(FedDyn(lr=0.4, mu=mu), problem)
    for _ in range(3):
        w, before = flat(federation.state["w"]), {k: flat(federation.opening(k)["g"]) for k in problem.examples}
        settle(federation, problem, rounds=1, steps=60)
        for device, kept in federation.kept.items():
            A, b = problem.A[device], problem.b[device]
            theta = np.linalg.solve(A + mu * np.eye(6), A @ b + before[device] + mu * w)
            np.testing.assert_allclose(flat(kept["g"]), before[device] - mu * (theta - w), rtol=1e-8, atol=1e-10)
            np.testing.assert_allclose(flat(kept["g"]), A @ (theta - b), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("share", "rounds"), [(1.0, 60), (0.5, 160)])
@pytest.mark.parametrize("mu", [1.0, 1.5])
def test_settles_at_the_global_minimiser_whoever_takes_part(share: float, rounds: int, mu: float) -> None:
    problem = Quadratic(4, spectrum=(1.0, 2.0))
    federation = Federation(FedDyn(lr=0.35, mu=mu), problem)
    settle(federation, problem, rounds=rounds, share=share)
    w = flat(federation.state["w"])
    np.testing.assert_allclose(w, problem.minimiser(dict.fromkeys(problem.examples, 0.25)), rtol=1e-8)
    np.testing.assert_allclose(flat(federation.state["mean"]), w, rtol=1e-8)
    for device, kept in federation.kept.items():
        gradient = problem.A[device] @ (w - problem.b[device])
        np.testing.assert_allclose(flat(kept["g"]), gradient, rtol=1e-6)
        assert np.abs(gradient).max() > 0.1


def test_h_is_the_mean_of_all_gradients_with_lost_reports_and_devices_that_come_late() -> None:
    problem = Softmax(4)
    federation = Federation(FedDyn(lr=0.2, mu=0.5), problem)
    late = problem.examples.pop("pi-3")
    for number, draws in enumerate(schedule(Softmax(4), rounds=8, share=0.75)):
        if number == 4:
            problem.examples["pi-3"] = late
        known = {device: draws[device] for device in draws if device in problem.examples}
        lost = min(known)
        before = flat(federation.opening(lost)["g"])
        dropped = federation.lose(lost, [problem.batch(lost, draw) for draw in known.pop(lost)])
        assert np.abs(flat(dropped["g"]) - before).max() > 1e-3
        federation.round(known)
        told = sum((flat(kept["g"]) for kept in federation.kept.values()), np.zeros(15))
        np.testing.assert_allclose(flat(federation.state["g_sum"]), told, rtol=1e-10, atol=1e-14)
        w, mean = flat(federation.state["w"]), flat(federation.state["mean"])
        np.testing.assert_allclose(mean - told / len(problem.examples) / 0.5, w, rtol=1e-10)
    assert "pi-3" in federation.kept


def test_a_clip_above_the_norm_changes_no_bit() -> None:
    problem = Softmax(4)
    loose, off, tight = (Federation(FedDyn(lr=0.1, clip=clip), problem) for clip in (30.0, 1e9, 0.3))
    for draws in schedule(problem, rounds=3):
        for federation in (loose, off, tight):
            federation.round(draws)
    for name, tensor in off.state["w"].items():
        assert torch.equal(loose.state["w"][name], tensor)
    assert np.abs(flat(tight.state["w"]) - flat(off.state["w"])).max() > 1e-3


def test_a_clip_cuts_a_steps_whole_direction() -> None:
    problem = Quadratic(1)
    federation = Federation(FedDyn(lr=0.1, mu=0.5, clip=0.3), problem)
    before = problem.start()
    federation.round_of({"pi-0": [problem.whole("pi-0")]})
    step = flat(federation.state["mean"]) - before
    gradient = problem.A["pi-0"] @ (before - problem.b["pi-0"])
    np.testing.assert_allclose(step, -0.1 * 0.3 * gradient / np.linalg.norm(gradient), rtol=1e-12)
    assert np.linalg.norm(gradient) > 0.3


def test_the_mean_model_is_sent_only_where_it_is_asked_for() -> None:
    problem = Softmax(4)
    asked, not_asked = Federation(FedDyn(report_mean=True), problem), Federation(FedDyn(), problem)
    for draws in schedule(problem, rounds=2):
        for federation in (asked, not_asked):
            federation.round(draws)
    assert asked.by_role(Role.DOWN).keys() == {"w", "mean"}
    assert not_asked.by_role(Role.DOWN).keys() == {"w"}
    assert not_asked.algorithm.others(not_asked.prepared("pi-0")).keys() == {"global"}
    np.testing.assert_array_equal(asked.other("pi-0", "mean"), flat(not_asked.state["mean"]))
    np.testing.assert_array_equal(asked.predictor("pi-0"), flat(not_asked.state["w"]))
    assert np.abs(asked.other("pi-0", "mean") - asked.predictor("pi-0")).max() > 1e-3


def test_running_statistics_are_averaged_without_h() -> None:
    problem = Quadratic(2)
    federation = Federation(FedDyn(mu=0.5), problem)
    w = federation.state["w"]
    got = Cohort(("pi-0",), (5,), (3,), {"delta": 0 * w + 1.0}, {}, 1, ("pi-0", "pi-1"), statistics=("head",))
    after = federation.algorithm.update(federation.state, got)["w"]
    np.testing.assert_allclose(flat(after.like(["head"])), flat(w.like(["head"])) + 1.0, rtol=1e-12)
    np.testing.assert_allclose(flat(after.like(["body"])), flat(w.like(["body"])) + 1.5, rtol=1e-12)


def test_what_breaks_the_theory_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"weighting = examples will not do: h is the uniform mean"):
        FedDyn(weighting=Weighting.EXAMPLES).check()
    for settings in (FedDyn(lr=0.5, mu=4.0), FedDyn(mu=0.0), FedDyn(lr=-0.1), FedDyn(clip=0.0)):
        with pytest.raises(ConfigError, match=r"will not do: each must be above 0.*lr mu < 2"):
            settings.check()
