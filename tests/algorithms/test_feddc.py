"""FedDC against a NumPy program that uploads everything, its fixed point, and FedDyn, which it contains."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from _driver import Federation, Round, schedule, settle, uneven
from _problems import Draw, Problem, Quadratic, Softmax, Vector, flat

from edgepfl.algorithms import Cohort
from edgepfl.algorithms.feddc import Correction, FedDC
from edgepfl.algorithms.feddyn import FedDyn
from edgepfl.errors import ConfigError
from edgepfl.plan import Role, Weighting

PROBLEMS = [Quadratic(4), Softmax(4)]
IDS = ["Quadratic", "Softmax"]


class Authors:
    """The authors' program, in which the server holds what every device knows; or with the paper's corrections.

    Args:
        problem: the devices.
        settings: hyperparameters.
    """

    def __init__(self, problem: Problem, settings: FedDC) -> None:
        self.problem, self.settings = problem, settings
        self.w = problem.start()
        zero = np.zeros_like(self.w)
        self.h, self.c_k, self.g = (dict.fromkeys(problem.examples, zero) for _ in range(3))
        self.c = zero

    def correction(self, device: str, steps: int) -> Vector:
        match self.settings.grad_correction:
            case Correction.SCAFFOLD:
                return self.c - self.c_k[device]
            case Correction.LAST_UPDATE:
                g = np.mean(list(self.g.values()), axis=0)
                return np.asarray((self.g[device] - g) / (self.settings.lr * steps))
            case Correction.NONE:
                return np.zeros_like(self.w)

    def local(self, device: str, batches: Sequence[Draw], q: Vector) -> Vector:
        x, lr = self.w.copy(), self.settings.lr
        for draw in batches:
            F = self.problem.gradient(device, x, draw) + self.settings.alpha * (x - (self.w - self.h[device])) + q
            x = x - lr * F * min(1.0, self.settings.clip / float(np.linalg.norm(F)))
        return x

    def round(self, draws: Round) -> None:
        lr, m = self.settings.lr, len(self.h)
        corrections = {device: self.correction(device, len(batches)) for device, batches in draws.items()}
        models = {device: self.local(device, batches, corrections[device]) for device, batches in draws.items()}
        change = np.zeros_like(self.w)
        for device, x in models.items():
            self.g[device] = x - self.w
            self.h[device] = self.h[device] + (x - self.w)
            renewed = self.c_k[device] - self.c + (self.w - x) / (len(draws[device]) * lr)
            change += (renewed - self.c_k[device]) / m
            self.c_k[device] = renewed
        self.c = self.c + change
        self.w = np.mean(list(models.values()), axis=0) + np.mean(list(self.h.values()), axis=0)


@pytest.mark.parametrize("problem", PROBLEMS, ids=IDS)
@pytest.mark.parametrize("clip", [1e9, 0.7])
@pytest.mark.parametrize("correction", list(Correction))
def test_follows_the_program_that_uploads_everything(problem: Problem, correction: Correction, clip: float) -> None:
    settings = FedDC(lr=0.11, alpha=0.4, clip=clip, grad_correction=correction)
    federation, authors = Federation(settings, problem), Authors(problem, settings)
    plan = schedule(problem, rounds=8)
    if correction is not Correction.LAST_UPDATE:  # the paper has one K for all
        plan = [uneven(draws) for draws in plan]
    for draws in plan:
        federation.round(draws)
        authors.round(draws)
        np.testing.assert_allclose(flat(federation.state["w"]), authors.w, rtol=1e-10)
        h = np.sum(list(authors.h.values()), axis=0)
        np.testing.assert_allclose(flat(federation.state["h_sum"]), h, rtol=1e-10, atol=1e-14)
        for device, kept in federation.kept.items():
            np.testing.assert_allclose(flat(kept["h"]), authors.h[device], rtol=1e-10, atol=1e-14)
            if correction is Correction.SCAFFOLD:
                np.testing.assert_allclose(flat(kept["c_k"]), authors.c_k[device], rtol=1e-10, atol=1e-14)
        if correction is Correction.SCAFFOLD:
            np.testing.assert_allclose(flat(federation.state["c"]), authors.c, rtol=1e-10, atol=1e-14)
    assert len(federation.kept) == 4


def test_last_updates_are_divided_by_the_steps_that_made_them_so_corrections_cancel() -> None:
    problem = Softmax(4)
    federation = Federation(FedDC(lr=0.2, grad_correction=Correction.LAST_UPDATE), problem)
    for draws in map(uneven, schedule(problem, rounds=8)):
        before = {device: flat(federation.opening(device)["h"]) for device in draws}
        federation.round(draws)
        for device, batches in draws.items():
            last = flat(federation.kept[device]["h"]) - before[device]
            c_k = flat(federation.kept[device]["c_k"])
            np.testing.assert_allclose(c_k, -last / (0.2 * len(batches)), rtol=1e-9, atol=1e-14)
        variates = sum((flat(kept["c_k"]) for kept in federation.kept.values()), np.zeros(15))
        np.testing.assert_allclose(flat(federation.state["c"]), variates / 4, rtol=1e-10, atol=1e-14)
    assert np.abs(flat(federation.state["c"])).max() > 0.01


def test_without_a_correction_it_is_feddyn() -> None:
    problem, alpha = Quadratic(4), 0.9
    federation = Federation(FedDC(lr=0.2, alpha=alpha, grad_correction=Correction.NONE), problem)
    dyn = Federation(FedDyn(lr=0.2, mu=alpha), problem)
    for draws in map(uneven, schedule(problem, rounds=60)):
        federation.round(draws)
        dyn.round(draws)
        np.testing.assert_allclose(flat(federation.state["w"]), flat(dyn.state["w"]), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(
            -alpha * flat(federation.state["h_sum"]), flat(dyn.state["g_sum"]), rtol=1e-9, atol=1e-12
        )
    for device, kept in federation.kept.items():
        np.testing.assert_allclose(-alpha * flat(kept["h"]), flat(dyn.kept[device]["g"]), rtol=1e-9, atol=1e-12)
    assert len(federation.kept) == 4


@pytest.mark.parametrize("correction", list(Correction))
@pytest.mark.parametrize(("share", "rounds"), [(1.0, 60), (0.5, 160)])
def test_settles_at_the_global_minimiser_whoever_takes_part(correction: Correction, share: float, rounds: int) -> None:
    problem, alpha = Quadratic(4, spectrum=(1.0, 2.0)), 1.5
    federation = Federation(FedDC(lr=0.35, alpha=alpha, grad_correction=correction), problem)
    settle(federation, problem, rounds=rounds, share=share, steps=3)
    w = flat(federation.state["w"])
    np.testing.assert_allclose(w, problem.minimiser(dict.fromkeys(problem.examples, 0.25)), rtol=1e-8)
    np.testing.assert_allclose(flat(federation.state["h_sum"]), np.zeros(6), atol=1e-8)
    if correction is Correction.NONE:
        for device, kept in federation.kept.items():
            gradient = problem.A[device] @ (w - problem.b[device])
            np.testing.assert_allclose(flat(kept["h"]), -gradient / alpha, rtol=1e-6)


def test_the_mean_over_active_drifts_that_the_paper_prints_never_settles_with_a_sample() -> None:
    problem, alpha = Quadratic(4, spectrum=(1.0, 2.0)), 1.5
    federation = Federation(FedDC(lr=0.35, alpha=alpha, grad_correction=Correction.NONE), problem)
    best = problem.minimiser(dict.fromkeys(problem.examples, 0.25))
    w, h, printed = problem.start(), {device: np.zeros(6) for device in problem.examples}, []
    for draws in schedule(problem, rounds=160):
        federation.round_of({device: [problem.whole(device)] * 3 for device in draws})
        models = {device: problem.prox(device, w - h[device], alpha) for device in draws}
        h |= {device: h[device] + x - w for device, x in models.items()}
        w = np.mean([x + h[device] for device, x in models.items()], axis=0)
        printed.append(float(np.abs(w - best).max()))
    assert min(printed[-20:]) > 0.01
    assert np.abs(flat(federation.state["w"]) - best).max() < 1e-9


def test_a_clip_above_the_norm_changes_no_bit() -> None:
    problem = Softmax(4)
    loose, off, tight = (Federation(FedDC(lr=0.1, clip=clip), problem) for clip in (30.0, 1e9, 0.3))
    for draws in schedule(problem, rounds=3):
        for federation in (loose, off, tight):
            federation.round(draws)
    for name, tensor in off.state["w"].items():
        assert torch.equal(loose.state["w"][name], tensor)
    assert np.abs(flat(tight.state["w"]) - flat(off.state["w"])).max() > 1e-3


def test_only_what_a_correction_needs_is_declared() -> None:
    problem = Quadratic(2)
    scaffold, last, none = (Federation(FedDC(grad_correction=each), problem) for each in Correction)
    assert none.slots.keys() == {"w", "x", "h", "delta"}
    assert none.state.keys() == {"w", "h_sum"}
    assert scaffold.slots.keys() == {"w", "c", "x", "h", "c_k", "steps", "delta"}
    assert last.slots.keys() == scaffold.slots.keys() | {"change"}
    assert scaffold.by_role(Role.UP).keys() == {"delta"}
    assert FedDC().grad_correction is Correction.SCAFFOLD


def test_running_statistics_are_averaged_without_drift() -> None:
    problem = Quadratic(2)
    federation = Federation(FedDC(grad_correction=Correction.NONE), problem)
    w = federation.state["w"]
    got = Cohort(("pi-0",), (5,), (3,), {"delta": 0 * w + 1.0}, {}, 1, ("pi-0", "pi-1"), statistics=("head",))
    after = federation.algorithm.update(federation.state, got)["w"]
    np.testing.assert_allclose(flat(after.like(["head"])), flat(w.like(["head"])) + 1.0, rtol=1e-12)
    np.testing.assert_allclose(flat(after.like(["body"])), flat(w.like(["body"])) + 1.5, rtol=1e-12)


def test_what_breaks_the_theory_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"weighting = examples will not do: the drifts h_k cancel"):
        FedDC(weighting=Weighting.EXAMPLES).check()
    for settings in (FedDC(lr=0.5, alpha=4.0), FedDC(alpha=0.0), FedDC(lr=-0.1), FedDC(clip=0.0)):
        with pytest.raises(ConfigError, match=r"will not do: each must be above 0.*lr alpha < 2"):
            settings.check()
