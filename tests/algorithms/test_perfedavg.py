"""Per-FedAvg against a NumPy program, the two fixed points on quadratics, and its personal model."""

from __future__ import annotations

import numpy as np
import pytest
from _driver import Federation, Round, schedule
from _problems import Batch, Draw, Problem, Quadratic, Softmax, Vector, flat, tree_of

from edgepfl import algorithms
from edgepfl.algorithms.fedavg import FedAvg
from edgepfl.algorithms.perfedavg import PerFedAvg
from edgepfl.errors import ConfigError
from edgepfl.plan import Weighting

PROBLEMS = [Quadratic(4), Softmax(4)]
IDS = ["Quadratic", "Softmax"]


def parts(draw: Draw, count: int) -> list[Draw]:
    return [Draw(draw.x[i::count], draw.y[i::count], draw.weight[i::count]) for i in range(count)]


def gradient(problem: Problem, device: str, w: Vector, draw: Draw) -> Vector:
    """0 where every row is padding."""
    return problem.gradient(device, w, draw) if draw.weight.any() else np.zeros_like(w)


def perfedavg(problem: Problem, draws: Round, w: Vector, settings: PerFedAvg) -> Vector:
    """One round, written from the paper's algorithm 1 and its section 5."""
    a, d = settings.alpha, settings.delta
    models, counts = [], []
    for device, batches in draws.items():
        x = w.copy()
        for draw in batches:
            D = parts(draw, 3 if settings.hessian else 2)
            meta = gradient(problem, device, x - a * gradient(problem, device, x, D[0]), D[1])
            if settings.hessian:
                ahead, behind = (gradient(problem, device, x + side * meta, D[2]) for side in (d, -d))
                meta = meta - a * (ahead - behind) / (2 * d)
            x = x - settings.beta * meta
        models.append(x)
        counts.append(problem.examples[device] if settings.weighting is Weighting.EXAMPLES else 1)
    return np.average(models, axis=0, weights=counts)


@pytest.mark.parametrize("problem", PROBLEMS, ids=IDS)
@pytest.mark.parametrize("hessian", [False, True])
@pytest.mark.parametrize("weighting", list(Weighting))
def test_follows_the_numpy_program(problem: Problem, weighting: Weighting, *, hessian: bool) -> None:
    settings = PerFedAvg(alpha=0.3, beta=0.2, delta=0.01, hessian=hessian, weighting=weighting)
    federation = Federation(settings, problem)
    w = problem.start()
    for draws in schedule(problem, rounds=5):
        federation.round(draws)
        w = perfedavg(problem, draws, w, settings)
        np.testing.assert_allclose(flat(federation.state["w"]), w, rtol=1e-10)
    assert np.abs(w - problem.start()).max() > 0.1
    assert PerFedAvg().weighting is Weighting.UNIFORM


def repeated(draw: Draw) -> Draw:
    """Each row six times, so that two or three parts are alike, and as the whole."""
    rows = np.repeat(np.arange(len(draw.y)), 6)
    return Draw(draw.x[rows], draw.y[rows], draw.weight[rows])


def whole(problem: Quadratic, device: str) -> Batch:
    """The full batch, and so are its parts."""
    return problem.batch(device, repeated(problem.draw(device, list(range(problem.examples[device])))))


def settled(problem: Quadratic, settings: PerFedAvg, rounds: int) -> Vector:
    federation = Federation(settings, problem)
    batches = {device: [whole(problem, device)] for device in problem.examples}
    for _ in range(rounds):
        federation.round_of(batches)
    return flat(federation.state["w"])


def test_both_forms_settle_where_they_should_and_the_two_places_differ() -> None:
    problem, a = Quadratic(4, spectrum=(1.0, 2.0)), 0.2
    first = {k: A @ (np.eye(6) - a * A) for k, A in problem.A.items()}
    exact = {k: (np.eye(6) - a * A) @ A @ (np.eye(6) - a * A) for k, A in problem.A.items()}
    ends = []
    for M, hessian in ((first, False), (exact, True)):
        w = np.linalg.solve(sum(M.values(), np.zeros((6, 6))), sum((M[k] @ problem.b[k] for k in M), np.zeros(6)))
        found = settled(problem, PerFedAvg(alpha=a, beta=1.0, hessian=hessian), rounds=60)
        np.testing.assert_allclose(found, w, rtol=1e-8)
        ends.append(w)
    assert np.abs(ends[0] - ends[1]).max() > 0.01


