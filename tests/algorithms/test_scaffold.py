"""SCAFFOLD against a NumPy program that uploads both parts, its invariant and its fixed point."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from _driver import Federation, Round, schedule, settle, uneven
from _problems import Problem, Quadratic, Softmax, Vector, flat

from edgepfl.algorithms import Cohort
from edgepfl.algorithms.fedavg import FedAvg
from edgepfl.algorithms.scaffold import Option, Scaffold
from edgepfl.errors import ConfigError
from edgepfl.plan import Role, Weighting

PROBLEMS = [Quadratic(4), Softmax(4)]
IDS = ["Quadratic", "Softmax"]


def scaffold(
    problem: Problem, draws: Round, w: Vector, c: Vector, variates: dict[str, Vector], settings: Scaffold
) -> tuple[Vector, Vector]:
    """One round, written from the paper's algorithm 1, in which a device sends both changes; moves ``variates``."""
    lr = settings.lr
    models, renewed = [], dict[str, Vector]()
    for device, batches in draws.items():
        y, c_k = w.copy(), variates[device]
        for draw in batches:
            y = y - lr * (problem.gradient(device, y, draw) - c_k + c)
        if settings.option is Option.GRADIENT:
            renewed[device] = np.mean([problem.gradient(device, w, draw) for draw in batches], axis=0)
        else:
            renewed[device] = c_k - c + (w - y) / (len(batches) * lr)
        models.append(y - w)
    change = sum((renewed[device] - variates[device] for device in renewed), np.zeros_like(c))
    variates |= renewed
    return w + settings.server_lr * np.mean(models, axis=0), c + change / len(variates)


def check_state(federation: Federation, w: Vector, c: Vector, variates: dict[str, Vector]) -> None:
    np.testing.assert_allclose(flat(federation.state["w"]), w, rtol=1e-10)
    np.testing.assert_allclose(flat(federation.state["c"]), c, rtol=1e-10, atol=1e-14)
    for device, kept in federation.kept.items():
        np.testing.assert_allclose(flat(kept["c_k"]), variates[device], rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("problem", PROBLEMS, ids=IDS)
@pytest.mark.parametrize("option", list(Option))
def test_follows_the_program_that_uploads_both_with_unequal_numbers_of_steps(problem: Problem, option: Option) -> None:
    settings = Scaffold(lr=0.11, server_lr=0.8, option=option)
    federation = Federation(settings, problem)
    w = problem.start()
    c, variates = np.zeros_like(w), {device: np.zeros_like(w) for device in problem.examples}
    for draws in map(uneven, schedule(problem, rounds=8)):
        federation.round(draws)
        w, c = scaffold(problem, draws, w, c, variates, settings)
        check_state(federation, w, c, variates)
        np.testing.assert_allclose(c, np.mean(list(variates.values()), axis=0), rtol=1e-10, atol=1e-14)
    assert len(federation.kept) == 4
    assert np.abs(c).max() > 0.1


def test_the_server_rebuilds_option_twos_variates_from_the_change_alone() -> None:
    problem = Softmax(4)
    two, one = (Federation(Scaffold(option=option), problem) for option in (Option.CHANGE, Option.GRADIENT))
    assert two.by_role(Role.UP).keys() == {"delta"}
    assert one.by_role(Role.UP).keys() == {"delta", "change"}
    assert two.slots.keys() == {"w", "c", "y", "c_k", "steps", "delta"}
    assert Scaffold().option is Option.CHANGE


@pytest.mark.parametrize("problem", PROBLEMS, ids=IDS)
@pytest.mark.parametrize("option", list(Option))
def test_the_first_round_is_fedavg_bit_for_bit(problem: Problem, option: Option) -> None:
    federation = Federation(Scaffold(lr=0.11, server_lr=0.8, option=option), problem)
    plain = Federation(FedAvg(lr=0.11, server_lr=0.8, weighting=Weighting.UNIFORM), problem)
    first, second = schedule(problem, rounds=2)
    for federated in (federation, plain):
        federated.round(first)
    for name, tensor in plain.state["w"].items():
        assert torch.equal(federation.state["w"][name], tensor)
    for federated in (federation, plain):
        federated.round(second)
    assert np.abs(flat(federation.state["w"]) - flat(plain.state["w"])).max() > 1e-3


@pytest.mark.parametrize("option", list(Option))
@pytest.mark.parametrize(("share", "rounds"), [(1.0, 60), (0.5, 120)])
def test_settles_at_the_global_minimiser_whoever_takes_part(option: Option, share: float, rounds: int) -> None:
    problem = Quadratic(4, spectrum=(1.0, 2.0))
    federation = Federation(Scaffold(lr=0.2, option=option), problem)
    settle(federation, problem, rounds=rounds, share=share)
    w = flat(federation.state["w"])
    np.testing.assert_allclose(w, problem.minimiser(dict.fromkeys(problem.examples, 0.25)), rtol=1e-9)
    for device, kept in federation.kept.items():
        gradient = problem.A[device] @ (w - problem.b[device])
        np.testing.assert_allclose(flat(kept["c_k"]), gradient, rtol=1e-7)
    assert len(federation.kept) == 4


@pytest.mark.parametrize("option", list(Option))
def test_the_invariant_survives_lost_reports_and_devices_that_come_late(option: Option) -> None:
    problem = Softmax(4)
    federation = Federation(Scaffold(lr=0.2, option=option), problem)
    plan = schedule(problem, rounds=8, share=0.75)
    late = problem.examples.pop("pi-3")
    for number, draws in enumerate(plan):
        if number == 4:
            problem.examples["pi-3"] = late
        known = {device: draws[device] for device in draws if device in problem.examples}
        lost = min(known)
        before = flat(federation.opening(lost)["c_k"])
        dropped = federation.lose(lost, [problem.batch(lost, draw) for draw in known.pop(lost)])
        assert np.abs(flat(dropped["c_k"]) - before).max() > 1e-3
        federation.round(known)
        told = sum((flat(kept["c_k"]) for kept in federation.kept.values()), np.zeros(15))
        np.testing.assert_allclose(flat(federation.state["c"]), told / len(problem.examples), rtol=1e-10, atol=1e-14)
    assert "pi-3" in federation.kept


def test_running_statistics_are_averaged_whatever_the_servers_step() -> None:
    problem = Quadratic(2)
    federation = Federation(Scaffold(server_lr=0.5), problem)
    w = federation.state["w"]
    total = {"delta": 0 * w + 1.0, "variate": 0 * w}
    got = Cohort(("pi-0",), (5,), (3,), total, {}, 1, ("pi-0", "pi-1"), statistics=("head",))
    after = federation.algorithm.update(federation.state, got)["w"]
    np.testing.assert_allclose(flat(after.like(["head"])), flat(w.like(["head"])) + 1.0, rtol=1e-12)
    np.testing.assert_allclose(flat(after.like(["body"])), flat(w.like(["body"])) + 0.5, rtol=1e-12)


def test_what_breaks_the_theory_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"weighting = examples will not do: .*uniform mean alone.*uniform"):
        Scaffold(weighting=Weighting.EXAMPLES).check()
    with pytest.raises(ConfigError, match=r"lr = 0.* will not do: .*Set lr above 0"):
        replace(Scaffold(), lr=0.0).check()
