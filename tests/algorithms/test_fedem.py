"""FedEM against a NumPy program, the properties of EM, and FedAvg where there is one component."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from _driver import Federation, Round, schedule
from _problems import Batch, Draw, Problem, Quadratic, Shapes, Softmax, Vector, flat, tree_of

from edgepfl import algorithms
from edgepfl.algorithms.fedavg import FedAvg
from edgepfl.algorithms.fedem import FedEM
from edgepfl.errors import ConfigError
from edgepfl.plan import Role, TensorSpec, Weighting

PROBLEMS = [Quadratic(4), Softmax(4)]
IDS = ["Quadratic", "Softmax"]


def losses(problem: Problem, device: str, w: Vector, draw: Draw) -> Vector:
    """The loss of each row, by hand."""
    if isinstance(problem, Quadratic):
        apart = w - draw.x
        return np.asarray(np.einsum("ij,jk,ik->i", apart, problem.A[device], apart) / 2)
    logits = draw.x @ w[3:].reshape(4, 3) + w[:3]
    chosen = logits[np.arange(len(draw.y)), draw.y]
    return np.asarray(np.log(np.exp(logits).sum(1)) - chosen)


def responsibilities(all_losses: Vector, pi: Vector) -> Vector:
    """``(M, size)``."""
    joint = pi[:, None] * np.exp(-all_losses)
    return np.asarray(joint / joint.sum(0))


@dataclass
class Program:
    """The paper's algorithm 1, the E-step on each minibatch."""

    problem: Problem
    settings: FedEM
    theta: list[Vector]
    pi: dict[str, Vector] = field(default_factory=dict)

    def round(self, draws: Round) -> None:
        uploads, counts = [], []
        for device, batches in draws.items():
            uploads.append(self.train(device, batches))
            examples = self.settings.weighting is Weighting.EXAMPLES
            counts.append(self.problem.examples[device] if examples else 1)
        self.theta = [np.average(each, axis=0, weights=counts) for each in zip(*uploads, strict=True)]

    def train(self, device: str, batches: Sequence[Draw]) -> list[Vector]:
        M = len(self.theta)
        pi, x = self.pi.get(device, np.full(M, 1 / M)), list(self.theta)
        rows = []
        for draw in batches:
            q = responsibilities(np.array([losses(self.problem, device, each, draw) for each in self.theta]), pi)
            for m in range(M):
                mine = Draw(draw.x, draw.y, draw.weight * q[m])
                share = mine.weight.sum() / draw.weight.sum()
                x[m] = x[m] - self.settings.lr * share * self.problem.gradient(device, x[m], mine)
            rows.append(q[:, draw.weight > 0])
        self.pi[device] = np.concatenate(rows, axis=1).mean(1)
        return x


def thetas(federation: Federation) -> list[Vector]:
    return [flat(federation.state[f"theta{m}"]) for m in range(len(federation.state))]


def pis(federation: Federation) -> dict[str, Vector]:
    return {device: kept["pi"].value.numpy() for device, kept in federation.kept.items()}


@pytest.mark.parametrize("problem", PROBLEMS, ids=IDS)
@pytest.mark.parametrize("weighting", list(Weighting))
def test_follows_the_numpy_program(problem: Problem, weighting: Weighting) -> None:
    settings = FedEM(lr=0.2, components=3, weighting=weighting)
    federation = Federation(settings, problem)
    program = Program(problem, settings, thetas(federation))
    for draws in schedule(problem, rounds=6):
        federation.round(draws)
        program.round(draws)
        for found, theta in zip(thetas(federation), program.theta, strict=True):
            np.testing.assert_allclose(found, theta, rtol=1e-10)
        assert pis(federation).keys() == program.pi.keys()
        for device, pi in program.pi.items():
            np.testing.assert_allclose(pis(federation)[device], pi, rtol=1e-10)
            np.testing.assert_allclose(pi.sum(), 1, rtol=1e-12)
    assert max(np.abs(pi - 1 / 3).max() for pi in program.pi.values()) > 0.05


@pytest.mark.parametrize("problem", PROBLEMS, ids=IDS)
@pytest.mark.parametrize("weighting", list(Weighting))
def test_with_one_component_it_is_fedavg_bit_for_bit(problem: Problem, weighting: Weighting) -> None:
    federation = Federation(FedEM(lr=0.11, components=1, weighting=weighting), problem)
    plain = Federation(FedAvg(lr=0.11, weighting=weighting), problem)
    for draws in schedule(problem, rounds=5):
        federation.round(draws)
        plain.round(draws)
        assert all(torch.equal(federation.state["theta0"][name], tensor) for name, tensor in plain.state["w"].items())
        assert all(pi.tolist() == [1.0] for pi in pis(federation).values())
    assert FedEM().weighting is Weighting.EXAMPLES


