"""FedAMP against a NumPy program with loops over pairs, the limits of its attention, and its fixed point."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from _driver import Federation, Round, schedule
from _problems import Problem, Quadratic, Softmax, Vector, flat

from edgepfl.algorithms import Cohort
from edgepfl.algorithms.fedamp import FedAMP
from edgepfl.errors import ConfigError, RunError
from edgepfl.tree import Tree

PROBLEMS = [Quadratic(4), Softmax(4)]


def message(w: dict[str, Vector], i: str, alpha: float, sigma: float) -> Vector:
    """``u_i``, written from the paper's equations."""
    xi = {j: alpha * np.exp(-((w[i] - w[j]) ** 2).sum() / sigma) / sigma for j in w if j != i}
    u = (1 - sum(xi.values())) * w[i]
    for j, weight in xi.items():
        u = u + weight * w[j]
    return np.asarray(u)


def fedamp(problem: Problem, draws: Round, w: dict[str, Vector], settings: FedAMP) -> None:
    """One round, written from the paper's algorithm 1; moves ``w``."""
    centres = {i: message(w, i, settings.alpha, settings.sigma) for i in draws}
    for i, batches in draws.items():
        x = u = centres[i]
        for draw in batches:
            x = x - settings.lr * (problem.gradient(i, x, draw) + settings.lam / settings.alpha * (x - u))
        w[i] = x


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: type(problem).__name__)
@pytest.mark.parametrize("settings", [FedAMP(lr=0.1, lam=0.7, alpha=2.0, sigma=7.0), FedAMP(lr=0.05, sigma=4.0)])
def test_follows_the_numpy_program(problem: Problem, settings: FedAMP) -> None:
    federation = Federation(settings, problem)
    w = {device: problem.start() for device in sorted(problem.examples)}
    for draws in schedule(problem, rounds=7):
        federation.round(draws)
        fedamp(problem, draws, w, settings)
        for device, own in w.items():
            np.testing.assert_allclose(federation.state["w"][device].numpy(), own, rtol=1e-10)
            u = message(w, device, settings.alpha, settings.sigma)
            np.testing.assert_allclose(federation.other(device, "cloud"), u, rtol=1e-10)
            np.testing.assert_allclose(federation.predictor(device), own, rtol=1e-10)
    apart = [np.abs(message(w, i, settings.alpha, settings.sigma) - own).max() for i, own in w.items()]
    assert max(apart) > 1e-3


def uploaded(rows: Vector, *, fleet: tuple[str, ...] = (), statistics: tuple[str, ...] = ()) -> Cohort:
    """A row of 6 from each of pi-0, pi-1, ..."""
    devices = tuple(f"pi-{k}" for k in range(len(rows)))
    trained = Tree({"body": torch.tensor(rows[:, :4]), "head": torch.tensor(rows[:, 4:].reshape(-1, 1, 2))})
    ones = (1,) * len(rows)
    return Cohort(devices, ones, ones, {}, {"trained": trained}, 1, fleet or devices, statistics)


def messages(settings: FedAMP, got: Cohort) -> dict[str, Vector]:
    """What the server sends after these uploads."""
    state = settings.update(Federation(settings, Quadratic(4)).state, got)
    return {device: flat(settings.send(state, device)["u"]) for device in got.fleet}


def test_identical_models_are_sent_back() -> None:
    row = np.linspace(-1, 2, 6)
    sent = messages(FedAMP(alpha=1.0, sigma=3.0), uploaded(np.stack([row] * 4)))
    for u in sent.values():
        np.testing.assert_array_equal(u, row)
    with pytest.raises(RunError):
        messages(FedAMP(alpha=1.0, sigma=2.9), uploaded(np.stack([row] * 4)))


def test_models_equally_far_apart_give_a_fixed_mixture() -> None:
    rows = np.eye(6)[:4] * 3.0  # squared distances 18
    alpha, sigma = 2.0, 20.0
    xi = alpha * np.exp(-18 / sigma) / sigma
    for k, u in enumerate(messages(FedAMP(alpha=alpha, sigma=sigma), uploaded(rows)).values()):
        np.testing.assert_allclose(u, (1 - 3 * xi) * rows[k] + xi * (rows.sum(0) - rows[k]), rtol=1e-12)
        assert 0.05 < 3 * xi < 1


