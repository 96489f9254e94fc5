"""FedPer against a NumPy program, and its limits: nothing personal, nothing shared, never selected."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from _driver import Federation, Round, schedule
from _problems import Problem, Quadratic, Softmax, Vector, flat

from edgepfl.algorithms._extractor import EvalExtractor
from edgepfl.algorithms.fedavg import FedAvg
from edgepfl.algorithms.fedper import FedPer
from edgepfl.plan import Weighting

PROBLEMS = [Quadratic(4), Softmax(4)]
IDS = ["Quadratic", "Softmax"]


def head_of(problem: Problem) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which elements of the flat model are personal."""
    return np.concatenate(
        [np.full(int(np.prod(shape)), name in problem.personal) for name, shape in sorted(problem.shapes.items())]
    )


def fedper(problem: Problem, draws: Round, body: Vector, heads: dict[str, Vector], settings: FedPer) -> Vector:
    """One round, written from the paper's algorithm 1; moves ``heads``."""
    head = head_of(problem)
    bodies, counts = [], []
    for device, batches in draws.items():
        w = np.empty(len(head))
        w[~head], w[head] = body, heads[device]
        for draw in batches:
            w -= settings.lr * problem.gradient(device, w, draw)
        bodies.append(w[~head])
        heads[device] = w[head]
        counts.append(problem.examples[device] if settings.weighting is Weighting.EXAMPLES else 1)
    return np.average(bodies, axis=0, weights=counts)


@pytest.mark.parametrize("problem", PROBLEMS, ids=IDS)
@pytest.mark.parametrize("weighting", list(Weighting))
def test_follows_the_numpy_program(problem: Problem, weighting: Weighting) -> None:
    settings = FedPer(lr=0.11, weighting=weighting)
    federation = Federation(settings, problem, problem.personal)
    head = head_of(problem)
    body, heads = problem.start()[~head], dict.fromkeys(problem.examples, problem.start()[head])
    for draws in schedule(problem, rounds=6):
        federation.round(draws)
        body = fedper(problem, draws, body, heads, settings)
        np.testing.assert_allclose(flat(federation.state["body"]), body, rtol=1e-10)
        for device in problem.examples:
            predictor = federation.predictor(device)
            np.testing.assert_allclose(predictor[~head], body, rtol=1e-10)
            np.testing.assert_allclose(predictor[head], heads[device], rtol=1e-10)


@pytest.mark.parametrize("problem", PROBLEMS, ids=IDS)
@pytest.mark.parametrize("weighting", list(Weighting))
def test_with_nothing_personal_it_is_fedavg_bit_for_bit(problem: Problem, weighting: Weighting) -> None:
    federation = Federation(FedPer(lr=0.11, weighting=weighting), problem)
    plain = Federation(FedAvg(lr=0.11, weighting=weighting), problem)
    for draws in schedule(problem, rounds=5):
        federation.round(draws)
        plain.round(draws)
        for name, tensor in plain.state["w"].items():
            assert torch.equal(federation.state["body"][name], tensor)
    assert all(len(kept["head"]) == 0 for kept in federation.kept.values())


def test_with_nothing_shared_it_is_local_training() -> None:
    problem = Softmax(4)
    federation = Federation(FedPer(lr=0.2), problem, tuple(problem.shapes))
    v = dict.fromkeys(problem.examples, problem.start())
    for draws in schedule(problem, rounds=5):
        federation.round(draws)
        for device, batches in draws.items():
            for draw in batches:
                v[device] = v[device] - 0.2 * problem.gradient(device, v[device], draw)
        for device in problem.examples:
            np.testing.assert_allclose(federation.predictor(device), v[device], rtol=1e-10)
    assert len(federation.state["body"]) == 0


