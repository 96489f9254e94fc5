"""FedProx: a proximal term holds the local steps near the global model.

Li et al. 2020, "Federated optimization in heterogeneous networks", algorithm 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from edgepfl.algorithms._base import Algorithm, Cohort, Minibatch, Scalar
from edgepfl.plan import Reduce, Slot, down, up, work
from edgepfl.tree import Tree, Trees


@dataclass(frozen=True)
class FedProx(Algorithm):
    """Each round a device lowers ``h_k(x; w) = f_k(x) + mu/2 |x - w|^2``, inexactly, from ``x = w``.

    Attributes:
        lr: step size; the explicit step needs ``lr (L + mu) < 2``.
        mu: weight of the proximal term.
    """

    slots: ClassVar[Mapping[str, Slot]] = {"w": down(), "x": work(), "delta": up(Reduce.MEAN)}

    lr: Scalar = 0.05
    mu: Scalar = 0.01

    def begin(self, s: Trees) -> Trees:
        return {"x": s["w"]}

    def step(self, s: Trees, b: Minibatch) -> Trees:
        w, x = s["w"], s["x"]
        return {"x": x - self.lr * (b.grad(x) + self.mu * (x - w))}

    def finish(self, s: Trees) -> Trees:
        return {"delta": s["x"] - s["w"]}

    def predictor(self, s: Trees) -> Tree:
        return s["w"]

    def others(self, s: Trees) -> Trees:
        return {"global": s["w"]}

    def update(self, state: Trees, got: Cohort) -> Trees:
        return {"w": state["w"] + got.total["delta"]}