def test_the_exact_form_minimises_the_loss_after_a_personal_step() -> None:
    problem, a = Quadratic(4, spectrum=(1.0, 2.0)), 0.2

    def objective(w: Vector) -> float:
        stepped = {k: w - a * A @ (w - problem.b[k]) - problem.b[k] for k, A in problem.A.items()}
        return float(np.mean([x @ problem.A[k] @ x / 2 for k, x in stepped.items()]))

    found = settled(problem, PerFedAvg(alpha=a, beta=1.0, hessian=True), rounds=60)
    rough = settled(problem, PerFedAvg(alpha=a, beta=1.0), rounds=60)
    around = np.random.default_rng(0).normal(size=(20, 6)) * 0.01
    assert all(objective(found) < objective(found + each) for each in around)
    assert objective(found) < objective(rough)


def test_the_central_difference_is_the_hessian_product() -> None:
    problem = Softmax(1)
    draw = problem.draw("pi-0", [0, 1, 2, 3])
    x, b = problem.start(), problem.batch("pi-0", draw)
    along = np.random.default_rng(0).normal(size=15)
    logits = draw.x @ x[3:].reshape(4, 3) + x[:3]
    odds = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    moved = draw.x @ along[3:].reshape(4, 3) + along[:3]
    change = odds * (moved - (odds * moved).sum(1, keepdims=True)) / 4
    product = np.concatenate([change.sum(0), (draw.x.T @ change).ravel()])
    trees = [tree_of(each, problem.shapes) for each in (x, along)]
    found = PerFedAvg(delta=1e-4)._hessian_product(b, trees[0], trees[1])
    np.testing.assert_allclose(flat(found), product, rtol=1e-6, atol=1e-9)
    assert np.abs(product).max() > 0.01


def test_the_hessians_part_vanishes_with_alpha() -> None:
    problem = Softmax(4)
    (draws,) = schedule(problem, rounds=1)
    ends = []
    for hessian in (False, True):
        federation = Federation(PerFedAvg(alpha=0.0, beta=0.3, hessian=hessian), problem)
        federation.round({device: [repeated(draw) for draw in draws[device]] for device in draws})
        ends.append(flat(federation.state["w"]))
    plain = Federation(FedAvg(lr=0.3, weighting=Weighting.UNIFORM), problem)
    plain.round(draws)
    for end in ends:
        np.testing.assert_allclose(end, flat(plain.state["w"]), rtol=1e-12)
    assert np.abs(ends[0] - problem.start()).max() > 0.01


def test_each_part_is_used_for_its_own_gradient() -> None:
    problem = Quadratic(1)
    rows = {"first": [0, 1], "second": [2, 3], "third": [4, 0]}
    A, x = problem.A["pi-0"], problem.start()
    b = {name: problem.centres["pi-0"][each].mean(0) for name, each in rows.items()}
    mixed = np.array(list(rows.values())).T.ravel().tolist()  # row i goes to part i % 3
    federation = Federation(PerFedAvg(alpha=0.3, beta=0.5, hessian=True), problem)
    federation.round_of({"pi-0": [problem.batch("pi-0", problem.draw("pi-0", mixed))]})
    g = A @ (x - 0.3 * A @ (x - b["first"]) - b["second"])
    np.testing.assert_allclose(flat(federation.state["w"]), x - 0.5 * (g - 0.3 * A @ g), rtol=1e-9)
    assert np.abs(b["first"] - b["second"]).max() > 0.1


def test_the_personal_model_is_steps_of_size_alpha_from_the_global_one() -> None:
    problem = Softmax(4)
    federation = Federation(PerFedAvg(alpha=0.4, beta=0.1), problem)
    (draws,) = schedule(problem, rounds=1, steps=2)
    federation.round(draws)
    device = min(draws)
    w = v = flat(federation.state["w"])
    for draw in draws[device]:
        v = v - 0.4 * problem.gradient(device, v, draw)
    tuned = federation.predictor(device, [problem.batch(device, draw) for draw in draws[device]])
    np.testing.assert_allclose(tuned, v, rtol=1e-10)
    np.testing.assert_array_equal(federation.predictor(device), w)
    np.testing.assert_array_equal(federation.other(device, "global"), w)
    assert np.abs(v - w).max() > 0.01


@pytest.mark.parametrize("delta", [0.0, -0.001])
def test_refuses_a_difference_without_spread(delta: float) -> None:
    with pytest.raises(ConfigError, match=rf"delta = {delta} is no spread") as caught:
        algorithms.build("perfedavg", {"delta": delta})
    assert caught.value.where == "PerFedAvg"
