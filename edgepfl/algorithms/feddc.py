"""FedDC: each device learns its drift from the global model, and the server adds the drifts back.

Gao et al. 2022, "FedDC: federated learning with non-IID data via local drift decoupling and correction", algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar

from edgepfl.algorithms._base import SHAPES, Algorithm, Cohort, Minibatch, Scalar
from edgepfl.algorithms._clip import clipped
from edgepfl.errors import ConfigError
from edgepfl.plan import Amend, Reduce, Slot, Weighting, down, given, keep, up, work
from edgepfl.tree import Tree, Trees


class Correction(StrEnum):
    """What takes the drift out of the gradients."""

    SCAFFOLD = "scaffold"
    LAST_UPDATE = "last_update"
    NONE = "none"


@dataclass(frozen=True)
class FedDC(Algorithm):
    """``min_w (1/m) sum f_k(w)`` over the whole fleet of ``m`` devices, whichever of them, ``S``, take part.

    A device takes ``K_k`` steps on ``f_k(x) + alpha/2 |x + h_k - w|^2 + <x, c - c_k>`` from ``x = w``::

        x   <- x - lr (grad f(x) + alpha (x - w + h_k) + c - c_k)
        h_k <- h_k + (x - w)
        c_k <- c_k - c + (w - x) / (K_k lr)      grad_correction = scaffold (the authors' code)
        c_k <- (w - x) / (K_k lr)                grad_correction = last_update (the paper)
        w   <- mean_S(x) + (1/m) sum h_k         over all devices, as the authors' code does
        c   <- (1/m) sum c_k                     likewise

    The paper prints ``mean_S(x + h_k)``, the same where everybody takes part; with a sample it never settles, since the
    drifts cancel over all devices only.  Without a correction this is FedDyn with ``g_k = -alpha h_k``.

    A device uploads ``x - w``, from which the server computes the sums of ``h_k`` and, for scaffold, of ``c_k``; with
    last_update it uploads the change of ``c_k`` too.

    Attributes:
        lr: step size (0.1, decay 0.998 a round); the explicit step needs ``lr (L + alpha) < 2``.
        alpha: weight of the drift's penalty (0.1 on MNIST, 0.01 on CIFAR-10, 0.005 on synthetic data).
        clip: the norm to which a step's whole direction is cut (10); the default never acts.
        grad_correction: scaffold, last_update or none.
    """

    slots: ClassVar[Mapping[str, Slot]] = {
        "w": down(),
        "c": down(),
        "x": work(),
        "h": keep(first=0.0),
        "c_k": keep(first=0.0),
        "steps": given(),
        "delta": up(Reduce.MEAN),
    }
    refused: ClassVar[Mapping[Weighting, str]] = {
        Weighting.EXAMPLES: "the drifts h_k cancel out of a uniform mean alone"
    }
    evaluated: ClassVar[str] = "the global model w"

    lr: Scalar = 0.05
    alpha: Scalar = 0.1
    clip: Scalar = 1e9
    grad_correction: Annotated[Correction, SHAPES] = Correction.SCAFFOLD
    weighting: Weighting = Weighting.UNIFORM

    def check(self) -> None:
        super().check()
        if min(self.lr, self.alpha, self.clip) <= 0 or self.lr >= 2 / self.alpha:
            raise ConfigError(
                f"lr = {self.lr}, alpha = {self.alpha} and clip = {self.clip} will not do: "
                "each must be above 0, and steps diverge unless lr alpha < 2",
                where="FedDC",
                remedy="Lower lr, or set what is 0 or less to above 0",
            )

    def declared(self) -> Mapping[str, Slot]:
        match self.grad_correction:
            case Correction.SCAFFOLD:
                return self.slots
            case Correction.LAST_UPDATE:
                return {**self.slots, "change": up(Reduce.SUM)}
            case Correction.NONE:
                return {name: self.slots[name] for name in ("w", "x", "h", "delta")}

    @property
    def amended(self) -> tuple[Amend, ...]:
        drift = Amend("h", "delta")
        match self.grad_correction:
            case Correction.SCAFFOLD:
                return drift, Amend("c_k", "delta", -1 / self.lr, per_step=True)
            case Correction.LAST_UPDATE:
                return drift, Amend("c_k", "change")
            case Correction.NONE:
                return (drift,)

    def begin(self, s: Trees) -> Trees:
        return {"x": s["w"]}

    def step(self, s: Trees, b: Minibatch) -> Trees:
        w, x, h = s["w"], s["x"], s["h"]
        F = b.grad(x) + self.alpha * (x - w + h)
        if self.grad_correction is not Correction.NONE:
            F = F + (s["c"] - s["c_k"])
        return {"x": x - self.lr * clipped(F, self.clip)}

    def finish(self, s: Trees) -> Trees:
        delta = s["x"] - s["w"]
        done = {"delta": delta, "h": s["h"] + delta}
        if self.grad_correction is Correction.NONE:
            return done
        variate, c_k = -delta / (s["steps"].value.clip(min=1) * self.lr), s["c_k"]
        if self.grad_correction is Correction.LAST_UPDATE:
            return {**done, "c_k": variate, "change": variate - c_k}
        return {**done, "c_k": c_k - s["c"] + variate}

    def predictor(self, s: Trees) -> Tree:
        return s["w"]

    def others(self, s: Trees) -> Trees:
        return {"global": s["w"]}

    def init(self, params: Tree) -> Trees:
        """The model ``w``, the sums of every device's ``h_k`` and ``c_k``, and the mean ``c`` of the latter."""
        zero = 0 * params
        sums = {"w": params, "h_sum": zero}
        return sums if self.grad_correction is Correction.NONE else {**sums, "c": zero, "c_sum": zero}

    @property
    def rebuilt(self) -> Mapping[str, Reduce]:
        return {"variate": Reduce.SUM} if self.grad_correction is Correction.SCAFFOLD else {}

    def rebuild(self, upload: Trees, steps: int) -> Trees:
        """``c_k - (old c_k) + c``, which is what the upload alone tells with scaffold's correction."""
        return {"variate": -upload["delta"] / (steps * self.lr)}

    def update(self, state: Trees, got: Cohort) -> Trees:
        active, m = len(got.devices), len(got.fleet)
        mean = state["w"] + got.total["delta"]
        h_sum = state["h_sum"] + active * got.total["delta"]
        after = {"w": mean + h_sum / m | mean.like(got.statistics), "h_sum": h_sum}
        if self.grad_correction is Correction.NONE:
            return after
        if self.grad_correction is Correction.LAST_UPDATE:
            change = got.total["change"]
        else:
            change = got.total["variate"] - active * state["c"]
        c_sum = state["c_sum"] + change
        return {**after, "c": c_sum / m, "c_sum": c_sum}
