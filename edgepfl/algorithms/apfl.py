"""APFL: the personal model is a mixture of a local and the global model, with an adaptive weight.

Deng et al. 2020, "Adaptive personalized federated learning", algorithm 1 and equation 11 (the weight's step).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from edgepfl.algorithms._base import Algorithm, Cohort, Minibatch, Scalar
from edgepfl.plan import Reduce, Shape, Slot, Weighting, down, keep, up, work
from edgepfl.tree import Tensor, Tree, Trees


def _mixture(alpha: Tensor, v: Tree, x: Tree) -> Tree:
    mixed: Tree = alpha * v + (1 - alpha) * x
    return mixed


@dataclass(frozen=True)
class APFL(Algorithm):
    """``min_v f_k(alpha v + (1 - alpha) w*)``, where ``w*`` is FedAvg's model.

    On each minibatch, with ``g_v`` the gradient at the mixture ``alpha v + (1 - alpha) x``::

        alpha <- clip(alpha - alpha_lr <v - x, g_v>, 0, 1)    on a round's first minibatch only
        x     <- x - lr grad f(x)
        v     <- v - lr alpha g_v                             alpha: the chain rule's factor

    Attributes:
        lr: step size of both models.
        alpha_lr: step size of the mixture's weight; 0 keeps it at ``alpha_first``.
        alpha_first: the weight of the local model before the first round.
    """

    slots: ClassVar[Mapping[str, Slot]] = {
        "w": down(),
        "x": work(),
        "first": work(Shape.SCALAR),  # 1 until the round's first minibatch is done
        "v": keep(first="w"),
        "alpha": keep(Shape.SCALAR, first="alpha_first"),
        "delta": up(Reduce.MEAN),
    }

    lr: Scalar = 0.05
    alpha_lr: Scalar = 0.05
    alpha_first: Scalar = 0.5
    weighting: Weighting = Weighting.UNIFORM

    def begin(self, s: Trees) -> Trees:
        return {"x": s["w"], "first": Tree.scalar(s["alpha"].value * 0 + 1)}

    def step(self, s: Trees, b: Minibatch) -> Trees:
        x, v, first, alpha = s["x"], s["v"], s["first"].value, s["alpha"].value
        at_mixture = b.grad(_mixture(alpha, v, x))
        moved = (alpha - first * self.alpha_lr * (v - x).dot(at_mixture)).clip(0, 1)
        return {
            "x": x - self.lr * b.grad(x),
            "v": v - self.lr * moved * at_mixture,
            "alpha": Tree.scalar(moved),
            "first": Tree.scalar(first * 0),
        }

    def finish(self, s: Trees) -> Trees:
        return {"delta": s["x"] - s["w"]}

    def predictor(self, s: Trees) -> Tree:
        return _mixture(s["alpha"].value, s["v"], s["w"])

    def others(self, s: Trees) -> Trees:
        return {"global": s["w"]}

    def update(self, state: Trees, got: Cohort) -> Trees:
        return {"w": state["w"] + got.total["delta"]}
