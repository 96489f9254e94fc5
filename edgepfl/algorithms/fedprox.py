"""FedProx: a proximal term holds the local steps near the global model.

Li et al. 2020, "Federated optimization in heterogeneous networks", algorithm 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from edgepfl.algorithms._base import Algorithm, Cohort, Minibatch, Scalar
from edgepfl.plan import Reduce, Shape, Slot, down, given, tell, up, work
from edgepfl.tree import Tree, Trees


@dataclass(frozen=True)
class FedProx(Algorithm):
    """Each round a device lowers ``h_k(x; w) = f_k(x) + mu/2 |x - w|^2``, inexactly, from ``x = w``.

    How inexactly, the device tells: ``gamma = |grad h_k(x; w)| / |grad h_k(w; w)|`` (definition 2), as its minibatches
    show it, the gradient of its last step over that of its first; 0 without a step.  Whatever steps a device took
    count.  Models are averaged by examples, as the authors' code does, or uniformly.

    Attributes:
        lr: step size; the explicit step needs ``lr (L + mu) < 2`` (0.01).
        mu: weight of the proximal term (0.001, 0.01, 0.1, 0.5 or 1, tuned for each data set; 1 on synthetic data).
    """

    slots: ClassVar[Mapping[str, Slot]] = {
        "w": down(),
        "steps": given(),
        "x": work(),
        "first": work(Shape.SCALAR),  # norm of the first step's gradient
        "last": work(Shape.SCALAR),  # of the last one's
        "delta": up(Reduce.MEAN),
        "gamma": tell(),
    }
    evaluated: ClassVar[str] = "the global model w"

    lr: Scalar = 0.05
    mu: Scalar = 0.01

    def begin(self, s: Trees) -> Trees:
        none = s["steps"] * 0
        return {"x": s["w"], "first": none, "last": none}

    def step(self, s: Trees, b: Minibatch) -> Trees:
        w, x = s["w"], s["x"]
        gradient = b.grad(x) + self.mu * (x - w)
        norm = gradient.dot(gradient).sqrt()
        opening = (1 - s["steps"].value).clip(0, 1)
        return {
            "x": x - self.lr * gradient,
            "first": s["first"] + opening * norm,
            "last": Tree.scalar(norm),
        }

    def finish(self, s: Trees) -> Trees:
        gamma = s["last"].value / s["first"].value.clip(min=1e-30)
        return {"delta": s["x"] - s["w"], "gamma": Tree.scalar(gamma)}

    def predictor(self, s: Trees) -> Tree:
        return s["w"]

    def others(self, s: Trees) -> Trees:
        return {"global": s["w"]}

    def update(self, state: Trees, got: Cohort) -> Trees:
        return {"w": state["w"] + got.total["delta"]}
