"""APFL against a NumPy program, the derivative of its mixture's weight, and its limits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from _driver import Federation, Round, schedule
from _problems import Draw, Problem, Quadratic, Softmax, Vector, flat, tree_of

from edgepfl.algorithms.apfl import APFL, AlphaEvery, Mix
from edgepfl.algorithms.fedavg import FedAvg
from edgepfl.plan import TensorSpec, Weighting
from edgepfl.tree import Tree, Trees

PROBLEMS = [Quadratic(4), Softmax(4)]


EPOCH = 2  # minibatches


@dataclass
class Epochs(Federation):
    """Devices whose epoch is shorter than a round."""

    def opening(self, device: str, steps: int = 0) -> Trees:
        return {**super().opening(device, steps), "epoch": Tree.scalar(torch.tensor(float(EPOCH)))}


PERIODS = {AlphaEvery.ROUND: 10**9, AlphaEvery.EPOCH: EPOCH, AlphaEvery.STEP: 1}


def apfl(problem: Problem, draws: Round, w: Vector, kept: dict[str, tuple[Vector, float]], settings: APFL) -> Vector:
    """One round, written from the paper's algorithm 1, the weight moved as often as is said; moves ``kept``."""
    models = []
    for device, batches in draws.items():
        x = w.copy()
        v, alpha = kept.get(device, (w.copy(), settings.alpha_first))
        for place, draw in enumerate(batches):
            g_x = problem.gradient(device, x, draw)
            g_v = problem.gradient(device, alpha * v + (1 - alpha) * x, draw)
            if place % PERIODS[settings.alpha_every] == 0:
                slope = (v - x) @ g_v + settings.alpha_reg * alpha
                alpha = float(np.clip(alpha - settings.alpha_lr * slope, 0, 1))
            x = x - settings.lr * g_x
            v = v - settings.lr * alpha * g_v
        kept[device] = v, alpha
        models.append(x)
    return np.asarray(np.mean(models, axis=0))


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: type(problem).__name__)
@pytest.mark.parametrize("alpha_every", list(AlphaEvery))
@pytest.mark.parametrize("alpha_reg", [0.0, 0.3])
def test_follows_the_numpy_program(problem: Problem, alpha_every: AlphaEvery, alpha_reg: float) -> None:
    settings = APFL(lr=0.11, alpha_lr=0.02, alpha_first=0.35, alpha_every=alpha_every, alpha_reg=alpha_reg)
    federation = Epochs(settings, problem)
    w, kept = problem.start(), dict[str, tuple[Vector, float]]()
    for draws in schedule(problem, rounds=6, steps=5):
        federation.round(draws)
        w = apfl(problem, draws, w, kept, settings)
        np.testing.assert_allclose(flat(federation.state["w"]), w, rtol=1e-10)
        assert federation.kept.keys() == kept.keys()
        for device, (v, alpha) in kept.items():
            np.testing.assert_allclose(flat(federation.kept[device]["v"]), v, rtol=1e-10)
            np.testing.assert_allclose(federation.kept[device]["alpha"].value.item(), alpha, rtol=1e-10)
            np.testing.assert_allclose(federation.predictor(device), alpha * v + (1 - alpha) * w, rtol=1e-10)
            np.testing.assert_allclose(federation.told[device]["alpha_k"], alpha, rtol=1e-10)
    assert any(abs(alpha - 0.35) > 1e-3 for _, alpha in kept.values())


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: type(problem).__name__)
@pytest.mark.parametrize("weighting", list(Weighting))
def test_the_global_branch_is_fedavg_bit_for_bit(problem: Problem, weighting: Weighting) -> None:
    federation = Federation(APFL(lr=0.11, alpha_first=0.8, weighting=weighting), problem)
    plain = Federation(FedAvg(lr=0.11, weighting=weighting), problem)
    for draws in schedule(problem, rounds=5):
        federation.round(draws)
        plain.round(draws)
        for name, tensor in plain.state["w"].items():
            assert torch.equal(federation.state["w"][name], tensor)
    assert APFL().weighting is Weighting.UNIFORM


def one_step(settings: APFL, alpha: float, v: Vector) -> tuple[Quadratic, float, Vector]:
    """The weight and the local model after one full-batch step from ``w = x = start``."""
    problem = Quadratic(1, seed=4)
    federation = Federation(settings, problem)
    weight = Tree.scalar(torch.tensor(alpha, dtype=torch.float64))
    federation.kept["pi-0"] = {"v": tree_of(v, problem.shapes), "alpha": weight}
    federation.train("pi-0", [problem.whole("pi-0")])
    kept = federation.kept["pi-0"]
    return problem, kept["alpha"].value.item(), flat(kept["v"])


def loss(problem: Quadratic, w: Vector) -> float:
    apart = w - problem.b["pi-0"]
    return float(apart @ problem.A["pi-0"] @ apart / 2)


