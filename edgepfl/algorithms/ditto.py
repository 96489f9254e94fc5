"""Ditto: a personal model beside the global one, pulled towards it.

Li et al. 2021, "Ditto: fair and robust federated learning through personalization", algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from edgepfl.algorithms._base import Algorithm, Cohort, Minibatch, Scalar
from edgepfl.plan import Reduce, Slot, Weighting, down, keep, up, work
from edgepfl.tree import Tree, Trees


@dataclass(frozen=True)
class Ditto(Algorithm):
    """``min_v f_k(v) + lam/2 |v - w*|^2``, where ``w*`` is FedAvg's model; ``v`` never feeds back.

    Both branches step on the same minibatches; the centre is the received ``w``, not the trained copy.

    Attributes:
        lr: step size of both branches.
        lam: pull of the global model on the personal one.
    """

    slots: ClassVar[Mapping[str, Slot]] = {
        "w": down(),
        "x": work(),
        "v": keep(first="w"),
        "delta": up(Reduce.MEAN),
    }

    lr: Scalar = 0.05
    lam: Scalar = 0.1
    weighting: Weighting = Weighting.UNIFORM

    def begin(self, s: Trees) -> Trees:
        return {"x": s["w"]}

    def step(self, s: Trees, b: Minibatch) -> Trees:
        w, x, v = s["w"], s["x"], s["v"]
        return {
            "x": x - self.lr * b.grad(x),
            "v": v - self.lr * (b.grad(v) + self.lam * (v - w)),
        }

    def finish(self, s: Trees) -> Trees:
        return {"delta": s["x"] - s["w"]}

    def predictor(self, s: Trees) -> Tree:
        return s["v"]

    def others(self, s: Trees) -> Trees:
        return {"global": s["w"]}

    def update(self, state: Trees, got: Cohort) -> Trees:
        return {"w": state["w"] + got.total["delta"]}
