"""FedCR against a NumPy program, its products of experts, its divergence, its limit FedPer and its options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from _driver import Federation, Round, schedule
from _problems import Draw, Vector, flat
from _represented import CLASSES, DIMS, FLOOR, PARTS, WIDTH, Represented, gradient, normals, parts_of

from edgepfl import algorithms
from edgepfl.algorithms import Cohort
from edgepfl.algorithms._extractor import EvalExtractor
from edgepfl.algorithms._normal import divergence, representation
from edgepfl.algorithms.fedcr import FedCR, LocalPoE
from edgepfl.algorithms.fedper import FedPer
from edgepfl.errors import ConfigError
from edgepfl.plan import Weighting
from edgepfl.tree import Tree, Trees

BODY = sum(PARTS[:2])  # numbers of the extractor, before the head's
Pairs = tuple[Vector, Vector]
START: Pairs = (np.zeros((CLASSES, WIDTH)), np.ones((CLASSES, WIDTH)))


@dataclass
class Epochs(Federation):
    """Devices whose epoch is shorter than a round."""

    epoch: int = 2

    def opening(self, device: str, steps: int = 0) -> Trees:
        return {**super().opening(device, steps), "epoch": Tree.scalar(torch.tensor(float(self.epoch)))}


def federation_of(settings: FedCR, problem: Represented | None = None) -> Epochs:
    problem = problem or Represented(4)
    return Epochs(settings, problem, problem.personal, DIMS)


def clipped(direction: Vector, most: float) -> Vector:
    return direction * min(1.0, most / float(np.linalg.norm(direction)))


def experts(seen: Sequence[tuple[Vector, Vector, int]], *, geometric: bool) -> tuple[Vector, Vector, Vector]:
    """Precisions, shifts and presence from each example's mean, deviation and class, all of them stored."""
    precision, shift, present = np.zeros((CLASSES, WIDTH)), np.zeros((CLASSES, WIDTH)), np.zeros(CLASSES)
    for c in range(CLASSES):
        own = [(mean, 1 / sigma**2) for mean, sigma, y in seen if y == c]
        if own:
            share = len(own) if geometric else 1
            precision[c] = sum(each for _, each in own) / share
            mean = sum(mean * each for mean, each in own) / sum(each for _, each in own)
            shift[c], present[c] = precision[c] * mean, 1
    return precision, shift, present


@dataclass
class Program:
    """FedCR from ALGORITHMS' equations, in NumPy; its noise is what the federation drew."""

    problem: Represented
    settings: FedCR
    body: Vector
    heads: dict[str, Vector]
    bodies: dict[str, Vector]
    pairs: Pairs = START

    def round(self, draws: Round, noise: Federation, epoch: int) -> None:
        settings = self.settings
        bodies = []
        precision, shift, present = np.zeros((CLASSES, WIDTH)), np.zeros((CLASSES, WIDTH)), np.zeros(CLASSES)
        for device, batches in draws.items():
            w = np.concatenate([self.body, self.heads[device]])
            seen: list[tuple[Vector, Vector, int]] = []
            for done, draw in enumerate(batches):
                mean, sigma, _ = normals(w, draw.x)
                if done >= len(batches) - epoch:
                    seen += [row[:3] for row in zip(mean, sigma, draw.y, draw.weight, strict=True) if row[3] > 0]
                eps = settings.noise_scale * noise.noise(device, done, "eps")
                step = gradient(w, draw, eps, self.pairs, settings.beta)
                w = w - settings.lr * clipped(step, settings.clip)
            bodies.append(w[:BODY])
            self.heads[device] = w[BODY:]
            self.bodies[device] = w[:BODY]
            told = experts(seen, geometric=settings.local_poe is LocalPoE.GEOMETRIC)
            precision, shift, present = precision + told[0], shift + told[1], present + told[2]
        self.body = np.mean(bodies, axis=0)
        variance = 1 / (1 + precision)
        has = np.broadcast_to(present[:, None] > 0, (CLASSES, WIDTH))
        found = (variance * shift, np.maximum(np.sqrt(variance), FLOOR))
        beta2 = settings.beta2
        mu, sigma = (
            np.where(has, (1 - beta2) * old + beta2 * new, old) for old, new in zip(self.pairs, found, strict=True)
        )
        self.pairs = mu, sigma

    def predictor(self, device: str) -> Vector:
        own = self.bodies.get(device) if self.settings.eval_extractor is EvalExtractor.LOCAL else None
        return np.concatenate([self.body if own is None else own, self.heads[device]])


