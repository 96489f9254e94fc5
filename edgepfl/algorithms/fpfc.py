"""FPFC: devices find their clusters, as a penalty on every pair of models fuses those that are close.

Yu et al. 2022, "Clustered federated learning based on nonconvex pairwise fusion", algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar, NoReturn

import numpy as np

from edgepfl.algorithms._base import SERVERS, Algorithm, Cohort, Minibatch, Scalar
from edgepfl.algorithms._clusters import clusters, fused_below
from edgepfl.algorithms._pairs import Pairs, centre, joined, moved
from edgepfl.algorithms._rows import by_device, columns_of, matrix, row_of, rows_of, shaped
from edgepfl.algorithms._scad import Scad
from edgepfl.errors import ConfigError
from edgepfl.plan import MODEL, Reduce, Shape, Slot, Weighting, down, keep, up, work
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
class FPFC(Algorithm):
    """``min sum_i f_i(omega_i) + 1/(2m) sum_ij gt(|omega_i - omega_j|)``, ``gt`` the smoothed SCAD penalty.

    The device starts from its own last ``omega_i``; the server then moves each pair that has an active end::

        omega_i  <- T steps of omega_i - lr (grad f_i(omega_i) + rho (omega_i - zeta_i))
        delta_ij  = omega_i - omega_j + v_ij / rho
        theta_ij <- c(|delta_ij|) delta_ij                      the penalty's proximal operator
        v_ij     <- v_ij + rho (omega_i - omega_j - theta_ij)
        zeta_i    = 1/m sum_j (omega_j + theta_ij - v_ij / rho)    with j = i

    Every parameter is fused unless the export names some (``--personal 'head.*'``): then the others are averaged over
    the cohort as FedAvg does.  The server needs each device's own model and stores two vectors for every pair.
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
        "fused": up(Reduce.STACK, Shape.PERSONAL),
    }
    personal_default: ClassVar[tuple[str, ...]] = ("*",)
    evaluated: ClassVar[str] = "the device's own omega_i; its cluster's mean after finalize = cluster_mean"
    revealed: ClassVar[tuple[str, ...]] = ("omega",)
    grows: ClassVar[str] = "m*d_h + m*(m-1)*d_h + m"  # omega, theta and v of pairs, examples

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
            "omega": none,  # by device, as the server last heard of it
            "examples": none,  # by device
            "theta": none,  # of each pair of devices, in the order of their names
            "v": none,
            "mean": none,  # by device: its cluster's, in the end
        }

    def send(self, state: Trees, device: str) -> Trees:
        zeta = state["mean"].get(device)
        if zeta is None:
            devices = sorted({*state["omega"], device})
            zeta = centre(_pairs(state, devices), devices.index(device), self.rho)
        return {"body": state["body"], "zeta": shaped(zeta, state["first"]), "final": state["final"]}

    def update(self, state: Trees, got: Cohort) -> Trees:
        devices = sorted({*state["omega"], *got.fleet, *got.devices})
        active = [devices.index(device) for device in got.devices]
        uploaded = rows_of(got.stack["fused"])
        unpaired = columns_of(state["first"], got.statistics)
        pairs = moved(
            _pairs(state, devices),
            active,
            uploaded,
            self.scad(got.number),
            both=self.pair_rule is PairRule.BOTH,
            unpaired=unpaired,
        )
        examples = {device: uploaded.new_tensor(float(n)) for device, n in zip(got.devices, got.examples, strict=True)}
        return {
            **state,
            "body": state["body"] + got.total["delta"] if state["body"] else state["body"],
            "omega": by_device(devices, pairs.omega),
            "examples": state["examples"] | Tree(examples),
            **({"theta": Tree.scalar(pairs.theta), "v": Tree.scalar(pairs.v)} if len(devices) > 1 else {}),
        }

    def scad(self, number: int) -> Scad:
        """The penalty in a round; the warm-up's first has ``lam_first``."""
        lam = self.lam
        if number <= self.lam_rounds:
            risen = (number - 1) / self.lam_rounds
            lam = self.lam_first and self.lam_first * (self.lam / self.lam_first) ** risen
        return Scad(lam, self.a, self.xi, self.rho)

    def conclude(self, state: Trees) -> Trees:
        if self.finalize is Finalize.NONE or not state["omega"]:
            return state
        devices, final = list(state["omega"]), state["final"].value
        pairs = _pairs(state, devices)
        nu = self.nu or fused_below(self.xi, _norms(pairs.omega))
        means: dict[str, Tensor] = {}
        for members in clusters(devices, _norms(pairs.theta), nu):
            means |= dict.fromkeys(members, _mean(state, members))
        return {**state, "mean": Tree(means), "final": Tree.scalar(final * 0 + 1)}


def _refuse(reason: str, remedy: str) -> NoReturn:
    raise ConfigError(reason, where="FPFC", remedy=remedy)


def _pairs(state: Trees, devices: list[str]) -> Pairs:
    """The state of pairs, with room for those of ``devices`` that are new."""
    first = row_of(state["first"])
    omega = matrix(state["omega"], len(first), first)
    theta, v = (state[name].value if state[name] else first.new_empty((0, len(first))) for name in ("theta", "v"))
    places = np.array([devices.index(device) for device in state["omega"]], np.int64)
    return joined(Pairs(omega, theta, v), places, len(devices), first)


def _mean(state: Trees, members: tuple[str, ...]) -> Tensor:
    """The mean of a cluster's models, weighted by examples; a device that never trained has none."""
    known = [device for device in members if device in state["examples"]]
    if not known:
        return state["omega"][members[0]]
    total = sum(state["examples"][device] for device in known)
    return sum(state["examples"][device] / total * state["omega"][device] for device in known)


def _norms(rows: Tensor) -> np.ndarray[tuple[int], np.dtype[np.floating]]:
    found: np.ndarray[tuple[int], np.dtype[np.floating]] = rows.norm(dim=1).cpu().numpy()
    return found
