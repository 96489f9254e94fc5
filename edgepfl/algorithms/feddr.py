"""FedDR: Douglas-Rachford splitting, the proximal steps on the devices, a few of them each round.

Tran-Dinh et al. 2021, "FedDR: randomized Douglas-Rachford splitting algorithms for nonconvex federated composite
optimization", algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from edgepfl.algorithms._base import Algorithm, Cohort, Minibatch, Scalar
from edgepfl.errors import ConfigError
from edgepfl.plan import MODEL, Amend, Reduce, Slot, Weighting, down, keep, up, work
from edgepfl.tree import Tensor, Tree, Trees


@dataclass(frozen=True)
class FedDR(Algorithm):
    """``min_w (1/m) sum f_k(w) + gamma |w|_1`` over the whole fleet of ``m`` devices, whichever, ``S``, take part.

    A device keeps ``y_k`` and ``x_k``, and approximates the proximal point by steps from its last one::

        y_k  <- y_k + alpha (w - x_k)
        x_k  ~  argmin f_k(x) + |x - y_k|^2 / (2 eta):   x <- x - lr (grad f(x) + (x - y_k) / eta)
        xh_k <- 2 x_k - y_k

    The server keeps ``xt``, the mean of every device's ``xh_k``, by the changes that are uploaded::

        xt <- xt + (1/m) sum_S(change of xh_k)
        y  <- y + alpha (w - y)
        w  <- prox(m/(m+1) xt + 1/(m+1) y)    of gamma eta m/(m+1) |.|_1, a soft threshold; without gamma, w = xt

    The paper begins with a proximal step of everybody; here ``x_k = y_k = w`` at first, so no round needs them all.

    Attributes:
        lr: step size of the steps to the proximal point (0.003); they need ``lr (L + 1/eta) < 2``.
        eta: step size of the splitting, the inverse weight of the proximal term (1000 on FEMNIST).
        alpha: relaxation, between 0 and 2 (1.95).
        gamma: weight of the l1 regulariser; 0 is none.
    """

    slots: ClassVar[Mapping[str, Slot]] = {
        "w": down(),
        "v": work(),  # the next x_k
        "z": work(),  # the next y_k
        "x": keep(first=MODEL),
        "y": keep(first=MODEL),
        "change": up(Reduce.SUM),
    }
    refused: ClassVar[Mapping[Weighting, str]] = {
        Weighting.EXAMPLES: "the splitting is of a uniform mean, whose share of each device is 1/m"
    }
    evaluated: ClassVar[str] = "the global model w"

    lr: Scalar = 0.05
    eta: Scalar = 1.0
    alpha: Scalar = 1.9
    gamma: float = 0.0
    weighting: Weighting = Weighting.UNIFORM

    def check(self) -> None:
        super().check()
        splits, steps = abs(self.alpha - 1) < 1, 0 < self.lr < 2 * self.eta
        if not (splits and steps and self.gamma >= 0):
            raise ConfigError(
                f"lr = {self.lr}, eta = {self.eta}, alpha = {self.alpha} and gamma = {self.gamma} will not do: the "
                "splitting needs 0 < alpha < 2, its proximal steps 0 < lr < 2 eta, its threshold gamma >= 0",
                where="FedDR",
                remedy="Start from alpha = 1.9, eta = 1 and a small lr",
            )

    @property
    def amended(self) -> tuple[Amend, ...]:
        return (Amend("x", "change", 0.5),)  # of 2x - y, the part that is approximate anyway

    def begin(self, s: Trees) -> Trees:
        w, x, y = s["w"], s["x"], s["y"]
        return {"v": x, "z": y + self.alpha * (w - x)}

    def step(self, s: Trees, b: Minibatch) -> Trees:
        v, z = s["v"], s["z"]
        gradient = b.grad(v)
        # 0 times a gradient moves running statistics alone, to those of v: so their xh is x, and w gets their mean.
        return {"v": v - self.lr * (gradient + (v - z) / self.eta), "z": z - 0 * gradient}

    def finish(self, s: Trees) -> Trees:
        x, y, v, z = s["x"], s["y"], s["v"], s["z"]
        return {"x": v, "y": z, "change": 2 * (v - x) - (z - y)}

    def predictor(self, s: Trees) -> Tree:
        return s["w"]

    def others(self, s: Trees) -> Trees:
        return {"global": s["w"]}

    def init(self, params: Tree) -> Trees:
        """The model ``w``, where every ``xh_k`` began, the sum of all their changes, and the server's ``y``."""
        return {"w": params, "first": params, "moved": 0 * params, "y": params}

    def update(self, state: Trees, got: Cohort) -> Trees:
        w, m = state["w"], len(got.fleet)
        moved = state["moved"] + got.total["change"]
        xt = state["first"] + moved / m
        y = state["y"] + self.alpha * (w - state["y"])
        after = {"first": state["first"], "moved": moved, "y": y}
        if self.gamma == 0:
            return {"w": xt, **after}
        threshold = self.gamma * self.eta * m / (m + 1)
        regularised = (m / (m + 1) * xt + y / (m + 1)).map(lambda tensor: _shrunk(tensor, threshold))
        return {"w": regularised | xt.like(got.statistics), **after}


def _shrunk(tensor: Tensor, threshold: float) -> Tensor:
    return tensor.sign() * (tensor.abs() - threshold).clip(min=0)
