"""FPFC: devices find their clusters, as a penalty on every pair of models fuses those that are close.

Yu et al. 2022, "Clustered federated learning based on nonconvex pairwise fusion", algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar, NoReturn

import torch

from edgepfl.algorithms._base import SERVERS, Across, Algorithm, Cohort, Minibatch, Scalar, whole
from edgepfl.algorithms._clusters import Floats, clusters, fused_below
from edgepfl.algorithms._fusion import Columns, Engine, Opening
from edgepfl.algorithms._pairs import Plain
from edgepfl.algorithms._rows import columns_of, row_of, rows_of, shaped
from edgepfl.algorithms._scad import Scad
from edgepfl.errors import ConfigError
from edgepfl.plan import MODEL, Amend, Reduce, Shape, Slot, Weighting, down, keep, up, work
from edgepfl.tree import Tensor, Tree, Trees


class PairRule(StrEnum):
    """Which pairs a round updates, each of them once."""

    EITHER = "either"  # those with an active end
    BOTH = "both"  # those of two active ends


class Finalize(StrEnum):
    """What becomes of the models after the last round."""

    NONE = "none"
    CLUSTER_MEAN = "cluster_mean"  # each device predicts with the mean of its cluster, weighted by examples


@dataclass(frozen=True)
class Distances:
    """How far apart the devices are, each array in the order of their names.

    Attributes:
        devices: their names.
        omega: ``|omega_i|``, ``(m,)``.
        theta: ``|theta_ij|`` of each pair ``i < j``, in the order (0, 1), (0, 2), ..., (1, 2), ...
    """

    devices: tuple[str, ...]
    omega: Floats
    theta: Floats


@dataclass(frozen=True)
class FPFC(Algorithm):
    """``min sum_i f_i(omega_i) + 1/(2m) sum_ij gt(|omega_i - omega_j|)``, ``gt`` the smoothed SCAD penalty.

    The device starts from its own last ``omega_i``; the server then moves each pair that has an active end::

        omega_i  <- T steps of omega_i - lr (grad f_i(omega_i) + rho (omega_i - zeta_i))
        delta_ij  = omega_i - omega_j + v_ij / rho
        theta_ij <- c(|delta_ij|) delta_ij                      the penalty's proximal operator
        v_ij     <- v_ij + rho (omega_i - omega_j - theta_ij)
        zeta_i    = 1/m sum_j (omega_j + theta_ij - v_ij / rho)    with j = i

    Every parameter is fused unless the export names some (``--personal 'head.*'``): then the others are averaged over
    the cohort as FedAvg does.  The server needs each device's own model.  How it keeps the pairs is its engine's
    business: the plain one stores ``theta`` and ``v`` of each, the coordinator's fewer vectors with the same result.
    ``lam`` is in units of ``|omega_i - omega_j|`` over all fused parameters, so it goes with the root of their number.

    Attributes:
        lr: step size (0.1 synthetic, 0.01 MNIST).
        rho: pull of the centre, and of the dual steps (1).
        lam: strength of the penalty; 0 is local training (0.6 synthetic, 0.4 MNIST).
        a: models more than ``a lam`` apart do not attract each other; ``(a - 1) rho > 1`` (3.7).
        xi: smoothing of the penalty near 0, at most ``lam`` (1e-4; 1e-6 MNIST).
        pair_rule: which pairs a round updates: "either" (the authors' code) or "both".
        lam_first: the penalty's strength in round 1 of a warm-up; it rises geometrically, or stays at 0 (ours).
        lam_rounds: rounds of the warm-up before ``lam`` is reached; 0 is none (ours).
        finalize: "cluster_mean" gives each device the mean of its cluster in the end; or "none".
        nu: pairs with ``|theta| <= nu`` are one cluster; 0 is the greater of xi and 1e-3 median |omega_i| (0.1; 3).
    """

    slots: ClassVar[Mapping[str, Slot]] = {
        "body": down(Shape.SHARED),
        "zeta": down(Shape.PERSONAL, addressed=True),
        "final": down(Shape.SCALAR),  # 1 once zeta is the model to predict with
        "x": work(),
        "omega": keep(Shape.PERSONAL, first=MODEL),
        "delta": up(Reduce.MEAN, Shape.SHARED),
        "fused": up(Reduce.STACK, Shape.PERSONAL, change=False),
    }
    personal_default: ClassVar[tuple[str, ...]] = ("*",)
    evaluated: ClassVar[str] = "the device's own omega_i; its cluster's mean after finalize = cluster_mean"
    revealed: ClassVar[tuple[str, ...]] = ("omega",)
    grows: ClassVar[str] = "m*d_h + m*(m-1)/2*d_h + 4*m*m"  # omega, and of pairs at most a vector and some numbers
    opening: ClassVar[Opening] = Plain

    lr: Scalar = 0.05
    rho: Scalar = 1.0
    lam: float = 0.6
    a: float = 3.7
    xi: float = 1e-4
    pair_rule: PairRule = PairRule.EITHER
    lam_first: float = 0.0
    lam_rounds: Annotated[int, SERVERS] = 0
    finalize: Finalize = Finalize.NONE
    nu: float = 0.0
    weighting: Weighting = Weighting.UNIFORM

    def check(self) -> None:
        super().check()
        slope = (self.a - 1) * self.rho
        if self.rho <= 0:
            _refuse(f"rho = {self.rho} pulls away from the centre", "Give rho above 0")
        if slope <= 1:
            reason = f"(a - 1) rho = {slope:.6g} is at most 1, so the penalty is no longer convex beside rho's pull"
            _refuse(reason, "Raise a or rho")
        if min(self.lam, self.lam_first, self.xi, self.nu, self.lam_rounds) < 0:
            _refuse("lam, lam_first, lam_rounds, xi or nu is negative", "Give 0 or more")
        for name, lam in [("lam", self.lam), ("lam_first", self.lam_first if self.lam_rounds else 0)]:
            if 0 < lam < self.xi:
                _refuse(f"xi = {self.xi} > {name} = {lam} smooths beyond the penalty's bend", "Lower xi")
        if self.lam_rounds and self.lam_first > self.lam:
            _refuse(f"lam_first = {self.lam_first} > lam = {self.lam}, but a warm-up rises", "Lower lam_first")

    # The device.

    @property
    def amended(self) -> tuple[Amend, ...]:
        return (Amend("omega", "fused"),)

    def begin(self, s: Trees) -> Trees:
        return {"x": s["body"] | s["omega"]}

    def step(self, s: Trees, b: Minibatch) -> Trees:
        x, zeta = s["x"], s["zeta"]
        gradient = b.grad(x)
        pulled = gradient.like(zeta) + self.rho * (x.like(zeta) - zeta)
        return {"x": x - self.lr * (gradient | pulled)}

    def finish(self, s: Trees) -> Trees:
        x, body = s["x"], s["body"]
        omega = x.like(s["omega"])
        return {"omega": omega, "fused": omega, "delta": x.like(body) - body}

    def predictor(self, s: Trees) -> Tree:
        final = s["final"].value
        model: Tree = s["body"] | (s["omega"] * (1 - final) + s["zeta"] * final)
        return model

    # The server.

    def init(self, params: Tree) -> Trees:
        return self.init_apart(Tree({}), params)

    def init_apart(self, shared: Tree, personal: Tree) -> Trees:
        if not personal:
            raise ConfigError("no parameter is fused", where="FPFC", remedy="Name some: --personal 'head.*', or '*'")
        none = Tree({})
        zero = row_of(personal)[0] * 0
        return {
            "body": shared,
            "final": Tree.scalar(zero),
            "first": personal,  # omega^0, from which everyone starts
            "places": none,  # by device: its number in the order in which they joined
            "examples": none,  # by device
            "statistics": none,  # the running statistics among the fused tensors
            "mean": none,  # by device: its cluster's, in the end
        }  # and what the engine dumps

    def opened(self, state: Trees, across: Across = whole) -> Engine:
        """The engine that keeps the pairs of a state.

        Args:
            state: the server's.
            across: see :class:`~edgepfl.algorithms._base.Cohort`; only an update needs it.
        """
        first = row_of(state["first"])
        unpaired = None
        if state["statistics"]:
            unpaired = torch.from_numpy(columns_of(state["first"], state["statistics"])).to(first.device)
        own = {slot: tree for slot, tree in state.items() if slot not in _SLOTS}
        return self.opening(Columns(first, unpaired, across), own)

    def send(self, state: Trees, device: str) -> Trees:
        return self.send_each(state, (device,))[device]

    def send_each(self, state: Trees, devices: Sequence[str]) -> Mapping[str, Trees]:
        zetas = self._zetas(state, devices)
        return {
            device: {"body": state["body"], "zeta": shaped(zeta, state["first"]), "final": state["final"]}
            for device, zeta in zetas.items()
        }

    def _zetas(self, state: Trees, devices: Sequence[str]) -> dict[str, Tensor]:
        """What each device is pulled to; one that the server never saw has the mean with itself at the start."""
        asked = [device for device in devices if device not in state["mean"]]
        known = [device for device in asked if device in state["places"]]
        engine, found = self.opened(state), {device: state["mean"][device] for device in devices if device not in asked}
        if known:
            found |= zip(known, engine.centres(_places(state, known), self.rho), strict=True)
        if len(known) < len(asked):
            first, m = row_of(state["first"]), engine.count
            joined = (m * engine.mean() + first) / (m + 1) if m else first
            found |= {device: joined for device in asked if device not in found}
        return {device: found[device] for device in devices}

    def update(self, state: Trees, got: Cohort) -> Trees:
        newcomers = sorted({*got.fleet, *got.devices} - state["places"].keys())
        after = {**state, **self._enrolled(state, got, newcomers)}
        engine = self.opened(after, got.across)
        engine.join(len(newcomers))
        places, uploaded = _places(after, got.devices), rows_of(got.stack["fused"])
        order = sorted(range(len(places)), key=places.__getitem__)
        if order != list(range(len(places))):
            uploaded = uploaded[torch.tensor(order, device=uploaded.device)]
        both = self.pair_rule is PairRule.BOTH
        engine.move([places[k] for k in order], uploaded, self.scad(got.number), both=both)
        body = state["body"] + got.total["delta"] if state["body"] else state["body"]
        own = {slot: tree for slot, tree in after.items() if slot in _SLOTS}  # an engine may give up slots of its own
        return {**own, "body": body, **engine.dump()}

    def _enrolled(self, state: Trees, got: Cohort, newcomers: Sequence[str]) -> Trees:
        """What the server knows of the devices and the model, apart from pairs."""
        like = row_of(state["first"])
        places = {device: len(state["places"]) + k for k, device in enumerate(newcomers)}
        examples = {device: like.new_tensor(float(n)) for device, n in zip(got.devices, got.examples, strict=True)}
        fused = [name for name in got.statistics if name in state["first"]]
        return {
            "places": state["places"] | Tree({d: torch.tensor(at, device=like.device) for d, at in places.items()}),
            "examples": state["examples"] | Tree(examples),
            "statistics": Tree({name: torch.tensor(True, device=like.device) for name in fused}),  # noqa: FBT003  a value
        }

    def scad(self, number: int) -> Scad:
        """The penalty in a round; the warm-up's first has ``lam_first``."""
        lam = self.lam
        if number <= self.lam_rounds:
            risen = (number - 1) / self.lam_rounds
            lam = self.lam_first and self.lam_first * (self.lam / self.lam_first) ** risen
        return Scad(lam, self.a, self.xi, self.rho)

    def models(self, state: Trees) -> Tree:
        """Each device's fused parameters as the server last heard of them, ``(d,)``, by device."""
        devices = list(state["places"])
        return Tree(dict(zip(devices, self.opened(state).omega(_places(state, devices)), strict=True)))

    def distances(self, state: Trees) -> Distances:
        """How far apart the devices are."""
        devices = list(state["places"])
        engine = self.opened(state)
        at = torch.tensor(_places(state, devices), dtype=torch.int64, device=engine.omega_norms().device)
        i, j = torch.triu_indices(len(at), len(at), 1, device=at.device)
        theta = engine.theta_norms()[at[i], at[j]]
        return Distances(tuple(devices), engine.omega_norms()[at].cpu().numpy(), theta.cpu().numpy())

    def conclude(self, state: Trees) -> Trees:
        if self.finalize is Finalize.NONE or not state["places"]:
            return state
        found, final = self.distances(state), state["final"].value
        nu, engine = self.nu or fused_below(self.xi, found.omega), self.opened(state)
        means: dict[str, Tensor] = {}
        for members in clusters(found.devices, found.theta, nu):
            means |= dict.fromkeys(members, _mean(state, engine, members))
        return {**state, "mean": Tree(means), "final": Tree.scalar(final * 0 + 1)}


_SLOTS = FPFC().init_apart(Tree({}), Tree({"": torch.zeros(1)})).keys()
"""The slots of the state that are not the engine's."""


def _refuse(reason: str, remedy: str) -> NoReturn:
    raise ConfigError(reason, where="FPFC", remedy=remedy)


def _places(state: Trees, devices: Sequence[str]) -> list[int]:
    """Where some devices are, by one look at the numbers' own device."""
    if not devices:
        return []
    found: list[int] = torch.stack([state["places"][device] for device in devices]).tolist()
    return found


def _mean(state: Trees, engine: Engine, members: tuple[str, ...]) -> Tensor:
    """The mean of a cluster's models, weighted by examples; a device that never trained has none."""
    known = [device for device in members if device in state["examples"]]
    omega = engine.omega(_places(state, known or members[:1]))
    if not known:
        return omega[0]
    examples = torch.stack([state["examples"][device] for device in known])
    return (examples / examples.sum()) @ omega