SETTINGS = [
    FedCR(lr=0.05, beta=0.02),
    FedCR(lr=0.11, beta=0.3, clip=0.6, draws=2, local_poe=LocalPoE.PRODUCT, eval_extractor=EvalExtractor.LOCAL),
    FedCR(lr=0.05, beta=1e-3, noise_scale=0.4, draws=1, beta2=0.6),
]


@pytest.mark.parametrize("settings", SETTINGS, ids=["default", "authors", "blended"])
@pytest.mark.parametrize("seed", [0, 3])
def test_follows_the_numpy_program(settings: FedCR, seed: int) -> None:
    problem = Represented(4, seed=seed)
    federation = federation_of(settings, problem)
    w = problem.start()
    program = Program(problem, settings, w[:BODY], dict.fromkeys(problem.examples, w[BODY:]), {})
    for draws in schedule(problem, rounds=6, steps=5):
        federation.round(draws)
        program.round(draws, federation, epoch=2)
        np.testing.assert_allclose(flat(federation.state["body"]), program.body, rtol=1e-10)
        np.testing.assert_allclose(federation.state["mu_g"].value, program.pairs[0], rtol=1e-10, atol=1e-13)
        np.testing.assert_allclose(federation.state["sigma_g"].value, program.pairs[1], rtol=1e-10)
        for device in problem.examples:
            np.testing.assert_allclose(federation.predictor(device), program.predictor(device), rtol=1e-10)
    assert np.abs(program.pairs[0]).max() > 0.1
    assert set(federation.state) == {"body", "mu_g", "sigma_g"}


def test_the_divergence_is_zero_where_the_pairs_are_equal_and_positive_elsewhere() -> None:
    rng = np.random.default_rng(0)
    mu, sigma = torch.tensor(rng.normal(size=(200, 3))), torch.tensor(rng.uniform(1e-4, 3, (200, 3)))
    assert torch.equal(divergence(mu, sigma, mu, sigma), torch.zeros(200, dtype=torch.float64))
    for other in ((mu + 1e-3, sigma), (mu, sigma * 1.01), (mu, sigma / 1.01), (-mu, sigma + 1)):
        assert (divergence(*other, mu, sigma) > 0).all()


def test_the_divergence_is_the_mean_log_ratio_under_the_global_pair() -> None:
    rng = np.random.default_rng(1)
    mu_g, sigma_g, mu, sigma = rng.normal(size=4), rng.uniform(0.3, 1, 4), rng.normal(size=4), rng.uniform(1, 2, 4)
    z = mu_g + sigma_g * rng.normal(size=(400_000, 4))
    ratio = np.log(sigma / sigma_g) + ((z - mu) / sigma) ** 2 / 2 - ((z - mu_g) / sigma_g) ** 2 / 2
    found = divergence(*(torch.tensor(each)[None] for each in (mu_g, sigma_g, mu, sigma))).item()
    turned = divergence(*(torch.tensor(each)[None] for each in (mu, sigma, mu_g, sigma_g))).item()
    np.testing.assert_allclose(found, ratio.sum(1).mean(), rtol=0.01)
    assert abs(turned - found) > 0.1 * found


def test_a_scale_is_softplus_and_never_nothing() -> None:
    problem = Represented(1)
    batch = problem.batch("pi-0", problem.draw("pi-0", [0, 1], 0))
    for raw in (-200.0, -3.0, 0.0, 2.0, 300.0):
        bias = torch.tensor([0.0, 0.0, raw, raw], dtype=torch.float64)
        weight = torch.zeros(4, 2 * WIDTH, dtype=torch.float64)
        leaf = bias.requires_grad_()
        _, sigma = representation(batch, Tree({"features.bias": leaf, "features.weight": weight}))
        np.testing.assert_allclose(sigma.detach(), np.full((2, WIDTH), max(np.logaddexp(0, raw), FLOOR)), rtol=1e-14)
        (slope,) = torch.autograd.grad(sigma[0, 0], leaf)
        wanted = 0 if raw < np.log(FLOOR) else 1 / (1 + np.exp(-raw))
        np.testing.assert_allclose(slope, [0, 0, wanted, 0], rtol=1e-14)


def log_density(z: Vector, mean: Vector, variance: Vector) -> Vector:
    return -((z - mean) ** 2) / variance / 2