def test_the_head_of_a_device_that_was_never_selected_stays_at_the_start() -> None:
    problem = Softmax(4)
    federation = Federation(FedPer(lr=0.2), problem, problem.personal)
    head = head_of(problem)
    for draws in schedule(problem, rounds=4, share=1.0):
        federation.round({device: batches for device, batches in draws.items() if device != "pi-2"})
    assert "pi-2" not in federation.kept
    predictor = federation.predictor("pi-2")
    np.testing.assert_array_equal(predictor[head], problem.start()[head])
    np.testing.assert_array_equal(predictor[~head], flat(federation.state["body"]))
    assert np.abs(federation.predictor("pi-0")[head] - problem.start()[head]).max() > 0.01


def test_the_server_never_holds_a_head() -> None:
    problem = Quadratic(4)
    federation = Federation(FedPer(), problem, problem.personal)
    federation.round(schedule(problem, rounds=1)[0])
    assert federation.state.keys() == {"body"}
    assert federation.state["body"].keys() == {"body"}
    assert {name for kept in federation.kept.values() for name in kept["head"]} == {"head"}


def test_tuning_moves_the_head_alone() -> None:
    problem = Softmax(4)
    federation = Federation(FedPer(lr=0.1, tune_lr=0.4), problem, problem.personal)
    for draws in schedule(problem, rounds=2):
        federation.round(draws)
    head = head_of(problem)
    before = v = federation.predictor("pi-1")
    (draws,) = schedule(problem, rounds=1, share=1.0, seed=9)
    for draw in draws["pi-1"]:
        v = v - 0.4 * np.where(head, problem.gradient("pi-1", v, draw), 0.0)
    tuned = federation.predictor("pi-1", [problem.batch("pi-1", draw) for draw in draws["pi-1"]])
    np.testing.assert_allclose(tuned, v, rtol=1e-10)
    np.testing.assert_array_equal(tuned[~head], before[~head])
    assert np.abs(tuned[head] - before[head]).max() > 0.01


@pytest.mark.parametrize("problem", PROBLEMS, ids=IDS)
def test_the_local_extractor_is_the_one_that_the_device_trained_last(problem: Problem) -> None:
    local = Federation(FedPer(lr=0.2, tune_lr=0.3, eval_extractor=EvalExtractor.LOCAL), problem, problem.personal)
    plain = Federation(FedPer(lr=0.2), problem, problem.personal)
    head = head_of(problem)
    trained = dict[str, Vector]()
    for draws in schedule(problem, rounds=4):
        body = flat(plain.state["body"])
        local.round(draws)
        plain.round(draws)
        for device, batches in draws.items():
            w = np.empty(len(head))
            w[~head], w[head] = body, trained[device][head] if device in trained else problem.start()[head]
            for draw in batches:
                w = w - 0.2 * problem.gradient(device, w, draw)
            trained[device] = w
        np.testing.assert_array_equal(flat(local.state["body"]), flat(plain.state["body"]))
        for device in problem.examples:
            wanted = trained.get(device, plain.predictor(device))
            np.testing.assert_allclose(local.predictor(device), wanted, rtol=1e-10)
    assert all(np.abs(v[~head] - flat(plain.state["body"])).max() > 1e-3 for v in trained.values())


def test_the_head_is_tuned_on_the_extractor_that_is_evaluated() -> None:
    problem = Softmax(4)
    federation = Federation(FedPer(lr=0.2, tune_lr=0.3, eval_extractor=EvalExtractor.LOCAL), problem, problem.personal)
    for draws in schedule(problem, rounds=2, share=1.0):
        federation.round(draws)
    head = head_of(problem)
    before = v = federation.predictor("pi-1")
    (draws,) = schedule(problem, rounds=1, share=1.0, seed=9)
    for draw in draws["pi-1"]:
        v = v - 0.3 * np.where(head, problem.gradient("pi-1", v, draw), 0.0)
    tuned = federation.predictor("pi-1", [problem.batch("pi-1", draw) for draw in draws["pi-1"]])
    np.testing.assert_allclose(tuned, v, rtol=1e-10)
    np.testing.assert_array_equal(tuned[~head], before[~head])
