"""pFedMac against a NumPy program, its closed forms on quadratics, what its norms make sparse, and its guard."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from _driver import Federation, Round, schedule
from _problems import Problem, Quadratic, Softmax, Vector, flat

from edgepfl import algorithms
from edgepfl.algorithms.pfedmac import FARTHEST, PFedMac, Sparsity
from edgepfl.errors import ConfigError
from edgepfl.plan import Weighting
from edgepfl.tree import Tree
from exporters.statistics import Measured

PROBLEMS = [Quadratic(4), Softmax(4)]
IDS = ["Quadratic", "Softmax"]
SETTINGS = PFedMac(lr=0.6, inner_lr=0.13, mu=0.7, gamma=0.5, rho=0.3)
EXACT = PFedMac(lr=4.5, inner_lr=1.0, mu=0.2, inner_steps=26, gamma=0.3, rho=0.2)
"""With eigenvalues from 0.6 to 1.4 each inner step leaves at most 0.4 of the error."""


def soft(x: Vector, by: float) -> Vector:
    return np.asarray(np.sign(x) * np.maximum(np.abs(x) - by, 0))


def pfedmac(problem: Problem, draws: Round, w: Vector, thetas: dict[str, Vector], settings: PFedMac) -> Vector:
    """One round of the two-level loop; moves ``thetas``."""
    uploads, counts = [], []
    for device, batches in draws.items():
        own = w
        for draw in batches:
            theta = own
            for _ in range(settings.inner_steps):
                slope = problem.gradient(device, theta, draw) - settings.mu * own
                if settings.sparsity is Sparsity.SMOOTH:
                    slope = slope + settings.gamma * np.tanh(theta / settings.rho)
                theta = theta - settings.inner_lr * slope
                if settings.sparsity is Sparsity.EXACT:
                    theta = soft(theta, settings.inner_lr * settings.gamma)
            own = own - settings.lr * settings.mu * (own - theta)
            thetas[device] = theta
        uploads.append(own)
        counts.append(problem.examples[device] if settings.weighting is Weighting.EXAMPLES else 1)
    return (1 - settings.beta) * w + settings.beta * np.average(uploads, axis=0, weights=counts)


@pytest.mark.parametrize("problem", PROBLEMS, ids=IDS)
@pytest.mark.parametrize("sparsity", list(Sparsity))
def test_follows_the_numpy_program(problem: Problem, sparsity: Sparsity) -> None:
    settings = dataclasses.replace(SETTINGS, sparsity=sparsity)
    federation = Federation(settings, problem)
    w, thetas = problem.start(), dict[str, Vector]()
    for draws in schedule(problem, rounds=6):
        federation.round(draws)
        w = pfedmac(problem, draws, w, thetas, settings)
        np.testing.assert_allclose(flat(federation.state["w"]), w, rtol=1e-10)
        assert federation.kept.keys() == thetas.keys()
        for device, theta in thetas.items():
            np.testing.assert_allclose(federation.predictor(device), theta, rtol=1e-10)
            np.testing.assert_allclose(federation.other(device, "global"), w, rtol=1e-10)
        for device in draws:
            told = federation.told[device]
            assert told["norm"] == pytest.approx(np.linalg.norm(thetas[device]), rel=1e-10)
            assert told["sparsity"] == pytest.approx(np.mean(thetas[device] == 0), abs=1e-12)
    zeros = [np.mean(theta == 0) for theta in thetas.values()]
    assert max(zeros) > 0.05 if sparsity is Sparsity.EXACT else max(zeros) == 0


@pytest.mark.parametrize("weighting", list(Weighting))
def test_the_servers_step_and_weights_follow_the_numpy_program(weighting: Weighting) -> None:
    problem = Softmax(4)
    settings = dataclasses.replace(SETTINGS, beta=1.7, weighting=weighting)
    federation, w = Federation(settings, problem), problem.start()
    for draws in schedule(problem, rounds=5):
        federation.round(draws)
        w = pfedmac(problem, draws, w, {}, settings)
        np.testing.assert_allclose(flat(federation.state["w"]), w, rtol=1e-10)
    assert PFedMac().weighting is Weighting.UNIFORM


def settled(problem: Quadratic, settings: PFedMac, *, rounds: int) -> Federation:
    federation = Federation(settings, problem)
    for _ in range(rounds):
        federation.round_of({device: [problem.whole(device)] for device in problem.examples})
    return federation


@pytest.mark.parametrize("beta", [1.0, 1.4])
def test_settles_where_w_is_the_mean_of_the_personal_models(beta: float) -> None:
    problem, mu = Quadratic(3, spectrum=(0.6, 1.4)), EXACT.mu
    federation = settled(problem, dataclasses.replace(EXACT, beta=beta), rounds=28)
    inverse = {device: np.linalg.inv(A) for device, A in problem.A.items()}
    mean = sum(inverse.values(), np.zeros((6, 6))) / 3
    w = np.linalg.solve(np.eye(6) - mu * mean, np.mean(list(problem.b.values()), axis=0))
    np.testing.assert_allclose(flat(federation.state["w"]), w, rtol=1e-7)
    thetas = {device: federation.predictor(device) for device in inverse}
    for device, theta in thetas.items():
        np.testing.assert_allclose(theta, problem.b[device] + mu * inverse[device] @ w, rtol=1e-7)
    np.testing.assert_allclose(np.mean(list(thetas.values()), axis=0), w, rtol=1e-7)


def test_without_correlation_theta_is_local_and_w_stays() -> None:
    problem = Quadratic(3, spectrum=(0.6, 1.4))
    federation = settled(problem, dataclasses.replace(EXACT, mu=0.0), rounds=1)
    np.testing.assert_array_equal(flat(federation.state["w"]), problem.start())
    for device, b in problem.b.items():
        np.testing.assert_allclose(federation.predictor(device), b, rtol=1e-8)


def diagonal(problem: Quadratic) -> Quadratic:
    """The problem with only the diagonals of its matrices."""
    problem.A = {device: np.diag(np.diag(A)) for device, A in problem.A.items()}
    return problem


def test_the_exact_norm_gives_the_soft_thresholded_minimiser_with_true_zeros() -> None:
    problem, mu, gamma = diagonal(Quadratic(3, spectrum=(0.6, 1.4))), EXACT.mu, 1.1
    federation = settled(problem, dataclasses.replace(EXACT, sparsity=Sparsity.EXACT, gamma=gamma), rounds=1)
    w, zeros = problem.start(), 0
    for device, A in problem.A.items():
        a, theta = np.diag(A), federation.predictor(device)
        np.testing.assert_allclose(theta, soft(a * problem.b[device] + mu * w, gamma) / a, rtol=1e-8, atol=0)
        slope = a * (theta - problem.b[device]) - mu * w
        np.testing.assert_allclose(slope[theta != 0], -gamma * np.sign(theta[theta != 0]), rtol=1e-8)
        assert (np.abs(slope[theta == 0]) <= gamma).all()
        assert federation.told[device]["sparsity"] == pytest.approx(np.mean(theta == 0))
        zeros += int((theta == 0).sum())
    assert 0 < zeros < 18


def test_the_smooth_norm_is_stationary_and_nears_the_exact_one_without_zeros() -> None:
    problem, mu, gamma, rho = diagonal(Quadratic(2, spectrum=(0.6, 1.4))), EXACT.mu, 0.3, 0.2
    settings = dataclasses.replace(EXACT, inner_lr=0.5, inner_steps=80, gamma=gamma, rho=rho)
    smooth = settled(problem, dataclasses.replace(settings, sparsity=Sparsity.SMOOTH), rounds=1)
    exact = settled(problem, dataclasses.replace(settings, sparsity=Sparsity.EXACT), rounds=1)
    w = problem.start()
    for device, A in problem.A.items():
        theta = smooth.predictor(device)
        slope = A @ (theta - problem.b[device]) - mu * w + gamma * np.tanh(theta / rho)
        np.testing.assert_allclose(slope, 0, atol=1e-9)
        assert np.abs(theta - exact.predictor(device)).max() < rho
        assert smooth.told[device]["sparsity"] == 0


def test_norms_of_no_weight_change_no_bit() -> None:
    problem = Softmax(4)
    dense, *others = (
        Federation(dataclasses.replace(SETTINGS, gamma=gamma, sparsity=sparsity), problem)
        for gamma, sparsity in [(0.5, Sparsity.NONE), (0.0, Sparsity.EXACT), (0.0, Sparsity.SMOOTH)]
    )
    for draws in schedule(problem, rounds=4):
        dense.round(draws)
        for federation in others:
            federation.round(draws)
            for name, tensor in dense.state["w"].items():
                assert torch.equal(federation.state["w"][name], tensor)
    assert np.abs(flat(dense.state["w"]) - problem.start()).max() > 0.01


def test_the_global_model_does_not_depend_on_what_a_device_keeps() -> None:
    problem = Softmax(4)
    federation, spoilt = Federation(SETTINGS, problem), Federation(SETTINGS, problem)
    for draws in schedule(problem, rounds=4):
        federation.round(draws)
        for kept in spoilt.kept.values():
            kept["theta"] = kept["theta"] * 3.0 - 1.0
        spoilt.round(draws)
    np.testing.assert_array_equal(flat(federation.state["w"]), flat(spoilt.state["w"]))
    assert len(spoilt.kept) > 1


def test_a_personal_model_that_runs_away_uploads_no_number() -> None:
    """Softmax losses grow linearly at most, so the correlation wins; the same steps are sound on a quadratic."""
    settings = PFedMac(lr=0.01, inner_lr=0.5, mu=50.0, inner_steps=100)
    for problem, sound in ((Softmax(2), False), (Quadratic(2), True)):
        federation = Federation(settings, problem)
        batch = problem.batch("pi-0", schedule(problem, rounds=1, share=1.0)[0]["pi-0"][0])
        upload = flat(federation.train("pi-0", [batch])["delta"])
        told = federation.told["pi-0"]
        assert np.isfinite(upload).all() if sound else np.isnan(upload).all()
        assert (told["norm"] <= FARTHEST * (1 + np.linalg.norm(problem.start()))) == sound
        assert np.isfinite(federation.predictor("pi-0")).all()


def test_a_correlation_above_the_losss_curvature_makes_the_global_model_grow() -> None:
    """The published weight of 15 on softmax regression; the default settles beside the loss's own scale."""
    problem = Softmax(4)
    grown = []
    for settings in (PFedMac(lr=0.01, inner_lr=0.01, mu=15.0), PFedMac()):
        federation = Federation(settings, problem)
        for draws in schedule(problem, rounds=3, steps=20, share=1.0):
            federation.round(draws)
        grown.append(np.linalg.norm(flat(federation.state["w"])) / np.linalg.norm(problem.start()))
    assert grown[0] > 100
    assert grown[1] < 1.5


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_a_personal_model_that_is_no_number_uploads_none(value: float) -> None:
    federation = Federation(PFedMac(), Quadratic(2))
    s = dict(federation.opening("pi-0"))
    s |= federation.algorithm.begin(s)
    assert np.isfinite(flat(federation.algorithm.finish(s)["delta"])).all()
    s["theta"] = s["theta"].map(lambda tensor: torch.full_like(tensor, value))
    assert np.isnan(flat(federation.algorithm.finish(s)["delta"])).all()


