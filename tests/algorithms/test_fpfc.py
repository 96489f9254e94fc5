"""FPFC against a NumPy program with loops over pairs, its stationary points, and its prox by brute force."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pytest
import torch
from _driver import Federation, Round, schedule
from _problems import Problem, Quadratic, Softmax, Vector, flat

from edgepfl.algorithms import Cohort
from edgepfl.algorithms._scad import Scad
from edgepfl.algorithms.fpfc import FPFC, Finalize, PairRule
from edgepfl.errors import ConfigError
from edgepfl.plan import Weighting
from edgepfl.tree import Tree

PROBLEMS = [Quadratic(4), Softmax(4)]
GENTLE = FPFC(lr=0.1, lam=1.2, rho=1.0, xi=0.4)
FIRM = FPFC(lr=0.1, lam=1.5, rho=2.0, xi=0.1)
STRONG = FPFC(lr=0.07, lam=2.6, rho=0.6, xi=0.3, a=3.0, weighting=Weighting.EXAMPLES)


@dataclass
class Plain:
    """FPFC, written from the paper's algorithm, every ordered pair of devices stored."""

    settings: FPFC
    problem: Problem
    fused: Vector  # 1 where a parameter is fused, else 0
    omega: dict[str, Vector] = field(default_factory=dict)
    theta: dict[tuple[str, str], Vector] = field(default_factory=dict)
    v: dict[tuple[str, str], Vector] = field(default_factory=dict)
    body: Vector = field(init=False)
    regions: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.body = self.problem.start() * (1 - self.fused)
        devices = sorted(self.problem.examples)
        self.omega = {device: self.problem.start() * self.fused for device in devices}
        for pair in itertools.permutations(devices, 2):
            self.theta[pair] = self.v[pair] = np.zeros(len(self.fused))

    def zeta(self, i: str) -> Vector:
        total = np.zeros(len(self.fused))
        for j in self.omega:
            total += self.omega[j]
            if j != i:
                total += self.theta[i, j] - self.v[i, j] / self.settings.rho
        return total / len(self.omega)

    def coefficient(self, n: float) -> float:
        lam, rho, a, xi = (getattr(self.settings, name) for name in ("lam", "rho", "a", "xi"))
        if n <= xi + lam / rho:
            region, c = 1, xi * rho / (lam + xi * rho)
        elif n <= lam + lam / rho:
            region, c = 2, 1 - lam / (rho * n)
        elif n <= a * lam:
            region, c = 3, max(0.0, 1 - a * lam / ((a - 1) * rho * n)) / (1 - 1 / ((a - 1) * rho))
        else:
            region, c = 4, 1.0
        self.regions.add(region)
        return float(c)

    def round(self, draws: Round) -> None:
        trained, rho = {}, self.settings.rho
        for i, batches in draws.items():
            zeta, x = self.zeta(i), self.omega[i] + self.body
            for draw in batches:
                gradient = self.problem.gradient(i, x, draw)
                x = x - self.settings.lr * (gradient + rho * self.fused * (x - zeta))
            trained[i] = x
        n = {i: self.problem.examples[i] if self.settings.weighting is Weighting.EXAMPLES else 1 for i in draws}
        self.body = sum(n[i] * trained[i] for i in draws) / sum(n.values()) * (1 - self.fused)
        for i, x in trained.items():
            self.omega[i] = x * self.fused
        for i, j in itertools.combinations(self.omega, 2):
            active = [end in draws for end in (i, j)]
            if all(active) if self.settings.pair_rule is PairRule.BOTH else any(active):
                apart = self.omega[i] - self.omega[j]
                delta = apart + self.v[i, j] / rho
                self.theta[i, j] = self.coefficient(float(np.linalg.norm(delta))) * delta
                self.v[i, j] = self.v[i, j] + rho * (apart - self.theta[i, j])
                self.theta[j, i], self.v[j, i] = -self.theta[i, j], -self.v[i, j]


