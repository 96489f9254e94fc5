"""FedPer: the body is shared, the head stays on the device.

Arivazhagan et al. 2019, "Federated learning with personalization layers", algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from edgepfl.algorithms._base import SHAPES, Algorithm, Cohort, Minibatch, Scalar
from edgepfl.algorithms._extractor import EvalExtractor
from edgepfl.plan import MODEL, Reduce, Shape, Slot, down, keep, up, work
from edgepfl.tree import Tree, Trees


@dataclass(frozen=True)
class FedPer(Algorithm):
    """Both parts are trained together; only the body is averaged.

    Which parameters are the head is the export's choice (``--personal 'head.*'``), so this is also batch-norm-local
    training with another pattern.  Bodies are averaged by examples, or uniformly.

    Attributes:
        lr: step size of all parameters (0.01).
        tune_lr: step size of the head alone, on the frozen body, before prediction.
        eval_extractor: which body is evaluated with the device's head, the global one that it was sent last or the
            local one that it trained last; early in a run they differ a lot.
    """

    slots: ClassVar[Mapping[str, Slot]] = {
        "body": down(Shape.SHARED),
        "x": work(),
        "head": keep(Shape.PERSONAL, first=MODEL),
        "delta": up(Reduce.MEAN, Shape.SHARED),
    }
    evaluated: ClassVar[str] = "the body last received (or last trained: eval_extractor) with the device's own head"

    lr: Scalar = 0.05
    tune_lr: Scalar = 0.05
    eval_extractor: Annotated[EvalExtractor, SHAPES] = EvalExtractor.GLOBAL

    def declared(self) -> Mapping[str, Slot]:
        own = {"own": keep(Shape.SHARED, first="body")} if self.eval_extractor is EvalExtractor.LOCAL else {}
        return {**self.slots, **own}

    def begin(self, s: Trees) -> Trees:
        return {"x": s["body"] | s["head"]}

    def step(self, s: Trees, b: Minibatch) -> Trees:
        x = s["x"]
        return {"x": x - self.lr * b.grad(x)}

    def finish(self, s: Trees) -> Trees:
        x, body, head = s["x"], s["body"], s["head"]
        own = {"own": x.like(body)} if self.eval_extractor is EvalExtractor.LOCAL else {}
        return {"delta": x.like(body) - body, "head": x.like(head), **own}

    def tune(self, s: Trees, b: Minibatch) -> Trees:
        x, head = self.predictor(s), s["head"]
        return {"x": x | (x.like(head) - self.tune_lr * b.grad(x).like(head))}

    def predictor(self, s: Trees) -> Tree:
        return s["x"] | s["own"] if self.eval_extractor is EvalExtractor.LOCAL else s["x"]

    def init(self, params: Tree) -> Trees:
        return {"body": params}

    def update(self, state: Trees, got: Cohort) -> Trees:
        return {"body": state["body"] + got.total["delta"]}