@pytest.mark.parametrize("sparsity", list(Sparsity))
def test_running_statistics_go_where_they_were_measured_whatever_shrinks_the_parameters(sparsity: Sparsity) -> None:
    class Batch:
        def grad(self, params: Tree) -> Tree:
            return Tree({"mean": Measured(torch.tensor([0.02, -9.0])), "weight": 0 * params["weight"]})

    model = Tree({"mean": torch.ones(2), "weight": torch.tensor([0.02, -9.0])})
    algorithm = PFedMac(inner_lr=0.5, mu=0.0, gamma=0.1, rho=0.01, sparsity=sparsity)
    z = algorithm.inner({"x": model, "z": model}, Batch())["z"]  # type: ignore[arg-type]  # all that inner asks for
    assert torch.equal(z["mean"].resolved(), torch.tensor([0.02, -9.0]))
    shrunk = z["weight"].tolist()
    assert (shrunk == [0.0, pytest.approx(-8.95)]) == (sparsity is Sparsity.EXACT)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lr": 0.1, "mu": 15.0}, "lr . mu = 1.5 takes the device's copy of w past"),
        ({"mu": -0.1}, "not negative"),
        ({"gamma": -0.1, "sparsity": "exact"}, "not negative"),
        ({"rho": 0.0, "sparsity": "smooth"}, "rho = 0 is no width"),
        ({"sparsity": "l0"}, "'l0' will not do"),
    ],
)
def test_weights_that_contradict_the_method_are_refused(settings: dict[str, float | str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        algorithms.build("pfedmac", settings)
    assert algorithms.build("pfedmac", {"lr": 0.01, "mu": 15.0, "rho": 0.0}).inner_steps == 5