def updated(settings: FedCR, uploads: Sequence[Trees], pairs: Pairs = START) -> Pairs:
    """The server's pairs after these uploads, summed in their order."""
    state = {
        "body": Tree({}),
        **{n: Tree.scalar(torch.tensor(p)) for n, p in zip(("mu_g", "sigma_g"), pairs, strict=True)},
    }
    total = {name: uploads[0][name] for name in ("precision", "shift", "present")}
    for upload in uploads[1:]:
        total = {name: total[name] + upload[name] for name in total}
    after = settings.update(state, Cohort(("a",), (1,), (1,), {"delta": Tree({}), **total}, {}))
    return after["mu_g"].value.numpy(), after["sigma_g"].value.numpy()


def upload_of(means: Vector, variances: Vector, present: Vector) -> Trees:
    mask = present[:, None]
    told = {"precision": mask / variances, "shift": mask * means / variances, "present": present}
    return {name: Tree.scalar(torch.tensor(each)) for name, each in told.items()}


def test_the_server_multiplies_the_experts_and_the_standard_normal() -> None:
    rng = np.random.default_rng(2)
    means, variances = rng.normal(size=(3, CLASSES, WIDTH)), rng.uniform(0.2, 2, (3, CLASSES, WIDTH))
    everyone = np.ones(CLASSES)
    uploads = [upload_of(mean, variance, everyone) for mean, variance in zip(means, variances, strict=True)]
    mu, sigma = updated(FedCR(), uploads)
    z = rng.normal(size=(50, CLASSES, WIDTH))
    wanted = log_density(z, np.zeros(1), np.ones(1)) + sum(
        log_density(z, m, v) for m, v in zip(means, variances, strict=True)
    )
    apart = wanted - log_density(z, mu, sigma**2)
    np.testing.assert_allclose(apart, np.broadcast_to(apart[0], apart.shape), atol=1e-12)
    for order in ([2, 0, 1], [1, 2, 0]):
        other = updated(FedCR(), [uploads[k] for k in order])
        np.testing.assert_allclose(other[0], mu, rtol=1e-13)
        np.testing.assert_allclose(other[1], sigma, rtol=1e-13)


def test_a_class_that_nobody_has_keeps_its_pair_and_a_sure_expert_is_followed() -> None:
    rng = np.random.default_rng(3)
    old = (rng.normal(size=(CLASSES, WIDTH)), rng.uniform(0.5, 1, (CLASSES, WIDTH)))
    means, variances = rng.normal(size=(CLASSES, WIDTH)), np.full((CLASSES, WIDTH), 1e-10)
    mu, sigma = updated(FedCR(), [upload_of(means, variances, np.array([1.0, 0.0, 1.0]))], old)
    np.testing.assert_array_equal(mu[1], old[0][1])
    np.testing.assert_array_equal(sigma[1], old[1][1])
    np.testing.assert_allclose(mu[[0, 2]], means[[0, 2]], rtol=1e-9)
    np.testing.assert_array_equal(sigma[[0, 2]], np.full((2, WIDTH), 1e-4))  # a precision of 1e8 at most
    frozen = updated(FedCR(beta2=0.0), [upload_of(means, variances, np.ones(CLASSES))], old)
    np.testing.assert_array_equal(frozen, old)


def test_the_pairs_stay_pairs_whatever_the_devices_say() -> None:
    """No upload that passes the screen makes a scale that is none, or a number that is none."""
    for precision in (-1.0, -5.0, 0.0, 1e6, 3e38):
        said = {"precision": np.full((CLASSES, WIDTH), precision), "shift": np.ones((CLASSES, WIDTH))}
        upload = {name: Tree.scalar(torch.tensor(each)) for name, each in said.items()}
        mu, sigma = updated(FedCR(), [{**upload, "present": Tree.scalar(torch.ones(CLASSES, dtype=torch.float64))}])
        assert np.isfinite(mu).all()
        assert ((sigma >= 1e-4) & (sigma <= 1)).all()


def told(federation: Epochs, batches: Sequence[Draw]) -> dict[str, Vector]:
    upload = federation.train("pi-0", [federation.problem.batch("pi-0", draw) for draw in batches])
    return {name: upload[name].value.numpy() for name in ("precision", "shift", "present")}


def rows_of(problem: Represented, *rows: list[int]) -> list[Draw]:
    """Minibatches of these rows, padded to four."""
    return [problem.draw("pi-0", each, 4 - len(each)) for each in rows]