def test_component_0_is_the_given_model_and_the_others_are_its_weights_in_other_orders() -> None:
    problem = Softmax(4)
    states = [Federation(FedEM(components=M), problem).state for M in (3, 4)]
    start = tree_of(problem.start(), problem.shapes)
    np.testing.assert_array_equal(flat(states[0]["theta0"]), problem.start())
    orders = set()
    for m in (1, 2):
        theta = states[0][f"theta{m}"]
        np.testing.assert_array_equal(flat(states[1][f"theta{m}"]), flat(theta))
        assert torch.equal(theta["bias"], start["bias"])
        assert torch.equal(theta["weight"].flatten().sort()[0], start["weight"].flatten().sort()[0])
        orders |= {tuple(theta["weight"].flatten().tolist())}
    assert len(orders | {tuple(start["weight"].flatten().tolist())}) == 3


def test_components_that_are_alike_stay_alike_and_share_evenly() -> None:
    problem = Softmax(4)
    federation = Federation(FedEM(lr=0.3, components=2), problem)
    federation.state = dict.fromkeys(federation.state, federation.model)
    plain = Federation(FedAvg(lr=0.15), problem)  # each component gets half of every example
    for draws in schedule(problem, rounds=4):
        federation.round(draws)
        plain.round(draws)
    for theta in thetas(federation):
        np.testing.assert_allclose(theta, flat(plain.state["w"]), rtol=1e-12)
    assert all(np.allclose(pi, 0.5, rtol=1e-12) for pi in pis(federation).values())


def test_the_likelihood_of_the_mixture_never_falls() -> None:
    problem = Softmax(4)
    federation = Federation(FedEM(lr=0.1, components=3), problem)
    draws = {k: problem.draw(k, list(range(n))) for k, n in problem.examples.items()}
    batches = {k: [problem.batch(k, draw)] for k, draw in draws.items()}

    def cost() -> float:
        theta, pi = thetas(federation), pis(federation)
        total = 0.0
        for k, draw in draws.items():
            odds = np.exp(-np.array([losses(problem, k, each, draw) for each in theta]))
            total -= np.log(pi.get(k, np.full(3, 1 / 3)) @ odds).sum()
        return total

    costs = [cost()]
    for _ in range(25):
        federation.round_of(batches)
        costs.append(cost())
    assert all(after < before for before, after in itertools.pairwise(costs))
    assert costs[-1] < 0.8 * costs[0]


class Opposed(Softmax):
    """One distribution of features and two rules for the class, opposed; even devices follow one, odd the other."""

    def __init__(self) -> None:
        super().__init__(4)
        rng = np.random.default_rng(5)
        self.examples = dict.fromkeys(self.examples, 24)
        self.x = {k: rng.normal(size=(24, 4)) for k in self.examples}
        self.y = {k: np.where(self.x[k][:, 0] > 0, *((0, 1) if int(k[-1]) % 2 else (1, 0))) for k in self.examples}
        self._start = rng.normal(size=15) * 0.3


def test_devices_of_two_kinds_choose_a_component_each() -> None:
    problem = Opposed()
    federation = Federation(FedEM(lr=1.0, components=2), problem)
    plain = Federation(FedAvg(lr=1.0), problem)
    batches = {k: [problem.batch(k, problem.draw(k, list(range(24))))] * 4 for k in problem.examples}
    for _ in range(25):
        federation.round_of(batches)
        plain.round_of(batches)
    chosen = {k: int(pi.argmax()) for k, pi in pis(federation).items()}
    assert min(pi.max() for pi in pis(federation).values()) > 0.9
    assert chosen["pi-0"] == chosen["pi-2"] != chosen["pi-1"] == chosen["pi-3"]
    personal = {k: federation.algorithm.predictor(federation.prepared(k)) for k in batches}
    right = {"ours": 0.0, "one model's": 0.0}
    for k, (b, *_) in batches.items():
        right["ours"] += float((federation.algorithm.predict(b, personal[k]).argmax(1) == b.y).sum()) / 96
        right["one model's"] += float((b.outputs(plain.state["w"]).argmax(1) == b.y).sum()) / 96
    assert right["ours"] > 0.9
    assert right["one model's"] < 0.7


def predicted(federation: Federation, device: str, b: Batch) -> Mapping[str, Vector]:
    """The probabilities that its models give."""
    algorithm, s = federation.algorithm, federation.prepared(device)
    models = {"own": algorithm.predictor(s), **algorithm.others(s)}
    return {name: algorithm.predict(b, params).softmax(1).numpy() for name, params in models.items()}


