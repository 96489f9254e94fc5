"""pFedBreD against a NumPy program, the closed form of its first variant, and pFedMe where nothing shifts the prior."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from _driver import Federation, Round, schedule
from _problems import Draw, Problem, Quadratic, Softmax, Vector, flat

from edgepfl import algorithms
from edgepfl.algorithms import pfedme
from edgepfl.algorithms.pfedbred import PFedBreD, Start, Variant
from edgepfl.errors import ConfigError
from edgepfl.plan import Role, Weighting

PROBLEMS = [Quadratic(4), Softmax(4)]
IDS = ["Quadratic", "Softmax"]
SETTINGS = PFedBreD(lr=0.12, inner_lr=0.13, lam=1.7, eta=0.3, eta_a=0.2, beta=1.3)
EXACT = PFedBreD(
    variant=Variant.FO, lr=1.2, inner_steps=15, inner_lr=1 / 1.8, lam=0.8, eta_a=0.3, weighting=Weighting.UNIFORM
)
"""With eigenvalues from 0.6 to 1.4 each inner step leaves at most 0.22 of the error."""
Own = dict[str, tuple[Vector, Vector]]
"""Each device's theta and the model that it last uploaded."""


def half(draw: Draw, place: int) -> Draw:
    """The minibatch's first or second half, row by row in turn."""
    return Draw(draw.x[place::2], draw.y[place::2], draw.weight[place::2])


def pfedbred(problem: Problem, draws: Round, w: Vector, kept: Own, settings: PFedBreD) -> Vector:
    """One round, written from the paper; moves ``kept``."""
    eta, eta_a, lam = settings.eta, settings.eta_a, settings.lam
    uploads, counts = [], []
    for device, batches in draws.items():
        own = w
        theta, last = kept.get(device, (w, w))
        for draw in batches:
            data = draw
            match settings.variant:
                case Variant.FO:
                    mu = own - eta_a * problem.gradient(device, own, draw)
                case Variant.MFO:
                    mu = own - eta * (last - theta)
                case Variant.MG:
                    mu = own - eta_a * problem.gradient(device, own, draw) - eta * (last - theta)
                case Variant.MG_MAML:
                    first, data = half(draw, 0), half(draw, 1)
                    ahead = own - eta_a * problem.gradient(device, own, first)
                    own = own - eta_a * problem.gradient(device, ahead, data)
                    mu = own - eta * (last - theta)
            theta = {Start.MU: mu, Start.W: own, Start.THETA: theta}[settings.start]
            for _ in range(settings.inner_steps):
                theta = theta - settings.inner_lr * (problem.gradient(device, theta, data) + lam * (theta - mu))
            own = own - settings.lr * lam * (mu - theta)
        kept[device] = theta, own
        uploads.append(own)
        counts.append(problem.examples[device] if settings.weighting is Weighting.EXAMPLES else 1)
    return (1 - settings.beta) * w + settings.beta * np.average(uploads, axis=0, weights=counts)


@pytest.mark.parametrize("problem", PROBLEMS, ids=IDS)
@pytest.mark.parametrize("variant", list(Variant))
def test_follows_the_numpy_program(problem: Problem, variant: Variant) -> None:
    settings = dataclasses.replace(SETTINGS, variant=variant)
    federation = Federation(settings, problem)
    w, kept = problem.start(), Own()
    for draws in schedule(problem, rounds=6):
        federation.round(draws)
        w = pfedbred(problem, draws, w, kept, settings)
        np.testing.assert_allclose(flat(federation.state["w"]), w, rtol=1e-10)
        assert federation.kept.keys() == kept.keys()
        for device, (theta, own) in kept.items():
            np.testing.assert_allclose(federation.predictor(device), theta, rtol=1e-10)
            if variant is not Variant.FO:
                np.testing.assert_allclose(flat(federation.kept[device]["a"]), own, rtol=1e-10)
            assert np.abs(theta - own).max() > 1e-3
    assert (settings.weighting, settings.start) == (Weighting.EXAMPLES, Start.MU)