@pytest.mark.parametrize("poe", list(LocalPoE))
def test_the_local_expert_is_the_product_of_the_examples_own(poe: LocalPoE) -> None:
    problem = Represented(1)
    found = told(federation_of(FedCR(lr=0.0, local_poe=poe), problem), rows_of(problem, [0, 1, 2, 3], [4, 5]))
    x, y = problem.x["pi-0"], problem.y["pi-0"]
    mean, sigma, _ = normals(problem.start(), x)
    z = np.random.default_rng(4).normal(size=(50, WIDTH))
    assert len(set(y[:6].tolist())) > 1
    for c in set(y[:6].tolist()):
        own = [i for i in range(6) if y[i] == c]
        share = len(own) if poe is LocalPoE.GEOMETRIC else 1
        wanted = sum(log_density(z, mean[i], sigma[i] ** 2) for i in own) / share
        apart = wanted - log_density(z, found["shift"][c] / found["precision"][c], 1 / found["precision"][c])
        np.testing.assert_allclose(apart, np.broadcast_to(apart[0], apart.shape), atol=1e-12)


def test_the_sums_are_those_of_stored_examples_in_any_order_and_without_padding() -> None:
    problem = Represented(1)
    federation = federation_of(FedCR(lr=0.0), problem)
    mean, sigma, _ = normals(problem.start(), problem.x["pi-0"])
    stored = experts(list(zip(mean[:6], sigma[:6], problem.y["pi-0"][:6], strict=True)), geometric=True)
    for batches in (
        rows_of(problem, [0, 1, 2, 3], [4, 5]),
        rows_of(problem, [5, 1, 4], [0, 3, 2]),
        rows_of(problem, [0, 0, 0], [0, 1, 2], [3, 4, 5]),  # the first is before the last epoch
    ):
        found = told(federation, batches)
        for name, wanted in zip(("precision", "shift", "present"), stored, strict=True):
            np.testing.assert_allclose(found[name], wanted, rtol=1e-12)


def test_a_class_that_a_device_lacks_is_exact_zeros() -> None:
    problem = Represented(1)
    absent = int(problem.y["pi-0"][0])
    others = [i for i, y in enumerate(problem.y["pi-0"]) if y != absent]
    found = told(federation_of(FedCR(), problem), rows_of(problem, others[:2], others[2:4]))
    assert not any(found[name][absent].any() for name in found)
    assert found["present"].sum() == len({int(problem.y["pi-0"][i]) for i in others[:4]})


def test_a_device_that_stops_before_its_last_epoch_has_no_class_to_tell_of() -> None:
    problem = Represented(1)
    federation = federation_of(FedCR(), problem)
    s = dict(federation.opening("pi-0", 5))
    s |= federation.algorithm.begin(s)
    untouched = federation.algorithm.finish(s)
    for done, draw in enumerate(rows_of(problem, [0, 1, 2, 3], [4, 5, 0, 1], [2, 3, 4, 5])):
        s |= {"steps": Tree.scalar(torch.tensor(float(done)))} | federation._noise("pi-0", done)
        s |= federation.algorithm.step(s, problem.batch("pi-0", draw))
    finished = federation.algorithm.finish(s)
    for upload in (untouched, finished):
        assert not any(upload[name].value.any() for name in ("precision", "shift", "present"))
    assert flat(finished["delta"]).any()
    assert not flat(untouched["delta"]).any()


def test_without_noise_and_divergence_it_is_fedper_bit_for_bit() -> None:
    problem = Represented(4)
    settings = FedCR(lr=0.11, tune_lr=0.3, beta=0.0, noise_scale=0.0, draws=1)
    federation = federation_of(settings, problem)
    plain = Federation(FedPer(lr=0.11, tune_lr=0.3, weighting=Weighting.UNIFORM), problem, problem.personal)
    (tuning,) = schedule(problem, rounds=1, share=1.0, seed=8)
    for draws in schedule(problem, rounds=5):
        federation.round(draws)
        plain.round(draws)
        for name, tensor in plain.state["body"].items():
            assert torch.equal(federation.state["body"][name], tensor)
    for device in problem.examples:
        batches = [problem.batch(device, draw) for draw in tuning[device]]
        ours, theirs = federation.prepared(device, batches), plain.prepared(device, batches)
        params, other = federation.algorithm.predictor(ours), plain.algorithm.predictor(theirs)
        assert all(torch.equal(params[name], other[name]) for name in other)
        given = federation.algorithm.predict(batches[0], params)
        assert torch.equal(given, plain.algorithm.predict(batches[0], other))
    assert FedCR().weighting is Weighting.UNIFORM