def test_the_weight_moves_along_the_derivative_of_the_mixtures_loss() -> None:
    v, alpha, alpha_lr = np.linspace(-1, 2, 6), 0.37, 1e-3
    problem, moved, _ = one_step(APFL(lr=0.1, alpha_lr=alpha_lr), alpha, v)
    x, tiny = problem.start(), 1e-6
    higher = loss(problem, (alpha + tiny) * v + (1 - alpha - tiny) * x)
    lower = loss(problem, (alpha - tiny) * v + (1 - alpha + tiny) * x)
    slope = (higher - lower) / (2 * tiny)
    assert abs(slope) > 0.1
    np.testing.assert_allclose((alpha - moved) / alpha_lr, slope, rtol=1e-6)


def test_the_local_model_moves_along_its_own_derivative_which_has_the_factor_alpha() -> None:
    v, alpha = np.linspace(-1, 2, 6), 0.37
    problem, _, moved = one_step(APFL(lr=0.1, alpha_lr=0.0), alpha, v)
    x, tiny = problem.start(), 1e-6 * np.eye(6)
    rise = [loss(problem, alpha * (v + e) + (1 - alpha) * x) for e in tiny]
    fall = [loss(problem, alpha * (v - e) + (1 - alpha) * x) for e in tiny]
    np.testing.assert_allclose((v - moved) / 0.1, (np.array(rise) - np.array(fall)) / 2e-6, rtol=1e-5, atol=1e-8)
    A, b = problem.A["pi-0"], problem.b["pi-0"]
    separate = alpha * A @ (v - b) + (1 - alpha) * A @ (x - b)  # exact, since the loss is quadratic
    np.testing.assert_allclose(v - moved, 0.1 * alpha * separate, rtol=1e-12)


def test_the_new_weight_scales_the_local_step() -> None:
    v = np.linspace(-1, 2, 6)
    problem, alpha, moved = one_step(APFL(lr=0.1, alpha_lr=0.05), 0.37, v)
    at_mixture = problem.A["pi-0"] @ (0.37 * v + 0.63 * problem.start() - problem.b["pi-0"])
    assert abs(alpha - 0.37) > 0.01
    np.testing.assert_allclose(v - moved, 0.1 * alpha * at_mixture, rtol=1e-12)


@pytest.mark.parametrize(("sign", "bound"), [(1, 0.0), (-1, 1.0)])
def test_the_weight_is_clipped(sign: int, bound: float) -> None:
    v = np.linspace(-1, 2, 6)
    problem, moved, _ = one_step(APFL(alpha_lr=1e-3), 0.5, v)
    slope = np.sign(0.5 - moved)
    _, clipped, _ = one_step(APFL(alpha_lr=float(sign * slope * 1e6)), 0.5, v)
    assert clipped == bound
    assert loss(problem, v) > 0


def test_the_weight_moves_once_a_round_on_the_first_minibatch() -> None:
    problem = Softmax(1)
    first, *others = schedule(problem, rounds=3, steps=3, share=1.0)
    kept = []
    for later in others:
        federation = Federation(APFL(alpha_lr=0.3), problem)
        federation.round(first)  # now v is not w, so the weight has a slope
        at_start = federation.kept["pi-0"]["alpha"].value.item()
        federation.round({"pi-0": [first["pi-0"][0], *later["pi-0"][1:]]})
        kept.append(federation.kept["pi-0"])
        assert kept[-1]["alpha"].value.item() != at_start
    assert torch.equal(kept[0]["alpha"].value, kept[1]["alpha"].value)
    assert np.abs(flat(kept[0]["v"]) - flat(kept[1]["v"])).max() > 1e-3


def test_weight_zero_freezes_the_local_model_and_predicts_with_fedavgs() -> None:
    problem = Softmax(4)
    federation = Federation(APFL(lr=0.2, alpha_lr=0.0, alpha_first=0.0), problem)
    plain = Federation(FedAvg(lr=0.2, weighting=Weighting.UNIFORM), problem)
    started: dict[str, Tree] = {}
    for draws in schedule(problem, rounds=5):
        started |= {device: federation.state["w"] for device in draws if device not in started}
        federation.round(draws)
        plain.round(draws)
    for device, v in started.items():
        np.testing.assert_array_equal(flat(federation.kept[device]["v"]), flat(v))
        np.testing.assert_array_equal(federation.predictor(device), flat(plain.state["w"]))


def test_weight_one_is_local_training() -> None:
    problem = Softmax(4)
    federation = Federation(APFL(lr=0.2, alpha_lr=0.0, alpha_first=1.0), problem)
    v = dict[str, Vector]()
    for draws in schedule(problem, rounds=5):
        started = flat(federation.state["w"])
        federation.round(draws)
        for device, batches in draws.items():
            v.setdefault(device, started)
            for draw in batches:
                v[device] = v[device] - 0.2 * problem.gradient(device, v[device], draw)
            np.testing.assert_allclose(flat(federation.kept[device]["v"]), v[device], rtol=1e-10)
            np.testing.assert_allclose(federation.predictor(device), v[device], rtol=1e-10)


