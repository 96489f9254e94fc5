"""Per-FedAvg: a global model from which one gradient step makes a good personal one.

Fallah et al. 2020, "Personalized federated learning with theoretical guarantees: a model-agnostic meta-learning
approach", algorithm 1, with the first-order and the Hessian-free gradient of its section 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from edgepfl.algorithms._base import Algorithm, Cohort, Minibatch, Scalar
from edgepfl.errors import ConfigError
from edgepfl.plan import Reduce, Slot, Weighting, down, up, work
from edgepfl.tree import Tree, Trees


@dataclass(frozen=True)
class PerFedAvg(Algorithm):
    """``min_w 1/m sum_k f_k(w - alpha grad f_k(w))``, whose gradient holds a Hessian, or goes without.

    A minibatch is parted in two or three, D1, D2 and D3::

        g <- grad f(x - alpha grad f(x; D1); D2)
        x <- x - beta g                         first order
        x <- x - beta (g - alpha H(x; D3) g)    with the Hessian

    where ``H g = (grad f(x + delta g; D3) - grad f(x - delta g; D3)) / 2 delta``, so a minibatch costs two gradients
    or four.  On quadratics the first is a step towards ``(sum M_k)^-1 sum M_k b_k`` with ``M_k = A_k (I - alpha A_k)``,
    the second, with ``M_k = (I - alpha A_k) A_k (I - alpha A_k)``, towards the objective's minimiser.

    Attributes:
        alpha: step size of the step that personalises, in training and before prediction (.005 to .03).
        beta: step size of the global model's local steps (.001 to .003).
        delta: spread of the central difference along g (.001).
        hessian: whether to take the Hessian's part of the gradient.
    """

    slots: ClassVar[Mapping[str, Slot]] = {"w": down(), "x": work(), "delta": up(Reduce.MEAN)}
    evaluated: ClassVar[str] = "w after steps of size alpha on the device's own data"

    alpha: Scalar = 0.03
    beta: Scalar = 0.05
    delta: Scalar = 0.001
    hessian: bool = False
    weighting: Weighting = Weighting.UNIFORM

    def check(self) -> None:
        super().check()
        if self.delta <= 0:
            raise ConfigError(f"delta = {self.delta} is no spread of a difference", where=type(self).__name__)

    def begin(self, s: Trees) -> Trees:
        return {"x": s["w"]}

    def step(self, s: Trees, b: Minibatch) -> Trees:
        x = s["x"]
        first, second, *third = b.parts(3 if self.hessian else 2)
        g = second.grad(x - self.alpha * first.grad(x))
        for part in third:
            g = g - self.alpha * self._hessian_product(part, x, g)
        return {"x": x - self.beta * g}

    def finish(self, s: Trees) -> Trees:
        return {"delta": s["x"] - s["w"]}

    def tune(self, s: Trees, b: Minibatch) -> Trees:
        x = s["x"]
        return {"x": x - self.alpha * b.grad(x)}

    def predictor(self, s: Trees) -> Tree:
        return s["x"]

    def others(self, s: Trees) -> Trees:
        return {"global": s["w"]}

    def update(self, state: Trees, got: Cohort) -> Trees:
        return {"w": state["w"] + got.total["delta"]}

    def _hessian_product(self, b: Minibatch, x: Tree, g: Tree) -> Tree:
        ahead, behind = b.grad(x + self.delta * g), b.grad(x - self.delta * g)
        product: Tree = (ahead - behind) / (2 * self.delta)
        return product