def mask(problem: Problem, personal: tuple[str, ...]) -> Vector:
    """1 where a parameter is fused."""
    parts = [np.full(int(np.prod(shape)), float(name in personal)) for name, shape in sorted(problem.shapes.items())]
    return np.concatenate(parts)


def every(problem: Problem) -> tuple[str, ...]:
    """Names of all parameters: fuse all."""
    return tuple(sorted(problem.shapes))


def models_of(federation: Federation) -> Tree:
    """Each device's model as the server last heard of it."""
    assert isinstance(federation.algorithm, FPFC)
    return federation.algorithm.models(federation.state)


def pair_of(federation: Federation, i: str, j: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The theta and v of two devices."""
    assert isinstance(federation.algorithm, FPFC)
    places = federation.state["places"]
    return federation.algorithm.opened(federation.state).pair(int(places[i]), int(places[j]))


def assert_same(federation: Federation, plain: Plain) -> None:
    fused = plain.fused == 1
    near = partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-13)  # the dual of a flat pair is 0, but for rounding
    near(flat(federation.state["body"]), plain.body[~fused])
    devices = list(plain.omega)
    models = models_of(federation)
    assert list(models) == devices
    for i, j in itertools.permutations(devices, 2):
        theta, v = pair_of(federation, i, j)
        near(theta.numpy(), plain.theta[i, j][fused])
        near(v.numpy(), plain.v[i, j][fused])
    for i in devices:
        near(models[i].numpy(), plain.omega[i][fused])
        sent = federation.algorithm.send(federation.state, i)
        near(flat(sent["zeta"]), plain.zeta(i)[fused])
        near(federation.predictor(i), plain.omega[i] + plain.body)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: type(problem).__name__)
@pytest.mark.parametrize("rule", list(PairRule))
@pytest.mark.parametrize("fuse", ["all", "head"])
def test_follows_the_numpy_program_through_all_regions(problem: Problem, rule: PairRule, fuse: str) -> None:
    personal = every(problem) if fuse == "all" else problem.personal
    visited: set[int] = set()
    scale = 0.7 if isinstance(problem, Quadratic) else 0.2  # of the distances between models
    for settings in (GENTLE, FIRM, STRONG):
        chosen = replace(settings, pair_rule=rule, lam=scale * settings.lam, xi=scale * settings.xi)
        federation = Federation(chosen, problem, personal)
        plain = Plain(chosen, problem, mask(problem, personal))
        for draws in schedule(problem, rounds=10, steps=3):
            federation.round(draws)
            plain.round(draws)
            assert_same(federation, plain)
        visited |= plain.regions
    assert visited >= ({1, 2, 3, 4} if fuse == "all" else {1, 2})


def test_the_rules_differ_and_either_is_usual() -> None:
    problem = Quadratic(4)
    ends = []
    for rule in PairRule:
        federation = Federation(replace(GENTLE, pair_rule=rule), problem, every(problem))
        for draws in schedule(problem, rounds=4):
            federation.round(draws)
        ends.append(federation.state["theta"].value)
    assert FPFC().pair_rule is PairRule.EITHER
    assert (ends[0] - ends[1]).abs().max() > 0.1


def penalty(t: Vector, s: Scad) -> Vector:
    """The smoothed SCAD penalty, from its definition."""
    lam, a, xi = s.lam, s.a, s.xi
    quadratic = lam * t**2 / (2 * xi) + xi * lam / 2
    taper = (a * lam * t - (t**2 + lam**2) / 2) / (a - 1)
    return np.where(
        t <= xi, quadratic, np.where(t <= lam, lam * t, np.where(t <= a * lam, taper, (a + 1) * lam**2 / 2))
    )


@pytest.mark.parametrize("scad", [Scad(0.6, 3.7, 1e-2, 1.0), Scad(1.5, 3.0, 0.4, 0.8), Scad(0.9, 2.2, 0.9, 3.0)])
def test_the_factor_is_the_proximal_operator_by_brute_force(scad: Scad) -> None:
    """The penalty depends on the length alone, so the minimiser lies on the ray of delta."""
    norms = np.linspace(0, scad.a * scad.lam * 1.3, 60)
    t = np.arange(0, scad.a * scad.lam * 1.4, 1e-4)
    best = np.array([t[np.argmin(penalty(t, scad) + scad.rho / 2 * (t - n) ** 2)] for n in norms])
    factor = scad.factor(torch.tensor(norms)).numpy()
    np.testing.assert_allclose(factor * norms, best, atol=1.5e-4)
    assert ((factor >= 0) & (factor <= 1)).all()
    assert factor[-1] == 1.0


@pytest.mark.parametrize("settings", [GENTLE, FIRM, STRONG])
def test_the_factor_is_continuous_where_regions_meet(settings: FPFC) -> None:
    scad = settings.scad(1)
    lam, rho = scad.lam, scad.rho
    borders = torch.tensor([scad.xi + lam / rho, lam + lam / rho, scad.a * lam], dtype=torch.float64)
    below, above = scad.factor(borders * (1 - 1e-9)), scad.factor(borders * (1 + 1e-9))
    np.testing.assert_allclose(below.numpy(), above.numpy(), atol=1e-7)
    assert below[0] < below[1] < below[2]


def test_without_a_penalty_devices_train_alone() -> None:
    problem = Softmax(4)
    federation = Federation(FPFC(lr=0.2, lam=0.0), problem, every(problem))
    w = {device: problem.start() for device in problem.examples}
    for draws in schedule(problem, rounds=6, steps=1):
        federation.round(draws)
        for device, (draw,) in draws.items():
            w[device] = w[device] - 0.2 * problem.gradient(device, w[device], draw)
        for device, alone in w.items():
            zeta = flat(federation.algorithm.send(federation.state, device)["zeta"])
            np.testing.assert_allclose(zeta, alone, rtol=1e-10)
            np.testing.assert_allclose(federation.predictor(device), alone, rtol=1e-10)
        assert not federation.state["v"].value.any()


def full(federation: Federation, problem: Quadratic, rounds: int, steps: int) -> None:
    """Rounds of everyone on full batches."""
    for _ in range(rounds):
        federation.round_of({device: [problem.whole(device)] * steps for device in problem.examples})


def test_without_a_penalty_the_fixed_point_is_each_devices_own_minimiser() -> None:
    problem = Quadratic(4)
    federation = Federation(FPFC(lr=0.3, lam=0.0), problem, every(problem))
    full(federation, problem, rounds=90, steps=4)
    for device in problem.examples:
        np.testing.assert_allclose(federation.predictor(device), problem.b[device], atol=1e-9)


def test_a_huge_penalty_is_consensus_at_the_global_minimiser() -> None:
    problem = Quadratic(4)
    federation = Federation(FPFC(lr=0.3, lam=1e3, xi=1e-6), problem, every(problem))
    full(federation, problem, rounds=150, steps=6)
    w = problem.minimiser(dict.fromkeys(problem.examples, 0.25))
    for device in problem.examples:
        np.testing.assert_allclose(federation.predictor(device), w, atol=1e-7)
        assert np.abs(problem.b[device] - w).max() > 0.1


def slope(t: float, settings: FPFC) -> float:
    """The penalty's derivative."""
    lam, a, xi = settings.lam, settings.a, settings.xi
    if t <= lam:
        return lam * min(t / xi, 1.0)
    return max(0.0, (a * lam - t) / (a - 1))


@pytest.mark.parametrize("lam", [1.5, 3.0])
def test_where_it_stops_is_stationary(lam: float) -> None:
    problem = Quadratic(4)
    settings = FPFC(lr=0.3, lam=lam, xi=0.1)
    federation = Federation(settings, problem, every(problem))
    full(federation, problem, rounds=250, steps=3)
    omega = {device: federation.predictor(device) for device in sorted(problem.examples)}
    gradient = {device: problem.A[device] @ (omega[device] - problem.b[device]) for device in omega}
    pull = {device: np.zeros(6) for device in omega}
    for i, j in itertools.combinations(omega, 2):
        theta, v = (tensor.numpy() for tensor in pair_of(federation, i, j))
        np.testing.assert_allclose(theta, omega[i] - omega[j], atol=1e-7)
        length = float(np.linalg.norm(theta))
        np.testing.assert_allclose(v, slope(length, settings) * theta / length, atol=1e-6)
        pull[i] += v / 4
        pull[j] -= v / 4
    for device in omega:
        np.testing.assert_allclose(gradient[device] + pull[device], 0, atol=1e-7)
    np.testing.assert_allclose(sum(gradient.values()), 0, atol=1e-7)
    assert max(np.abs(each).max() for each in gradient.values()) > 0.01


@pytest.mark.parametrize("rule", list(PairRule))
def test_in_every_round_duals_are_bounded_and_the_centres_have_the_models_mean(rule: PairRule) -> None:
    problem = Quadratic(4)
    for settings in (GENTLE, FIRM, STRONG):
        federation = Federation(replace(settings, pair_rule=rule), problem, every(problem))
        for draws in schedule(problem, rounds=10):
            federation.round(draws)
            norms = federation.state["v"].value.norm(dim=1)
            assert norms.max() <= settings.lam * (1 + 1e-12)
            zetas = [flat(federation.algorithm.send(federation.state, device)["zeta"]) for device in problem.examples]
            mean = flat(models_of(federation)).reshape(4, 6).mean(0)
            np.testing.assert_allclose(np.mean(zetas, axis=0), mean, atol=1e-12)
        assert norms.max() > 0.1


def cohort(devices: tuple[str, ...], fleet: tuple[str, ...], rows: Vector, number: int = 1) -> Cohort:
    """What these devices upload: a row of 6 each, fused."""
    fused = Tree({"body": torch.tensor(rows[:, :4]), "head": torch.tensor(rows[:, 4:].reshape(-1, 1, 2))})
    counts = tuple(range(5, 5 + len(devices)))
    total = {"delta": Tree({})}
    return Cohort(devices, counts, (1,) * len(devices), total, {"fused": fused}, number, fleet)


def test_a_newcomer_joins_at_the_start_and_moves_no_other_pair() -> None:
    problem, rng = Quadratic(4), np.random.default_rng(2)
    federation = Federation(GENTLE, problem, every(problem))
    state = GENTLE.update(federation.state, cohort(("ant", "fox"), ("ant", "elk", "fox"), rng.normal(size=(2, 6))))
    after = GENTLE.update(state, cohort(("elk",), ("ant", "bee", "elk", "fox", "owl"), rng.normal(size=(1, 6))))
    ant, elk, fox, bee, owl = (int(after["places"][name]) for name in ("ant", "elk", "fox", "bee", "owl"))
    assert (ant, elk, fox, bee, owl) == (0, 1, 2, 3, 4)  # those who were here keep their places
    earlier, engine = GENTLE.opened(state), GENTLE.opened(after)
    for before, now in zip(earlier.pair(ant, fox), engine.pair(ant, fox), strict=True):
        assert torch.equal(now, before)
        assert before.abs().max() > 0.1
    assert after["theta"].value.shape == (10, 6)
    assert not torch.cat(engine.pair(bee, owl)).any()
    start, models = torch.tensor(problem.start()), GENTLE.models(after)
    assert torch.equal(models["owl"], start)
    delta = start - models["elk"]
    c = GENTLE.scad(1).factor(delta.norm())
    torch.testing.assert_close(engine.pair(bee, elk)[0], c * delta, rtol=1e-12, atol=0)


def test_a_device_that_the_server_never_saw_gets_the_mean_with_itself_at_the_start() -> None:
    problem, rng = Quadratic(4), np.random.default_rng(2)
    rows = rng.normal(size=(2, 6))
    federation = Federation(GENTLE, problem, every(problem))
    np.testing.assert_allclose(flat(GENTLE.send(federation.state, "ant")["zeta"]), problem.start(), rtol=1e-12)
    state = GENTLE.update(federation.state, cohort(("ant", "fox"), ("ant", "fox"), rows))
    zeta = flat(GENTLE.send(state, "bee")["zeta"])
    np.testing.assert_allclose(zeta, (rows.sum(0) + problem.start()) / 3, rtol=1e-12)
    assert list(state["places"]) == ["ant", "fox"]
    sent = GENTLE.send_each(state, ("bee", "fox", "owl"))
    assert list(sent) == ["bee", "fox", "owl"]
    for device, down in sent.items():
        assert (flat(down["zeta"]) == flat(GENTLE.send(state, device)["zeta"])).all()


def test_a_single_device_trains_towards_itself() -> None:
    problem = Quadratic(1)
    federation = Federation(GENTLE, problem, every(problem))
    full(federation, problem, rounds=40, steps=10)
    np.testing.assert_allclose(federation.predictor("pi-0"), problem.b["pi-0"], atol=1e-9)
    assert "theta" not in federation.state


def test_running_statistics_stay_out_of_pairs() -> None:
    rows = np.random.default_rng(3).normal(size=(2, 6))
    federation = Federation(GENTLE, Quadratic(4), ("body", "head"))
    got = replace(cohort(("ant", "fox"), ("ant", "fox"), rows), statistics=("body",))
    state = GENTLE.update(federation.state, got)
    delta = torch.tensor(rows[0] - rows[1])
    c = GENTLE.scad(1).factor(delta[4:].norm())
    torch.testing.assert_close(state["theta"].value[0, 4:], c * delta[4:], rtol=1e-12, atol=0)
    assert not state["theta"].value[0, :4].any()
    assert not state["v"].value[0, :4].any()
    assert torch.equal(GENTLE.models(state)["fox"], torch.tensor(rows[1]))
    mean = torch.tensor(rows.mean(0)[:4])
    torch.testing.assert_close(GENTLE.send(state, "ant")["zeta"]["body"], mean, rtol=1e-12, atol=0)


def test_the_warm_up_raises_the_penalty_geometrically() -> None:
    path = FPFC(lam=0.8, lam_first=0.1, lam_rounds=3)
    assert [path.scad(number).lam for number in (1, 2, 3, 4, 9)] == pytest.approx([0.1, 0.2, 0.4, 0.8, 0.8])
    alone = FPFC(lam=0.8, lam_rounds=2)
    assert [alone.scad(number).lam for number in (1, 2, 3)] == [0, 0, 0.8]
    assert FPFC(lam=0.8).scad(1).lam == 0.8


def test_the_penalty_of_a_round_is_the_warm_ups() -> None:
    problem = Quadratic(4)
    federation = Federation(replace(GENTLE, lam_rounds=2), problem, every(problem))
    plain = Plain(GENTLE, problem, mask(problem, every(problem)))
    for number, draws in enumerate(schedule(problem, rounds=5), 1):
        plain.settings = replace(GENTLE, lam=1e-12 if number <= 2 else 1.2, xi=1e-13 if number <= 2 else 0.4)
        federation.round(draws)
        plain.round(draws)
        for device, omega in plain.omega.items():
            np.testing.assert_allclose(federation.predictor(device), omega, rtol=1e-9)
        assert federation.state["v"].value.any() == (number > 2)


def test_in_the_end_each_device_gets_its_clusters_mean_by_examples() -> None:
    rows = np.array([[0.0] * 6, [5.0] * 6, [0.01] * 6, [5.02] * 6, [-9.0] * 6])
    devices = ("ant", "bee", "cat", "dog", "elk")
    settings = FPFC(lam=0.5, xi=0.1, finalize=Finalize.CLUSTER_MEAN)
    federation = Federation(settings, Quadratic(4), ("body", "head"))
    state = settings.update(federation.state, cohort(devices, devices, rows))
    assert settings.send(state, "ant")["final"].value == 0
    ended = settings.conclude(state)
    for members in (("ant", "cat"), ("bee", "dog"), ("elk",)):
        n = np.array([5.0 + devices.index(member) for member in members])
        mean = n @ rows[[devices.index(member) for member in members]] / n.sum()
        for member in members:
            sent = settings.send(ended, member)
            np.testing.assert_allclose(flat(sent["zeta"]), mean, rtol=1e-12)
            assert sent["final"].value == 1
    own = Tree({"body": torch.ones(4), "head": torch.ones(1, 2)})
    down = settings.send(ended, "ant")
    assert torch.equal(settings.predictor({**down, "omega": own})["body"], down["zeta"]["body"])
    assert FPFC(lam=0.5, xi=0.1).conclude(state) is state


def test_nu_decides_who_is_one_cluster() -> None:
    rows = np.array([[0.0] * 6, [5.0] * 6, [0.01] * 6, [5.02] * 6, [-9.0] * 6])
    devices = ("ant", "bee", "cat", "dog", "elk")
    federation = Federation(FPFC(), Quadratic(4), ("body", "head"))
    found = []
    for nu in (1e-9, 14.0, 40.0):
        settings = FPFC(lam=0.5, xi=0.1, finalize=Finalize.CLUSTER_MEAN, nu=nu)
        ended = settings.conclude(settings.update(federation.state, cohort(devices, devices, rows)))
        found.append(len({tuple(flat(settings.send(ended, device)["zeta"])) for device in devices}))
    assert found == [5, 2, 1]
    assert settings.conclude(federation.state) is federation.state  # nobody has trained


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (FPFC(a=2.0, rho=1.0), r"\(a - 1\) rho = 1 is at most 1"),
        (FPFC(rho=0.3), r"\(a - 1\) rho = 0.81 is at most 1"),
        (FPFC(a=0.0, rho=-2.0), "pulls away"),
        (FPFC(xi=0.7), "xi = 0.7 > lam = 0.6"),
        (FPFC(lam_first=1e-5, lam_rounds=2), "xi = 0.0001 > lam_first = 1e-05"),
        (FPFC(lam_first=0.7, lam_rounds=2), "a warm-up rises"),
        (FPFC(lam=-1.0), "negative"),
    ],
)
def test_what_breaks_the_theory_is_refused_with_the_reason(settings: FPFC, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        settings.check()
    assert caught.value.remedy
    FPFC(lam=0.0).check()  # no penalty, so nothing for xi to smooth


def test_fusing_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="no parameter is fused") as caught:
        Federation(FPFC(), Quadratic(4))
    assert "'*'" in caught.value.remedy
    assert FPFC.personal_default == ("*",)


def test_without_a_penalty_and_a_pull_the_shared_part_is_averaged_and_the_head_is_local() -> None:
    """What FedPer does, but for the pull of the centre, which is its own model in the first round."""
    problem = Softmax(4)
    federation = Federation(FPFC(lr=0.2, lam=0.0), problem, problem.personal)
    (draws,) = schedule(problem, rounds=1, steps=1)
    federation.round(draws)
    models = [
        problem.start() - 0.2 * problem.gradient(device, problem.start(), draw) for device, (draw,) in draws.items()
    ]
    np.testing.assert_allclose(flat(federation.state["body"]), np.mean(models, axis=0)[3:], rtol=1e-12)
    for device, model in zip(draws, models, strict=True):
        np.testing.assert_allclose(federation.predictor(device)[:3], model[:3], rtol=1e-12)