@pytest.mark.parametrize("alpha", [0.3, 0.7, 1.0])
def test_with_enough_steps_any_weight_reaches_the_local_minimiser(alpha: float) -> None:
    problem = Quadratic(1)
    federation = Federation(APFL(lr=0.4, alpha_lr=0.0, alpha_first=alpha), problem)
    federation.train("pi-0", [problem.whole("pi-0")] * 900)
    v, x = flat(federation.kept["pi-0"]["v"]), problem.b["pi-0"]
    np.testing.assert_allclose(alpha * v + (1 - alpha) * x, problem.b["pi-0"], rtol=1e-9)
    assert np.abs(problem.start() - problem.b["pi-0"]).max() > 0.1


def softmax_gradient(logits: Vector, draw: Draw) -> tuple[Vector, Vector]:
    """The gradients of the mean cross-entropy in the logits and, through them, in a model that is linear."""
    odds = np.exp(logits - logits.max(1, keepdims=True))
    error = odds / odds.sum(1, keepdims=True) - np.eye(3)[draw.y]
    error *= draw.weight[:, None] / draw.weight.sum()
    return error, np.concatenate([error.sum(0), (draw.x.T @ error).ravel()])


def logits_of(w: Vector, x: Vector) -> Vector:
    return np.asarray(x @ w[3:].reshape(4, 3) + w[:3])


def test_mixed_outputs_follow_the_authors_code() -> None:
    problem, settings = Softmax(4), APFL(lr=0.11, alpha_lr=0.2, alpha_first=0.35, alpha_reg=0.02, mix=Mix.OUTPUTS)
    federation = Federation(settings, problem)
    w, kept = problem.start(), dict[str, tuple[Vector, float]]()
    for draws in schedule(problem, rounds=5):
        federation.round(draws)
        models = []
        for device, batches in draws.items():
            x, (v, alpha) = w, kept.get(device, (w, 0.35))
            for place, draw in enumerate(batches):
                mixed = alpha * logits_of(v, draw.x) + (1 - alpha) * logits_of(x, draw.x)
                _, through = softmax_gradient(mixed, draw)
                of_v, of_x = alpha * through, (1 - alpha) * through
                if place == 0:
                    slope = (v - x) @ (alpha * of_v + (1 - alpha) * of_x) + 0.02 * alpha
                    alpha = float(np.clip(alpha - 0.2 * slope, 0, 1))
                x, v = x - 0.11 * problem.gradient(device, x, draw), v - 0.11 * of_v
            kept[device] = v, alpha
            models.append(x)
        w = np.asarray(np.mean(models, axis=0))
        np.testing.assert_allclose(flat(federation.state["w"]), w, rtol=1e-10)
        for device, (v, alpha) in kept.items():
            np.testing.assert_allclose(flat(federation.kept[device]["v"]), v, rtol=1e-10)
            np.testing.assert_allclose(federation.told[device]["alpha_k"], alpha, rtol=1e-10)


def test_on_a_linear_model_the_authors_slope_is_the_derivative_times_a_factor() -> None:
    problem, alpha, alpha_lr = Softmax(1), 0.3, 1e-3
    v = np.linspace(-1, 2, 15)
    batch = problem.batch("pi-0", problem.draw("pi-0", [0, 1, 2, 3]))
    moved = {}
    for mix in Mix:
        federation = Federation(APFL(alpha_lr=alpha_lr, mix=mix), problem)
        weight = Tree.scalar(torch.tensor(alpha, dtype=torch.float64))
        federation.kept["pi-0"] = {"v": tree_of(v, problem.shapes), "alpha": weight}
        federation.train("pi-0", [batch])
        moved[mix] = alpha - federation.kept["pi-0"]["alpha"].value.item()
    np.testing.assert_allclose(moved[Mix.OUTPUTS], moved[Mix.WEIGHTS] * (alpha**2 + (1 - alpha) ** 2), rtol=1e-9)
    assert abs(moved[Mix.WEIGHTS]) > 1e-5


def test_mixed_outputs_are_what_is_predicted() -> None:
    problem = Softmax(4)
    federation = Federation(APFL(alpha_first=0.3, mix=Mix.OUTPUTS), problem)
    for draws in schedule(problem, rounds=3):
        federation.round(draws)
    device = min(federation.kept)
    s = federation.prepared(device)
    params, shared = federation.algorithm.predictor(s), federation.algorithm.others(s)["global"]
    specs = {name: TensorSpec(shape) for name, shape in problem.shapes.items()}
    served = federation.algorithm.served(specs)
    for tree in (params, shared):
        assert {name: tuple(tensor.shape) for name, tensor in tree.items()} == {n: s.shape for n, s in served.items()}
    draw = problem.draw(device, [0, 1, 2, 3])
    batch = problem.batch(device, draw)
    v, alpha = flat(federation.kept[device]["v"]), federation.kept[device]["alpha"].value.item()
    of_v, of_w = logits_of(v, draw.x), logits_of(flat(federation.state["w"]), draw.x)
    given = federation.algorithm.predict(batch, params)
    np.testing.assert_allclose(given, alpha * of_v + (1 - alpha) * of_w, rtol=1e-12)
    np.testing.assert_array_equal(federation.algorithm.predict(batch, shared), batch.outputs(federation.state["w"]))
    assert shared["alpha"] == 0  # so that it is bit for bit for every weight
    assert np.abs(of_v - of_w).max() > 0.01
