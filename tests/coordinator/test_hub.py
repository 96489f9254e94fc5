"""Three levels: the tree is the two-level method where it must be, and both forms follow NumPy programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from _three_levels import Play, combine, train
from numpy.typing import NDArray

from coordinator import updater
from coordinator.hub.levels import Hub, Nested, one_model
from edgepfl import algorithms
from edgepfl.algorithms import Algorithm, Cohort, Minibatch
from edgepfl.errors import ConfigError, RunError
from edgepfl.plan import Reduce, Role, Shape, Slot, Weighting, down, up, work
from edgepfl.tree import Tree, Trees

Vector = NDArray[np.float64]
D = 4
HUBS = {"north": ("pi-0", "pi-1", "pi-2"), "south": ("pi-3", "pi-4"), "west": ("pi-5",)}
DEVICES = tuple(device for devices in HUBS.values() for device in devices)
EXAMPLES = {device: 3 + 4 * k for k, device in enumerate(DEVICES)}


@dataclass
class Batch:
    """A minibatch of ``f(w) = 1/2 (w - b)' A (w - b)``."""

    A: Vector
    b: Vector

    def grad(self, params: Tree) -> Tree:
        return Tree({"w": torch.from_numpy(self.A) @ (params["w"] - torch.from_numpy(self.b))})


@dataclass
class Fleet:
    """Devices with quadratic losses, and what they keep.

    Attributes:
        steps: minibatches a round.
        noise: how far a minibatch's centre is from the device's.
    """

    algorithm: Algorithm
    steps: int = 2
    noise: float = 0.5
    kept: dict[str, Trees] = field(default_factory=dict)
    played: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(0)
        self.A = {device: self._positive(rng) for device in DEVICES}
        self.b = {device: rng.normal(size=D) * 2 for device in DEVICES}

    def minibatches(self, device: str, number: int) -> list[Vector]:
        """The centres of a round's minibatches."""
        rng = np.random.default_rng([number, DEVICES.index(device)])
        return [self.b[device] + self.noise * rng.normal(size=D) for _ in range(self.steps)]

    def play(self, cohort: Sequence[str]) -> Play:
        """Rounds of these devices."""

        def once(state: Trees, number: int) -> Cohort:
            self.played.append(number)
            return self.fold({device: self.train(device, state, number) for device in sorted(cohort)})

        return once

    def train(self, device: str, state: Trees, number: int) -> Trees:
        sent = self.algorithm.send({name: tree.map(torch.from_numpy) for name, tree in state.items()}, device)
        slots = self.algorithm.declared()
        first = {name: sent[str(slot.first)] for name, slot in slots.items() if slot.role is Role.KEEP}
        s = {**sent, **self.kept.get(device, first)}
        known = {"examples": EXAMPLES[device], "planned": self.steps, "epoch": self.steps}
        s |= {name: _number(known.get(name, 0)) for name, slot in slots.items() if slot.role is Role.GIVEN}
        s |= self.algorithm.begin(s)
        for done, centre in enumerate(self.minibatches(device, number)):
            b: Any = Batch(self.A[device], centre)  # it is asked for gradients only
            s["steps"] = _number(done)
            s |= self.algorithm.prepare(s, b)
            for _ in range(self.algorithm.inner_steps):
                s |= self.algorithm.inner(s, b)
            s |= self.algorithm.step(s, b)
        s |= self.algorithm.finish(s)
        self.kept[device] = {name: s[name] for name in first}
        return {name: s[name] for name, slot in slots.items() if slot.role is Role.UP}

    def fold(self, uploads: Mapping[str, Trees]) -> Cohort:
        uniform = self.algorithm.weighting is Weighting.UNIFORM
        weights = {device: 1 if uniform else EXAMPLES[device] for device in uploads}
        (slot,) = next(iter(uploads.values()))
        parts = [weights[device] / sum(weights.values()) * upload[slot] for device, upload in uploads.items()]
        steps = (self.steps,) * len(uploads)
        return Cohort(tuple(uploads), tuple(EXAMPLES[k] for k in uploads), steps, {slot: sum(parts[1:], parts[0])}, {})

    @staticmethod
    def _positive(rng: np.random.Generator) -> Vector:
        q, _ = np.linalg.qr(rng.normal(size=(D, D)))
        return np.asarray(q @ np.diag(rng.uniform(0.6, 1.4, D)) @ q.T)


def _number(value: float) -> Tree:
    return Tree.scalar(torch.tensor(float(value), dtype=torch.float64))


def model() -> Tree:
    return Tree({"w": np.random.default_rng(9).normal(size=D)})


def build(name: str, **settings: float | str) -> Algorithm:
    return algorithms.build(name, settings)