def test_a_narrow_attention_is_local_training_with_a_damping() -> None:
    """``sigma -> 0``: ``u_i = w_i``, so with one step a round, from ``u_i``, the pull is 0 too."""
    problem, settings = Quadratic(4), FedAMP(lr=0.2, alpha=1e-3, lam=1e-3, sigma=0.02)
    federation = Federation(settings, problem)
    rows = np.stack([problem.b[device] for device in sorted(problem.examples)])
    federation.state = settings.update(federation.state, uploaded(rows * 1.5))
    w = dict(zip(sorted(problem.examples), rows * 1.5, strict=True))
    for draws in schedule(problem, rounds=6, steps=1):
        federation.round(draws)
        for device, (draw,) in draws.items():
            w[device] = w[device] - 0.2 * problem.gradient(device, w[device], draw)
            np.testing.assert_array_equal(federation.other(device, "cloud"), federation.predictor(device))
            np.testing.assert_allclose(federation.predictor(device), w[device], rtol=1e-12)


def test_where_it_stops_the_objective_is_stationary() -> None:
    problem, lam, sigma = Quadratic(4), 1.5, 25.0
    federation = Federation(FedAMP(lr=0.3, lam=lam, alpha=1.0, sigma=sigma), problem)
    for _ in range(70):
        federation.round_of({device: [problem.whole(device)] * 18 for device in problem.examples})
    w = {device: flat(federation.kept[device]["w"]) for device in sorted(problem.examples)}
    for i, own in w.items():
        gradient = problem.A[i] @ (own - problem.b[i])
        for other in w.values():  # of lam/2 A(|own - other|^2)
            gradient += lam / sigma * np.exp(-((own - other) ** 2).sum() / sigma) * (own - other)
        np.testing.assert_allclose(gradient, 0, atol=1e-8)
        np.testing.assert_allclose(own, problem.prox(i, federation.other(i, "cloud"), lam), atol=1e-8)
        assert np.abs(own - problem.b[i]).max() > 1e-3


def test_weights_above_one_fail_the_run_and_name_a_sigma_that_will_do() -> None:
    rows = np.random.default_rng(1).normal(size=(5, 6)) * 0.01
    with pytest.raises(RunError, match=r"weights in a device's message come to .*at most 1") as caught:
        messages(FedAMP(alpha=0.5, sigma=1.0), uploaded(rows))
    assert "2 is always enough" in caught.value.remedy
    sent = messages(FedAMP(alpha=0.5, sigma=2.0), uploaded(rows))
    for k, u in enumerate(sent.values()):
        assert np.abs(u - rows[k]).max() > 1e-4
        assert (u <= rows.max(0)).all()
        assert (u >= rows.min(0)).all()


def test_who_has_not_trained_counts_with_the_initial_model_and_gets_it() -> None:
    problem, settings = Quadratic(4), FedAMP(alpha=1.0, sigma=30.0)
    row = problem.start() + 1.0
    federation = Federation(settings, problem)
    got = uploaded(row[None], fleet=("pi-0", "pi-1"))
    state = settings.update(federation.state, got)
    xi = np.exp(-6 / 30) / 30
    np.testing.assert_allclose(flat(settings.send(state, "pi-0")["u"]), row - xi, rtol=1e-12)
    np.testing.assert_allclose(flat(settings.send(state, "pi-1")["u"]), problem.start() + xi, rtol=1e-12)
    np.testing.assert_array_equal(flat(settings.send(state, "pi-9")["u"]), problem.start())
    later = settings.update(state, uploaded(row[None] + 1, fleet=("pi-0", "pi-1", "pi-9")))
    assert list(later["w"]) == ["pi-0", "pi-1", "pi-9"]


def test_running_statistics_do_not_count_in_distances() -> None:
    rows = np.zeros((2, 6))
    rows[1] = [50, 50, 50, 50, 2, 1]
    settings = FedAMP(alpha=1.0, sigma=10.0)
    sent = messages(settings, uploaded(rows, statistics=("body",)))
    xi = np.exp(-5 / 10) / 10
    np.testing.assert_allclose(sent["pi-0"], xi * rows[1], rtol=1e-12)
    np.testing.assert_allclose(messages(settings, uploaded(rows))["pi-0"], 0, atol=1e-12)


def test_the_pull_is_divided_by_alpha() -> None:
    problem = Softmax(1)
    (draws,) = schedule(problem, rounds=1, steps=3, share=1.0)
    ends = []
    for lam, alpha in ((1.0, 0.5), (2.0, 1.0), (2.0, 0.5)):
        federation = Federation(FedAMP(lr=0.2, lam=lam, alpha=alpha), problem)
        federation.round(draws)
        ends.append(federation.predictor("pi-0"))
    np.testing.assert_array_equal(ends[0], ends[1])
    assert np.abs(ends[0] - ends[2]).max() > 1e-3


@pytest.mark.parametrize("settings", [FedAMP(alpha=0.0), FedAMP(sigma=-1.0), replace(FedAMP(), lam=-0.1)])
def test_what_is_no_attraction_is_refused(settings: FedAMP) -> None:
    with pytest.raises(ConfigError, match="no attraction") as caught:
        settings.check()
    assert "above 0" in caught.value.remedy
