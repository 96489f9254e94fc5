"""FedPer: the body is shared, the head stays on the device.

Arivazhagan et al. 2019, "Federated learning with personalization layers", algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from edgepfl.algorithms._base import Algorithm, Cohort, Minibatch, Scalar
from edgepfl.plan import MODEL, Reduce, Shape, Slot, down, keep, up, work
from edgepfl.tree import Tree, Trees


@dataclass(frozen=True)
class FedPer(Algorithm):
    """Both parts are trained together; only the body is averaged.

    Which parameters are the head is the export's choice (``--personal 'head.*'``), so this is also batch-norm-local
    training with another pattern.

    Attributes:
        lr: step size of all parameters.
        tune_lr: step size of the head alone, on the frozen body, before prediction.
    """

    slots: ClassVar[Mapping[str, Slot]] = {
        "body": down(Shape.SHARED),
        "x": work(),
        "head": keep(Shape.PERSONAL, first=MODEL),
        "delta": up(Reduce.MEAN, Shape.SHARED),
    }

    lr: Scalar = 0.05
    tune_lr: Scalar = 0.05

    def begin(self, s: Trees) -> Trees:
        return {"x": s["body"] | s["head"]}

    def step(self, s: Trees, b: Minibatch) -> Trees:
        x = s["x"]
        return {"x": x - self.lr * b.grad(x)}

    def finish(self, s: Trees) -> Trees:
        x, body, head = s["x"], s["body"], s["head"]
        return {"delta": x.like(body) - body, "head": x.like(head)}

    def tune(self, s: Trees, b: Minibatch) -> Trees:
        x, head = s["x"], s["head"]
        return {"x": x | (x.like(head) - self.tune_lr * b.grad(x).like(head))}

    def predictor(self, s: Trees) -> Tree:
        return s["x"]

    def init(self, params: Tree) -> Trees:
        return {"body": params}

    def update(self, state: Trees, got: Cohort) -> Trees:
        return {"body": state["body"] + got.total["delta"]}