def test_tuning_trains_the_head_alone_on_draws() -> None:
    problem = Represented(4)
    federation = federation_of(FedCR(tune_lr=0.4, draws=3, clip=0.7), problem)
    federation.round(schedule(problem, rounds=1)[0])
    (draws,) = schedule(problem, rounds=1, share=1.0, seed=9)
    w = before = federation.predictor("pi-1")
    for done, draw in enumerate(draws["pi-1"]):
        step = gradient(w, draw, federation.noise("pi-1", done, "eps"), START, beta=0.0)
        w = np.concatenate([w[:BODY], w[BODY:] - 0.4 * clipped(step[BODY:], 0.7)])
    tuned = federation.predictor("pi-1", [problem.batch("pi-1", draw) for draw in draws["pi-1"]])
    np.testing.assert_allclose(tuned, w, rtol=1e-10)
    np.testing.assert_array_equal(tuned[:BODY], before[:BODY])
    assert np.abs(tuned[BODY:] - before[BODY:]).max() > 0.05


def test_the_local_extractor_is_the_devices_own_last_one_for_tuning_and_prediction() -> None:
    problem = Represented(4)
    local = federation_of(FedCR(lr=0.2, eval_extractor=EvalExtractor.LOCAL), problem)
    shared = federation_of(FedCR(lr=0.2), problem)
    for draws in schedule(problem, rounds=3):
        local.round(draws)
        shared.round(draws)
        assert torch.equal(local.state["mu_g"].value, shared.state["mu_g"].value)
    (tuning,) = schedule(problem, rounds=1, share=1.0, seed=9)
    for device in local.kept:
        batches = [problem.batch(device, draw) for draw in tuning[device]]
        own = flat(local.kept[device]["own"])
        np.testing.assert_array_equal(local.predictor(device, batches)[:BODY], own)
        assert np.abs(local.predictor(device)[:BODY] - shared.predictor(device)[:BODY]).max() > 1e-3
        assert np.abs(local.predictor(device, batches)[BODY:] - shared.predictor(device, batches)[BODY:]).max() > 1e-5
    strangers = problem.examples.keys() - local.kept.keys()
    assert all(np.array_equal(local.predictor(each), shared.predictor(each)) for each in strangers)


def test_the_gradients_norm_is_bounded_and_a_bound_above_it_changes_no_bit() -> None:
    problem = Represented(1)
    (draw,) = rows_of(problem, [0, 1, 2, 3])
    moved = {}
    for clip in (1e9, 40.0, 0.25):
        federation = federation_of(FedCR(lr=1.0, clip=clip), problem)
        moved[clip] = flat(federation.train("pi-0", [problem.batch("pi-0", draw)])["delta"])
        moved[clip] = np.concatenate([moved[clip], flat(federation.kept["pi-0"]["head"]) - problem.start()[BODY:]])
    np.testing.assert_array_equal(moved[40.0], moved[1e9])
    assert 0.25 < np.linalg.norm(moved[1e9]) < 40
    np.testing.assert_allclose(moved[0.25], clipped(moved[1e9], 0.25), rtol=1e-12)


def test_draws_for_prediction_are_the_same_for_every_row() -> None:
    problem = Represented(1)
    federation = federation_of(FedCR(draws_test=6), problem)
    params = federation.algorithm.predictor(federation.prepared("pi-0"))
    (first,), (second,) = rows_of(problem, [0, 1, 2, 3]), rows_of(problem, [3, 2, 4, 0])
    given = federation.algorithm.predict(problem.batch("pi-0", first), params).numpy()
    again = federation.algorithm.predict(problem.batch("pi-0", second), params).numpy()
    np.testing.assert_allclose(again[[0, 1, 3]], given[[3, 2, 0]], rtol=1e-13)
    _, _, d, H = parts_of(problem.start())
    mean, sigma, _ = normals(problem.start(), first.x)
    shift = (given - (mean @ H + d)) @ np.linalg.pinv(H) / sigma  # the head is linear: one mean of the noise for all
    np.testing.assert_allclose(shift, np.broadcast_to(shift[0], shift.shape), atol=1e-12)
    assert 0.01 < np.abs(shift[0]).max() < 2
    far = FedCR(draws_test=4000).predict(problem.batch("pi-0", first), params).numpy()
    assert np.abs(far - (mean @ H + d)).max() < 0.2 * np.abs(given - (mean @ H + d)).max()


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ({"draws": 0}, "at least 1"),
        ({"draws_test": -1}, "0 or more"),
        ({"beta": -0.1}, "far from the common representation"),
        ({"noise_scale": -1.0}, "0 or more"),
        ({"clip": 0.0}, "no gradient would be left"),
        ({"beta2": 1.5}, "from 0 to 1"),
    ],
)
def test_settings_that_cannot_be(setting: dict[str, float], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        algorithms.build("fedcr", setting)
    assert next(iter(setting)) in caught.value.what
    assert algorithms.build("fedcr", {"draws": 18, "local_poe": "product", "eval_extractor": "local"}).inner_steps == 0