def three_levels(
    fleet: Fleet, hub: Hub, centre: Algorithm, *, rounds: int, cohorts: Mapping[str, Sequence[str]] = HUBS
) -> list[Vector]:
    """The centre's model after each round."""
    slot, _ = one_model(centre)
    state: Trees = {slot: model()}
    kept: dict[str, Trees] = {name: {} for name in HUBS}
    trajectory = []
    for number in range(1, rounds + 1):
        reports = {name: train(hub, state[slot], kept[name], fleet.play(cohorts[name]), number) for name in cohorts}
        kept |= {name: report.kept for name, report in reports.items()}
        state = combine(centre, state, reports, number=number)
        trajectory.append(state[slot]["w"])
    return trajectory


SETTINGS: dict[str, dict[str, float | str]] = {
    "fedavg": {"lr": 0.2},
    "ditto": {"lr": 0.2, "lam": 0.4},
    "pfedmac": {"lr": 1.5, "inner_lr": 0.2, "mu": 0.4, "sparsity": "exact", "gamma": 0.1},
    "pfedme": {"lr": 0.2, "inner_lr": 0.2, "lam": 1.5},
}
STEP_OF_THE_SERVER = {"fedavg": "server_lr", "pfedmac": "beta", "pfedme": "beta"}


@pytest.mark.parametrize("cohorts", [HUBS, {"north": ("pi-0", "pi-2"), "west": ("pi-5",)}], ids=["all", "half"])
@pytest.mark.parametrize("weighting", list(Weighting))
@pytest.mark.parametrize("name", SETTINGS)
def test_a_tree_of_one_round_is_the_flat_method(
    name: str, weighting: Weighting, cohorts: Mapping[str, Sequence[str]]
) -> None:
    centres = {STEP_OF_THE_SERVER[name]: 1.4} if name in STEP_OF_THE_SERVER else {}
    centre = build(name, weighting=weighting, **SETTINGS[name], **centres)
    below = build(name, weighting=weighting, **SETTINGS[name])
    tree, flat = Fleet(below), Fleet(centre)
    trajectory = three_levels(tree, Hub(below), centre, rounds=5, cohorts=cohorts)
    state: Trees = {"w": model()}
    everyone = [device for devices in cohorts.values() for device in devices]
    for number, w in enumerate(trajectory, 1):
        got = flat.play(everyone)(state, number)
        state = updater.numpy_of(updater.next_state(centre, updater.torch_of(state), got))
        np.testing.assert_allclose(w, state["w"]["w"], rtol=1e-12)
    assert tree.kept.keys() == flat.kept.keys() == set(everyone)
    for device, kept in flat.kept.items():
        for slot, personal in kept.items():
            np.testing.assert_allclose(tree.kept[device][slot]["w"], personal["w"], rtol=1e-11)
    assert np.abs(trajectory[-1] - model()["w"]).max() > 0.1


def soft(x: Vector, by: float) -> Vector:
    return np.asarray(np.sign(x) * np.maximum(np.abs(x) - by, 0))


def local(fleet: Fleet, device: str, w: Vector, number: int) -> Vector:
    """A device's round in NumPy: of FedAvg, or of pFedMac with the exact norm."""
    a: Any = fleet.algorithm
    own = w
    for centre in fleet.minibatches(device, number):
        if not hasattr(a, "mu"):
            own = own - a.lr * fleet.A[device] @ (own - centre)
            continue
        theta = own
        for _ in range(a.inner_steps):
            theta = soft(theta - a.inner_lr * (fleet.A[device] @ (theta - centre) - a.mu * own), a.inner_lr * a.gamma)
        own = own - a.lr * a.mu * (own - theta)
    return own


def averaged(models: Mapping[str, Vector], weights: Mapping[str, float]) -> Vector:
    return np.average([models[k] for k in models], axis=0, weights=[weights[k] for k in models])


def counted(weighting: Weighting, devices: Sequence[str]) -> dict[str, float]:
    return {device: 1.0 if weighting is Weighting.UNIFORM else EXAMPLES[device] for device in devices}


@pytest.mark.parametrize("weighting", list(Weighting))
@pytest.mark.parametrize("name", ["fedavg", "pfedmac"])
def test_a_tree_of_several_rounds_follows_the_numpy_program(name: str, weighting: Weighting) -> None:
    algorithm = build(name, weighting=weighting, **SETTINGS[name])
    trajectory = three_levels(Fleet(algorithm), Hub(algorithm, rounds=3), algorithm, rounds=5)
    fleet, w = Fleet(algorithm), model()["w"]
    for number, found in enumerate(trajectory, 1):
        models = {}
        for hub, devices in HUBS.items():
            u = w
            for own in range(3):
                ends = {device: local(fleet, device, u, 3 * (number - 1) + own + 1) for device in devices}
                u = averaged(ends, counted(weighting, devices))
            models[hub] = u
        w = averaged(models, {hub: sum(counted(weighting, devices).values()) for hub, devices in HUBS.items()})
        np.testing.assert_allclose(found, w, rtol=1e-10)
    flat = three_levels(Fleet(algorithm), Hub(algorithm), algorithm, rounds=5)
    assert np.abs(flat[-1] - w).max() > 1e-3