def test_the_prediction_is_the_components_probabilities_weighted_with_pi() -> None:
    problem = Softmax(4)
    federation = Federation(FedEM(lr=0.4), problem)
    for draws in schedule(problem, rounds=3, share=1.0):
        federation.round(draws)
    draw = problem.draw("pi-1", [0, 1, 2, 3])
    logits = [draw.x @ w[3:].reshape(4, 3) + w[:3] for w in thetas(federation)]
    each = np.array([np.exp(found) / np.exp(found).sum(1, keepdims=True) for found in logits])
    found = predicted(federation, "pi-1", problem.batch("pi-1", draw))
    np.testing.assert_allclose(found["own"], np.tensordot(pis(federation)["pi-1"], each, 1), rtol=1e-10)
    np.testing.assert_allclose(found["global"], each.mean(0), rtol=1e-10)
    assert np.abs(found["own"] - found["global"]).max() > 0.01


def test_tuning_estimates_pi_anew_and_leaves_the_components() -> None:
    problem = Softmax(4)
    federation = Federation(FedEM(lr=0.4), problem)
    for draws in schedule(problem, rounds=3, share=1.0):
        federation.round({device: each for device, each in draws.items() if device != "pi-2"})
    parts = [problem.draw("pi-2", rows, padding=1) for rows in ([0, 1, 2], [3, 4])]
    q = [
        responsibilities(np.array([losses(problem, "pi-2", w, d) for w in thetas(federation)]), np.full(3, 1 / 3))
        for d in parts
    ]
    pi = np.concatenate([each[:, :-1] for each in q], axis=1).mean(1)
    tuned = federation.predictor("pi-2", [problem.batch("pi-2", draw) for draw in parts])
    np.testing.assert_allclose(tuned[-3:], pi, rtol=1e-10)
    before = federation.predictor("pi-2")
    np.testing.assert_allclose(before[-3:], 1 / 3, rtol=1e-12)
    np.testing.assert_array_equal(tuned[:-3], before[:-3])


def test_without_examples_pi_stays() -> None:
    problem = Softmax(4)
    federation = Federation(FedEM(lr=0.4), problem)
    federation.round(schedule(problem, rounds=1, share=1.0)[0])
    pi = pis(federation)["pi-0"]
    federation.train("pi-0", [])
    np.testing.assert_array_equal(pis(federation)["pi-0"], pi)
    federation.train("pi-0", [problem.batch("pi-0", problem.draw("pi-0", [], padding=4))])
    np.testing.assert_array_equal(pis(federation)["pi-0"], pi)
    assert np.abs(pi - 1 / 3).max() > 0.01


def test_hopeless_losses_still_give_shares() -> None:
    problem = Quadratic(2)
    federation = Federation(FedEM(lr=1e-6, components=2), problem)
    far = {"theta0": federation.model * 0.0 + 60.0, "theta1": federation.model * 0.0 + 61.0}
    federation.state = far
    federation.round_of({"pi-0": [problem.whole("pi-0")]})  # losses in the thousands: exp(-loss) is 0
    pi = pis(federation)["pi-0"]
    assert pi.sum() == pytest.approx(1, rel=1e-12)
    assert pi[0] > 0.9


@pytest.mark.parametrize("components", [1, 2, 12])
def test_the_components_cross_and_pi_does_not(components: int) -> None:
    problem = Softmax(2)
    shapes: Shapes = problem.shapes
    federation = Federation(FedEM(components=components), problem)
    roles = {role: sorted(federation.by_role(role)) for role in Role}
    assert roles[Role.DOWN] == sorted(f"theta{m}" for m in range(components))
    assert roles[Role.UP] == sorted(f"delta{m}" for m in range(components))
    assert roles[Role.KEEP] == ["pi"]
    served = federation.algorithm.served({name: TensorSpec(shape) for name, shape in shapes.items()})
    predictor = federation.algorithm.predictor(federation.prepared("pi-0"))
    assert {name: tuple(tensor.shape) for name, tensor in predictor.items()} == {
        k: spec.shape for k, spec in served.items()
    }
    assert predictor["pi"].tolist() == [1 / components] * components


@pytest.mark.parametrize("components", [0, -1])
def test_refuses_to_be_no_models(components: int) -> None:
    with pytest.raises(ConfigError, match=rf"components = {components} is no number of models") as caught:
        algorithms.build("fedem", {"components": components})
    assert caught.value.where == "FedEM"
