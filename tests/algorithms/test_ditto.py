"""Ditto against a NumPy program, its personal fixed point and its limits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from _driver import Federation, Round, schedule
from _problems import Problem, Quadratic, Softmax, Vector, flat

from edgepfl import algorithms
from edgepfl.algorithms.ditto import Ditto
from edgepfl.algorithms.fedavg import FedAvg
from edgepfl.errors import ConfigError
from edgepfl.plan import Weighting

PROBLEMS = [Quadratic(4), Softmax(4)]


def ditto(problem: Problem, draws: Round, w: Vector, v: dict[str, Vector], settings: Ditto) -> Vector:
    """One round, written from the paper's algorithm 1; moves ``v``."""
    models = []
    for device, batches in draws.items():
        x = w.copy()
        personal = v.get(device, w).copy()
        for draw in batches:
            x -= settings.lr * problem.gradient(device, x, draw)
        for draw in batches[: int(settings.personal_steps) or None]:
            pull = settings.lam * (personal - w)
            personal = personal - settings.lr * (problem.gradient(device, personal, draw) + pull)
        models.append(x)
        v[device] = personal
    return np.asarray(np.mean(models, axis=0))


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: type(problem).__name__)
@pytest.mark.parametrize("personal_steps", [0, 1, 2, 9])
def test_follows_the_numpy_program(problem: Problem, personal_steps: int) -> None:
    settings = Ditto(lr=0.11, lam=0.6, personal_steps=personal_steps)
    federation = Federation(settings, problem)
    w, v = problem.start(), dict[str, Vector]()
    for draws in schedule(problem, rounds=7):
        federation.round(draws)
        w = ditto(problem, draws, w, v, settings)
        np.testing.assert_allclose(flat(federation.state["w"]), w, rtol=1e-10)
        assert federation.kept.keys() == v.keys()
        for device, personal in v.items():
            np.testing.assert_allclose(flat(federation.kept[device]["v"]), personal, rtol=1e-10)
            np.testing.assert_allclose(federation.predictor(device), personal, rtol=1e-10)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: type(problem).__name__)
@pytest.mark.parametrize("weighting", list(Weighting))
def test_the_global_branch_is_fedavg_bit_for_bit(problem: Problem, weighting: Weighting) -> None:
    federation = Federation(Ditto(lr=0.11, lam=0.6, weighting=weighting), problem)
    plain = Federation(FedAvg(lr=0.11, weighting=weighting), problem)
    for draws in schedule(problem, rounds=5):
        federation.round(draws)
        plain.round(draws)
        for name, tensor in plain.state["w"].items():
            assert torch.equal(federation.state["w"][name], tensor)
    assert Ditto().weighting is Weighting.UNIFORM


def test_the_personal_model_settles_between_local_and_global() -> None:
    problem, lam = Quadratic(4), 1.3
    federation = Federation(Ditto(lr=0.3, lam=lam), problem)
    for _ in range(200):
        federation.round_of({device: [problem.whole(device)] for device in problem.examples})
    w = problem.minimiser(dict.fromkeys(problem.examples, 0.25))
    np.testing.assert_allclose(flat(federation.state["w"]), w, rtol=1e-9)
    for device in problem.examples:
        v = flat(federation.kept[device]["v"])
        np.testing.assert_allclose(v, problem.prox(device, w, lam), rtol=1e-9)
        assert np.abs(v - w).max() > 0.01


def test_without_a_pull_the_personal_model_is_local_training_bit_for_bit() -> None:
    problem = Softmax(4)
    federation = Federation(Ditto(lr=0.2, lam=0.0), problem)
    alone = {device: Federation(FedAvg(lr=0.2), problem) for device in problem.examples}
    first = schedule(problem, rounds=1, share=1.0)  # everyone starts from the same model
    for draws in first + schedule(problem, rounds=5):
        federation.round(draws)
        for device in draws:
            before = alone[device].state["w"]
            x = before
            for draw in draws[device]:
                x = x - 0.2 * problem.batch(device, draw).grad(x)
            alone[device].state = {"w": x}
            for name, tensor in x.items():
                assert torch.equal(federation.kept[device]["v"][name], tensor)
    ends = [flat(federation.kept[device]["v"]) for device in problem.examples]
    assert min(np.abs(ends[0] - end).max() for end in ends[1:]) > 0.1


def test_a_hard_pull_makes_the_personal_model_the_global_one() -> None:
    problem = Quadratic(4)
    apart = []
    for lam in (20.0, 200.0):
        federation = Federation(Ditto(lr=1.0 / (2.0 + lam), lam=lam), problem)
        federation.kept = {device: {"v": federation.model * 3.0} for device in problem.examples}
        held = federation.state
        for _ in range(12):
            federation.round_of({device: [problem.whole(device)] * 5 for device in problem.examples})
            federation.state = held
        v, w = flat(federation.kept["pi-0"]["v"]), flat(held["w"])
        np.testing.assert_allclose(v, problem.prox("pi-0", w, lam), rtol=1e-9)
        apart.append(float(np.abs(v - w).max()))
    assert apart[1] < apart[0] / 8
    assert apart[1] < 0.1


def test_the_centre_is_the_received_model_not_the_trained_copy() -> None:
    problem = Quadratic(1)
    federation = Federation(Ditto(lr=0.3, lam=0.8), problem)
    v = w = problem.start()
    for _ in range(4):
        v = v - 0.3 * (problem.A["pi-0"] @ (v - problem.b["pi-0"]) + 0.8 * (v - w))
    federation.round_of({"pi-0": [problem.whole("pi-0")] * 4})
    np.testing.assert_allclose(flat(federation.kept["pi-0"]["v"]), v, rtol=1e-12)
    assert np.abs(flat(federation.state["w"]) - v).max() > 0.01


def test_a_device_that_sits_out_keeps_its_personal_model() -> None:
    problem = Softmax(4)
    federation = Federation(Ditto(), problem)
    first, second = schedule(problem, rounds=2, share=0.5, seed=3)
    federation.round(first)
    before = {device: federation.kept[device]["v"] for device in first.keys() - second.keys()}
    federation.round(second)
    assert before
    assert all(federation.kept[device]["v"] is v for device, v in before.items())


def test_more_personal_steps_than_minibatches_are_all_of_them_bit_for_bit() -> None:
    problem = Softmax(4)
    ends = {}
    for personal_steps in (0, 2, 3, 4):
        federation = Federation(Ditto(personal_steps=personal_steps), problem)
        for draws in schedule(problem, rounds=3, steps=3):
            federation.round(draws)
        ends[personal_steps] = flat(federation.kept[min(federation.kept)]["v"])
    np.testing.assert_array_equal(ends[3], ends[0])
    np.testing.assert_array_equal(ends[4], ends[0])
    assert np.abs(ends[2] - ends[0]).max() > 1e-3


@pytest.mark.parametrize("personal_steps", [-1, 1.5])
def test_personal_steps_are_a_number_of_steps(personal_steps: float) -> None:
    with pytest.raises(ConfigError, match=f"personal_steps = {personal_steps:g} will not do") as caught:
        algorithms.build("ditto", {"personal_steps": personal_steps})
    assert "whole number" in caught.value.remedy
    assert getattr(algorithms.build("ditto", {"personal_steps": 2}), "personal_steps") == 2.0  # noqa: B009  the base class has none