@pytest.mark.parametrize("weighting", list(Weighting))
@pytest.mark.parametrize("name", ["fedavg", "pfedmac"])
def test_the_nested_form_follows_the_numpy_program(name: str, weighting: Weighting) -> None:
    algorithm = build(name, weighting=weighting, **SETTINGS[name])
    nested = Nested(mu=0.3, lr=1.9, step=0.25)
    trajectory = three_levels(Fleet(algorithm), Hub(algorithm, rounds=2, nested=nested), algorithm, rounds=5)
    fleet = Fleet(algorithm)
    w: Vector = model()["w"]
    u = dict.fromkeys(HUBS, w)
    for number, found in enumerate(trajectory, 1):
        models = {}
        for hub, devices in HUBS.items():
            for own in range(2):
                ends = {device: local(fleet, device, u[hub], 2 * (number - 1) + own + 1) for device in devices}
                u[hub] = averaged(ends, counted(weighting, devices)) + 0.25 * 0.3 * w
            models[hub] = w - 1.9 * 0.3 * (w - u[hub])
        w = averaged(models, {hub: sum(counted(weighting, devices).values()) for hub, devices in HUBS.items()})
        np.testing.assert_allclose(found, w, rtol=1e-10)
    assert np.abs(w - model()["w"]).max() > 0.1


def test_the_nested_form_settles_where_the_centre_is_the_mean_of_its_hubs() -> None:
    """With ``P_h = I - mu mean A^-1``: ``u_h = P_h^-1 (mean b + (mu_1 / mu) w)`` and ``w = sum p_h u_h``."""
    mu, outer = 0.3, 0.06
    below = build("pfedmac", lr=3.0, inner_lr=1.0, mu=mu)
    below = dataclasses.replace(below, inner_steps=26)
    hub = Hub(below, rounds=2, nested=Nested(mu=outer, lr=15.0, step=3.0))
    fleet = Fleet(below, steps=1, noise=0.0)
    w = three_levels(fleet, hub, below, rounds=32)[-1]
    left, right = np.eye(D), np.zeros(D)
    for devices in HUBS.values():
        inverse = np.mean([np.linalg.inv(fleet.A[device]) for device in devices], axis=0)
        P = np.linalg.inv(np.eye(D) - mu * inverse)
        share = len(devices) / len(DEVICES)
        left -= share * outer / mu * P
        right += share * P @ np.mean([fleet.b[device] for device in devices], axis=0)
    np.testing.assert_allclose(w, np.linalg.solve(left, right), rtol=1e-7)
    flat = np.eye(D) - mu * np.mean([np.linalg.inv(A) for A in fleet.A.values()], axis=0)
    two_levels = np.linalg.solve(flat, np.mean(list(fleet.b.values()), axis=0))
    assert np.abs(w - two_levels).max() > 0.01


def test_what_a_hub_keeps_is_its_own_and_moves_only_with_its_report() -> None:
    algorithm = build("pfedmac", **SETTINGS["pfedmac"])
    hub = Hub(algorithm, nested=Nested(mu=0.3, lr=1.0, step=0.2))
    w, kept = model(), {"u": 2.0 * model()}
    before = kept["u"]["w"].copy()
    first, again = (train(hub, w, kept, Fleet(algorithm).play(HUBS["north"]), 4) for _ in range(2))
    np.testing.assert_array_equal(first.delta["w"], again.delta["w"])
    np.testing.assert_array_equal(kept["u"]["w"], before)
    np.testing.assert_allclose(first.delta["w"], 0.3 * (first.kept["u"]["w"] - w["w"]), rtol=1e-12)
    fresh = train(hub, w, {}, Fleet(algorithm).play(HUBS["north"]), 4)
    assert np.abs(fresh.delta["w"] - first.delta["w"]).max() > 0.01
    assert train(Hub(algorithm), w, kept, Fleet(algorithm).play(HUBS["north"])).kept == {}


def test_a_hubs_rounds_are_numbered_on_and_its_devices_counted_once() -> None:
    algorithm = build("fedavg")
    fleet = Fleet(algorithm)
    cohorts = iter([("pi-0", "pi-1"), ("pi-1",), ("pi-2",)])

    def play(state: Trees, number: int) -> Cohort:
        return fleet.play(next(cohorts))(state, number)

    report = train(Hub(algorithm, rounds=3), model(), {}, play, number=4)
    assert fleet.played == [10, 11, 12]
    assert report.examples == {device: EXAMPLES[device] for device in HUBS["north"]}
    assert report.weight(Weighting.UNIFORM) == 3
    assert report.weight(Weighting.EXAMPLES) == sum(report.examples.values())
    assert report.steps == 3 * fleet.steps