@pytest.mark.parametrize("start", list(Start))
@pytest.mark.parametrize("variant", [Variant.MG, Variant.MG_MAML])
def test_every_start_of_the_solve_follows_the_numpy_program(variant: Variant, start: Start) -> None:
    problem = Softmax(4)
    settings = dataclasses.replace(
        SETTINGS, variant=variant, start=start, inner_steps=2, weighting=Weighting.UNIFORM, beta=1.0
    )
    federation, usual = (
        Federation(settings, problem),
        Federation(dataclasses.replace(settings, start=Start.MU), problem),
    )
    w, kept = problem.start(), Own()
    for draws in schedule(problem, rounds=5):
        federation.round(draws)
        usual.round(draws)
        w = pfedbred(problem, draws, w, kept, settings)
        np.testing.assert_allclose(flat(federation.state["w"]), w, rtol=1e-10)
    apart = np.abs(flat(usual.state["w"]) - w).max()
    assert apart == pytest.approx(0, abs=1e-12) if start is Start.MU else apart > 1e-4


@pytest.mark.parametrize("start", list(Start))
@pytest.mark.parametrize("variant", [Variant.FO, Variant.MFO, Variant.MG])
def test_a_prior_that_nothing_shifts_is_pfedme_bit_for_bit(variant: Variant, start: Start) -> None:
    """With ``eta = eta_a = 0``: ``start`` w and mu are pFedMe's w, theta is its theta; the same weights on both."""
    problem = Softmax(4)
    still = PFedBreD(
        lr=0.12, inner_lr=0.13, lam=1.7, eta=0.0, eta_a=0.0, variant=variant, start=start, weighting=Weighting.UNIFORM
    )
    begins = pfedme.Start.THETA if start is Start.THETA else pfedme.Start.W
    federation = Federation(still, problem)
    plain = Federation(pfedme.PFedMe(lr=0.12, inner_lr=0.13, lam=1.7, start=begins), problem)
    shifted = Federation(dataclasses.replace(still, eta=still.lr, eta_a=still.lr), problem)
    for draws in schedule(problem, rounds=5):
        for each in (federation, plain, shifted):
            each.round(draws)
        for name, tensor in plain.state["w"].items():
            assert torch.equal(federation.state["w"][name], tensor)
        for device, kept in plain.kept.items():
            assert all(
                torch.equal(federation.kept[device]["theta"][name], each) for name, each in kept["theta"].items()
            )
    assert np.abs(flat(shifted.state["w"]) - flat(plain.state["w"])).max() > 1e-4


def test_the_maml_variant_that_nothing_shifts_is_pfedme_on_the_second_halves_bit_for_bit() -> None:
    problem = Softmax(4)
    still = PFedBreD(lr=0.12, inner_lr=0.13, lam=1.7, eta=0.0, eta_a=0.0, variant=Variant.MG_MAML)
    federation = Federation(still, problem)
    plain = Federation(pfedme.PFedMe(lr=0.12, inner_lr=0.13, lam=1.7, weighting=Weighting.EXAMPLES), problem)
    for draws in schedule(problem, rounds=5):
        federation.round(draws)
        plain.round({device: [half(draw, 1) for draw in batches] for device, batches in draws.items()})
        for name, tensor in plain.state["w"].items():
            assert torch.equal(federation.state["w"][name], tensor)
    assert np.abs(flat(plain.state["w"]) - problem.start()).max() > 0.01


@pytest.mark.parametrize(("variant", "without"), [(Variant.MFO, None), (Variant.MG, Variant.FO)])
def test_the_memory_vanishes_in_the_first_local_round_of_the_first_participation(
    variant: Variant, without: Variant | None
) -> None:
    problem = Softmax(1)
    first, second = schedule(problem, rounds=1, steps=2, share=1.0)[0]["pi-0"]
    settings = dataclasses.replace(SETTINGS, variant=variant)
    other = dataclasses.replace(SETTINGS, variant=without) if without else dataclasses.replace(settings, eta=0.0)
    remembering, blank = Federation(settings, problem), Federation(other, problem)
    for draws, same in (([first], True), ([first, second], False)):
        batches = [problem.batch("pi-0", draw) for draw in draws]
        for federation in (remembering, blank):
            federation.kept.clear()
        moved = [flat(federation.train("pi-0", batches)["delta"]) for federation in (remembering, blank)]
        assert np.array_equal(moved[0], moved[1]) == same
    assert np.abs(moved[0] - moved[1]).max() > 1e-4


