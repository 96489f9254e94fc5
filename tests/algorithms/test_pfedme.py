"""pFedMe against a NumPy program, the closed forms of its local rounds and its fixed points."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from _driver import Federation, Round, schedule
from _problems import Problem, Quadratic, Softmax, Vector, flat

from edgepfl import algorithms
from edgepfl.algorithms.pfedme import PFedMe, Start
from edgepfl.errors import ConfigError
from edgepfl.plan import Weighting

PROBLEMS = [Quadratic(4), Softmax(4)]
IDS = ["Quadratic", "Softmax"]
SPECTRUM = (0.6, 1.4)
EXACT = PFedMe(inner_steps=15, inner_lr=1 / (1.0 + 0.8), lam=0.8, lr=1.2)
"""With eigenvalues in that range each inner step leaves at most 0.22 of the error."""


def pfedme(
    problem: Problem, draws: Round, w: Vector, kept: dict[str, tuple[Vector, Vector]], settings: PFedMe
) -> Vector:
    """One round, written from the paper's algorithm 1; moves each device's ``theta`` and ``w_{k,R}``."""
    uploads, counts = [], []
    for device, batches in draws.items():
        own, theta = w, kept.get(device, (w, w))[0]
        for draw in batches:
            if settings.start is Start.W:
                theta = own
            for _ in range(settings.inner_steps):
                slope = problem.gradient(device, theta, draw) + settings.lam * (theta - own)
                theta = theta - settings.inner_lr * (slope + settings.inner_wd * theta)
            own = own - settings.lr * settings.lam * (own - theta)
        kept[device] = theta, own
        uploads.append(own)
        counts.append(problem.examples[device] if settings.weighting is Weighting.EXAMPLES else 1)
    return (1 - settings.beta) * w + settings.beta * np.average(uploads, axis=0, weights=counts)


@pytest.mark.parametrize("problem", PROBLEMS, ids=IDS)
@pytest.mark.parametrize(
    "settings",
    [
        PFedMe(lr=0.12, inner_lr=0.13, lam=1.7),
        PFedMe(lr=0.12, inner_lr=0.13, lam=1.7, inner_wd=0.4, beta=1.6, weighting=Weighting.EXAMPLES),
        PFedMe(lr=0.12, inner_lr=0.13, lam=1.7, inner_steps=3, start=Start.THETA),
    ],
    ids=["plain", "decay", "theta"],
)
def test_follows_the_numpy_program(problem: Problem, settings: PFedMe) -> None:
    federation = Federation(settings, problem)
    w, kept = problem.start(), dict[str, tuple[Vector, Vector]]()
    for draws in schedule(problem, rounds=6):
        federation.round(draws)
        w = pfedme(problem, draws, w, kept, settings)
        np.testing.assert_allclose(flat(federation.state["w"]), w, rtol=1e-10)
        assert federation.kept.keys() == kept.keys()
        for device, (theta, own) in kept.items():
            np.testing.assert_allclose(federation.predictor(device), theta, rtol=1e-10)
            np.testing.assert_allclose(federation.other(device, "local"), own, rtol=1e-10)
            np.testing.assert_allclose(federation.other(device, "global"), w, rtol=1e-10)
            assert min(np.abs(theta - own).max(), np.abs(theta - w).max(), np.abs(own - w).max()) > 1e-3


def moreau(problem: Quadratic, lam: float) -> dict[str, Vector]:
    """``M_k = A_k (A_k + lam)^-1``, with which ``grad F_k(w) = lam M_k (w - b_k)``."""
    return {device: A @ np.linalg.inv(A + lam * np.eye(6)) for device, A in problem.A.items()}


def settled(problem: Quadratic, settings: PFedMe, *, steps: int, rounds: int) -> Federation:
    federation = Federation(settings, problem)
    batches = {device: [problem.whole(device)] * steps for device in problem.examples}
    for _ in range(rounds):
        federation.round_of(batches)
    return federation


def fixed_point(problem: Quadratic, parts: dict[str, Vector]) -> Vector:
    """Where ``sum_k parts_k (w - b_k) = 0``."""
    left = sum(parts.values(), np.zeros((6, 6)))
    return np.linalg.solve(left, sum((part @ problem.b[k] for k, part in parts.items()), np.zeros(6)))


@pytest.mark.parametrize("beta", [1.0, 2.0])
def test_one_local_round_settles_where_w_is_the_mean_of_the_personal_models(beta: float) -> None:
    problem = Quadratic(3, spectrum=SPECTRUM)
    federation = settled(problem, dataclasses.replace(EXACT, beta=beta), steps=1, rounds=round(36 / beta))
    w = flat(federation.state["w"])
    np.testing.assert_allclose(w, fixed_point(problem, moreau(problem, EXACT.lam)), rtol=1e-9)
    thetas = [federation.predictor(device) for device in problem.examples]
    np.testing.assert_allclose(np.mean(thetas, axis=0), w, rtol=1e-9)
    np.testing.assert_allclose(thetas[2], problem.prox("pi-2", w, EXACT.lam), rtol=1e-9)
    assert np.abs(w - problem.minimiser(dict.fromkeys(problem.examples, 1 / 3))).max() > 0.01


def test_several_local_rounds_have_a_closed_form() -> None:
    problem, eta, lam = Quadratic(3, spectrum=SPECTRUM), 0.3, EXACT.lam
    federation = Federation(dataclasses.replace(EXACT, lr=eta), problem)
    upload = federation.train("pi-1", [problem.whole("pi-1")] * 4)
    M, b, w = moreau(problem, lam)["pi-1"], problem.b["pi-1"], problem.start()
    before, after = (b + np.linalg.matrix_power(np.eye(6) - eta * lam * M, r) @ (w - b) for r in (3, 4))
    np.testing.assert_allclose(flat(upload["delta"]), after - w, rtol=1e-9)
    np.testing.assert_allclose(flat(federation.kept["pi-1"]["local"]), after, rtol=1e-9)
    np.testing.assert_allclose(federation.predictor("pi-1"), problem.prox("pi-1", before, lam), rtol=1e-9)


def test_several_local_rounds_settle_at_the_biased_fixed_point() -> None:
    problem, eta, lam = Quadratic(3, spectrum=SPECTRUM), 0.9, EXACT.lam
    w = flat(settled(problem, dataclasses.replace(EXACT, lr=eta), steps=3, rounds=16).state["w"])
    M = moreau(problem, lam)
    drift = {k: np.eye(6) - np.linalg.matrix_power(np.eye(6) - eta * lam * M[k], 3) for k in M}
    np.testing.assert_allclose(w, fixed_point(problem, drift), rtol=1e-8)
    assert np.abs(w - fixed_point(problem, M)).max() > 0.01


@pytest.mark.parametrize("start", list(Start))
def test_the_global_model_heeds_theta_only_where_the_solve_starts_from_it(start: Start) -> None:
    problem = Softmax(4)
    settings = PFedMe(lr=0.12, inner_lr=0.13, lam=1.7, start=start)
    federation, spoilt = Federation(settings, problem), Federation(settings, problem)
    for draws in schedule(problem, rounds=5):
        federation.round(draws)
        for kept in spoilt.kept.values():
            kept["theta"] = kept["local"] = kept["theta"] * 3.0 - 1.0
        spoilt.round(draws)
    apart = np.abs(flat(federation.state["w"]) - flat(spoilt.state["w"])).max()
    assert apart == 0 if start is Start.W else apart > 1e-3
    assert len(spoilt.kept) > 1


def test_devices_that_only_sit_in_the_audience_change_nothing() -> None:
    """The paper lets all devices compute and averages a sample: they carry nothing, so the sample suffices."""
    problem = Softmax(4)
    settings = PFedMe(lr=0.12, inner_lr=0.13, lam=1.7)
    everyone_trains, sample = Federation(settings, problem), Federation(settings, problem)
    for all_draws, chosen in zip(
        schedule(problem, rounds=3, share=1.0), (["pi-0", "pi-2"], ["pi-1", "pi-2"], ["pi-3"]), strict=True
    ):
        for device in all_draws.keys() - set(chosen):
            everyone_trains.train(device, [problem.batch(device, draw) for draw in all_draws[device]])
        draws = {device: all_draws[device] for device in chosen}
        everyone_trains.round(draws)
        sample.round(draws)
        for name, tensor in sample.state["w"].items():
            assert torch.equal(everyone_trains.state["w"][name], tensor)
    assert np.abs(flat(sample.state["w"]) - problem.start()).max() > 0.01


@pytest.mark.parametrize("curvature", [0.01, 4.9, 5.1])
def test_the_published_inner_step_oscillates_and_is_stable_only_below_curvature_five(curvature: float) -> None:
    """``inner_lr lam = 1.5``: each inner step leaves ``1 - 0.1 (L + 15)`` of the error, -0.5 where the loss is flat."""
    problem = Quadratic(1)
    problem.A["pi-0"] = curvature * np.eye(6)
    settings = PFedMe()
    exact, errors = problem.prox("pi-0", problem.start(), settings.lam), []
    for steps in (1, 2, 41):
        federation = Federation(dataclasses.replace(settings, inner_steps=steps), problem)
        federation.train("pi-0", [problem.whole("pi-0")])
        errors.append(federation.predictor("pi-0") - exact)
    first, factor = problem.start() - exact, 1 - 0.1 * (curvature + 15)
    assert settings.inner_lr * settings.lam == pytest.approx(1.5)
    assert factor <= -0.5
    np.testing.assert_allclose(errors[0], factor * first, rtol=1e-9)
    np.testing.assert_allclose(errors[1], factor**2 * first, rtol=1e-9)
    assert (np.abs(errors[2]) < np.abs(first)).all() == (curvature < 5)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"inner_lr": 0.2, "lam": 10.0}, "inner_lr . lam = 2 makes the inner solve diverge"),
        ({"lr": 0.1, "lam": 10.0}, "lr . lam = 1 takes the device's copy of w past"),
        ({"start": "nowhere"}, "'nowhere' will not do"),
    ],
)
def test_steps_that_overshoot_for_every_loss_are_refused(settings: dict[str, float | str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        algorithms.build("pfedme", settings)
    published: dict[str, float | str] = {"lr": 0.01, "inner_lr": 0.05, "lam": 30.0, "beta": 2.0}
    assert algorithms.build("pfedme", published).inner_steps == 5


def test_a_round_without_steps_moves_nothing() -> None:
    problem = Softmax(2)
    federation = Federation(PFedMe(), problem)
    federation.train("pi-0", [])
    np.testing.assert_array_equal(flat(federation.kept["pi-0"]["theta"]), problem.start())
    assert flat(federation.train("pi-0", [])["delta"]).max() == 0