def test_a_hubs_model_of_numbers_that_are_none_stops() -> None:
    got = Cohort(("pi-0",), (3,), (1,), {"delta": (np.nan * model()).map(torch.from_numpy)}, {}, fleet=("pi-0",))
    with pytest.raises(RunError, match="not finite"):
        Hub(build("fedavg")).moved(model(), model(), got)


@dataclass(frozen=True)
class Simple(Algorithm):
    """Moves one model."""

    slots: ClassVar[Mapping[str, Slot]] = {"w": down(), "x": work(), "delta": up(Reduce.MEAN)}

    def step(self, s: Trees, b: Minibatch) -> Trees:
        return {"x": s["x"] - b.grad(s["x"])}

    def finish(self, s: Trees) -> Trees:
        return {"delta": s["x"] - s["w"]}

    def predictor(self, s: Trees) -> Tree:
        return s["x"]

    def update(self, state: Trees, got: Cohort) -> Trees:
        return {"w": state["w"] + got.total["delta"]}


@dataclass(frozen=True)
class TwoDown(Simple):
    slots: ClassVar[Mapping[str, Slot]] = {**Simple.slots, "c": down()}


@dataclass(frozen=True)
class TwoUp(Simple):
    slots: ClassVar[Mapping[str, Slot]] = {**Simple.slots, "drift": up(Reduce.MEAN)}


@dataclass(frozen=True)
class Addressed(Simple):
    slots: ClassVar[Mapping[str, Slot]] = {**Simple.slots, "w": down(addressed=True)}


@dataclass(frozen=True)
class Stacked(Simple):
    slots: ClassVar[Mapping[str, Slot]] = {**Simple.slots, "delta": up(Reduce.STACK)}


@dataclass(frozen=True)
class OtherShape(Simple):
    slots: ClassVar[Mapping[str, Slot]] = {**Simple.slots, "delta": up(Reduce.MEAN, Shape.SHARED)}


@dataclass(frozen=True)
class Rebuilding(Simple):
    rebuilt: ClassVar[Mapping[str, Reduce]] = {"c": Reduce.SUM}


@dataclass(frozen=True)
class Tossing(Simple):
    def local_steps(self, usual: int, rng: np.random.Generator) -> int:
        return int(rng.geometric(1 / usual))


@dataclass(frozen=True)
class Remembering(Simple):
    def init(self, params: Tree) -> Trees:
        return {"w": params, "h": 0 * params}


@dataclass(frozen=True)
class Replacing(Simple):
    def update(self, state: Trees, got: Cohort) -> Trees:  # noqa: ARG002  the upload is the model itself
        return {"w": got.total["delta"]}


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (TwoDown, "it sends w and c"),
        (TwoUp, "it collects delta and drift"),
        (Addressed, "it sends each device a w of its own"),
        (Stacked, "delta is not averaged"),
        (OtherShape, "delta is not averaged into a change of w"),
        (Rebuilding, "its server rebuilds c"),
        (Tossing, "its server tosses coins"),
        (Remembering, "its server remembers h"),
        (Replacing, "delta is not a change of w"),
    ],
)
def test_algorithms_that_move_more_than_a_model_are_refused_with_the_reason(kind: type[Algorithm], reason: str) -> None:
    assert one_model(Simple()) == ("w", "delta")
    with pytest.raises(ConfigError, match=f"cannot run under a hub: {reason}"):
        Hub(kind())


def test_which_of_our_algorithms_can_run_under_a_hub() -> None:
    can, cannot = (
        {"apfl", "ditto", "fedavg", "fedper", "fedprox", "pfedbred", "pfedmac", "pfedme"},
        {"scaffold", "fpfc"},
    )
    for name in can:
        slot, change = one_model(build(name))
        assert (slot, change) == (("body" if name == "fedper" else "w"), "delta")
    for name in cannot & set(algorithms.names()):
        with pytest.raises(ConfigError, match="cannot run under a hub"):
            one_model(build(name))


@pytest.mark.parametrize(
    ("mu", "lr", "step"), [(-0.1, 0.5, 1.0), (2.0, 0.5, 1.0), (0.1, -0.5, 1.0), (0.1, 0.5, 0.0), (np.nan, 0.5, 1.0)]
)
def test_steps_that_lead_nowhere_are_refused(mu: float, lr: float, step: float) -> None:
    with pytest.raises(ConfigError, match="no step towards the hub's model"):
        Nested(mu, lr, step)
    with pytest.raises(ConfigError, match="0 rounds"):
        Hub(Simple(), rounds=0)
    assert Nested(0.1, 0.5, 1.0).mu == 0.1