@pytest.mark.parametrize("variant", [Variant.MFO, Variant.MG, Variant.MG_MAML])
def test_the_memory_is_the_uploaded_model_and_not_the_new_global_one(variant: Variant) -> None:
    problem = Softmax(4)
    federation = Federation(dataclasses.replace(SETTINGS, variant=variant), problem)
    for draws in schedule(problem, rounds=2, share=1.0):
        sent = federation.state["w"]
        alone = Federation(federation.algorithm, problem, kept=dict(federation.kept))
        alone.state = federation.state
        batches = {device: [problem.batch(device, draw) for draw in draws[device]] for device in draws}
        uploads = {device: alone.train(device, batches[device])["delta"] for device in draws}
        federation.round(draws)
        for device, delta in uploads.items():
            memory = flat(federation.kept[device]["a"])
            np.testing.assert_allclose(memory, flat(sent + delta), rtol=1e-12)
            assert np.abs(memory - flat(federation.state["w"])).max() > 1e-3


def test_the_first_order_variant_keeps_no_memory() -> None:
    problem = Softmax(2)
    federation = Federation(PFedBreD(variant=Variant.FO), problem)
    federation.round(schedule(problem, rounds=1, share=1.0)[0])
    assert federation.kept["pi-0"].keys() == {"theta"}
    for variant in set(Variant) - {Variant.FO}:
        kept = {name for name, slot in PFedBreD(variant=variant).declared().items() if slot.role is Role.KEEP}
        assert kept == {"theta", "a"}


def test_the_first_order_variants_personal_model_is_the_proximal_point_of_the_shifted_prior() -> None:
    problem = Quadratic(2, spectrum=(0.6, 1.4))
    federation = Federation(EXACT, problem)
    upload = federation.train("pi-1", [problem.whole("pi-1")])
    A, b, w = problem.A["pi-1"], problem.b["pi-1"], problem.start()
    mu = w - 0.3 * A @ (w - b)
    theta = problem.prox("pi-1", mu, 0.8)
    np.testing.assert_allclose(federation.predictor("pi-1"), theta, rtol=1e-9)
    np.testing.assert_allclose(flat(upload["delta"]), -1.2 * 0.8 * (mu - theta), rtol=1e-8)


def test_the_first_order_variant_settles_where_the_shifted_pulls_cancel() -> None:
    """``mu - theta = M (I - eta_a A) (w - b)`` with ``M = A (A + lam)^-1``."""
    problem = Quadratic(3, spectrum=(0.6, 1.4))
    federation = Federation(dataclasses.replace(EXACT, beta=1.8), problem)
    batches = {device: [problem.whole(device)] for device in problem.examples}
    for _ in range(30):
        federation.round_of(batches)
    pull = {k: A @ np.linalg.inv(A + 0.8 * np.eye(6)) @ (np.eye(6) - 0.3 * A) for k, A in problem.A.items()}
    left = sum(pull.values(), np.zeros((6, 6)))
    w = np.linalg.solve(left, sum((each @ problem.b[k] for k, each in pull.items()), np.zeros(6)))
    np.testing.assert_allclose(flat(federation.state["w"]), w, rtol=1e-8)
    plain = {k: A @ np.linalg.inv(A + 0.8 * np.eye(6)) for k, A in problem.A.items()}
    other = np.linalg.solve(
        sum(plain.values(), np.zeros((6, 6))), sum((M @ problem.b[k] for k, M in plain.items()), np.zeros(6))
    )
    assert np.abs(w - other).max() > 0.01


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"inner_lr": 0.2, "lam": 10.0}, "inner_lr . lam = 2 overshoots"),
        ({"lr": 0.1, "lam": 10.0}, " lr . lam = 1 overshoots"),
        ({"variant": "mh"}, "'mh' will not do"),
    ],
)
def test_steps_that_overshoot_for_every_loss_are_refused(settings: dict[str, float | str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        algorithms.build("pfedbred", settings)
    assert algorithms.build("pfedbred", {"lam": 30.0, "variant": "mg_maml", "eta_a": 0.01}).inner_steps == 5
