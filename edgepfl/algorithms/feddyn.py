"""FedDyn: a linear term, learnt round by round, makes each device's minimiser the global one.

Acar et al. 2021, "Federated learning based on dynamic regularization", algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from edgepfl.algorithms._base import Algorithm, Cohort, Minibatch, Scalar
from edgepfl.algorithms._clip import clipped
from edgepfl.errors import ConfigError
from edgepfl.plan import Amend, Reduce, Slot, Weighting, down, keep, up, work
from edgepfl.tree import Tree, Trees


@dataclass(frozen=True)
class FedDyn(Algorithm):
    """``min_w (1/m) sum f_k(w)`` over the whole fleet of ``m`` devices, whichever of them, ``S``, take part.

    A device lowers ``f_k(x) - <g_k, x> + mu/2 |x - w|^2`` from ``x = w``::

        x   <- x - lr (grad f(x) + mu (x - w) - g_k)
        g_k <- g_k - mu (x - w)                       at the minimiser: grad f_k(x)
        h   <- h - (mu/m) sum_S(x - w)                so h = (1/m) sum g_k, over all devices
        w   <- mean_S(x) - h / mu

    ``h / mu`` makes ``w`` poor in early rounds, so the mean of the active devices' models can be evaluated beside it.

    Attributes:
        lr: step size (0.1, decay 0.998 or 1 a round); the explicit step needs ``lr (L + mu) < 2``.
        mu: weight of the proximal term, the paper's alpha (0.01 in the authors' code, 0.001 to 0.1 in the paper).
        clip: the norm to which a step's whole direction is cut (10); the default never acts.
        report_mean: also send mean_S(x), which devices then evaluate as "mean".
    """

    slots: ClassVar[Mapping[str, Slot]] = {
        "w": down(),
        "x": work(),
        "g": keep(first=0.0),
        "delta": up(Reduce.MEAN),
    }
    refused: ClassVar[Mapping[Weighting, str]] = {
        Weighting.EXAMPLES: "h is the uniform mean of the g_k, and cancels them out of a uniform mean alone"
    }
    evaluated: ClassVar[str] = "the global model w; with report_mean also the mean of the active devices' models"

    lr: Scalar = 0.05
    mu: Scalar = 0.01
    clip: Scalar = 1e9
    report_mean: bool = False
    weighting: Weighting = Weighting.UNIFORM

    def check(self) -> None:
        super().check()
        if min(self.lr, self.mu, self.clip) <= 0 or self.lr >= 2 / self.mu:
            raise ConfigError(
                f"lr = {self.lr}, mu = {self.mu} and clip = {self.clip} will not do: "
                "each must be above 0, and steps diverge unless lr mu < 2",
                where="FedDyn",
                remedy="Lower lr, or set what is 0 or less to above 0",
            )

    def declared(self) -> Mapping[str, Slot]:
        return {**self.slots, "mean": down()} if self.report_mean else self.slots

    @property
    def amended(self) -> tuple[Amend, ...]:
        return (Amend("g", "delta", -self.mu),)

    def begin(self, s: Trees) -> Trees:
        return {"x": s["w"]}

    def step(self, s: Trees, b: Minibatch) -> Trees:
        w, x, g = s["w"], s["x"], s["g"]
        F = b.grad(x) + self.mu * (x - w) - g
        return {"x": x - self.lr * clipped(F, self.clip)}

    def finish(self, s: Trees) -> Trees:
        delta = s["x"] - s["w"]
        return {"delta": delta, "g": s["g"] - self.mu * delta}

    def predictor(self, s: Trees) -> Tree:
        return s["w"]

    def others(self, s: Trees) -> Trees:
        found = {"global": s["w"]}
        return {**found, "mean": s["mean"]} if self.report_mean else found

    def init(self, params: Tree) -> Trees:
        """The model ``w``, the sum of every device's ``g_k``, and the mean of the active devices' models."""
        return {"w": params, "g_sum": 0 * params, "mean": params}

    def update(self, state: Trees, got: Cohort) -> Trees:
        delta = got.total["delta"]
        g_sum = state["g_sum"] - self.mu * len(got.devices) * delta
        mean, h = state["w"] + delta, g_sum / len(got.fleet)
        return {"w": mean - h / self.mu | mean.like(got.statistics), "g_sum": g_sum, "mean": mean}
