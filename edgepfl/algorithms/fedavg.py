"""Federated averaging, with fine-tuning as its personal form.

McMahan et al. 2017, "Communication-efficient learning of deep networks from decentralized data", algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from edgepfl.algorithms._base import Algorithm, Cohort, Minibatch, Scalar
from edgepfl.plan import Reduce, Slot, down, up, work
from edgepfl.tree import Tree, Trees


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """``min_w sum p_k f_k(w)``: local SGD from the global model, then the mean of what came of it.

    Attributes:
        lr: step size of the local steps.
        tune_lr: step size of fine-tuning, from the global model, before prediction.
        server_lr: step size of the server on the mean change.
    """

    slots: ClassVar[Mapping[str, Slot]] = {"w": down(), "x": work(), "delta": up(Reduce.MEAN)}
    evaluated: ClassVar[str] = "the global model w, as it is and after tune_steps on the device's own data"

    lr: Scalar = 0.05
    tune_lr: Scalar = 0.05
    server_lr: float = 1.0

    def begin(self, s: Trees) -> Trees:
        return {"x": s["w"]}

    def step(self, s: Trees, b: Minibatch) -> Trees:
        x = s["x"]
        return {"x": x - self.lr * b.grad(x)}

    def finish(self, s: Trees) -> Trees:
        return {"delta": s["x"] - s["w"]}

    def tune(self, s: Trees, b: Minibatch) -> Trees:
        x = s["x"]
        return {"x": x - self.tune_lr * b.grad(x)}

    def predictor(self, s: Trees) -> Tree:
        return s["x"]

    def others(self, s: Trees) -> Trees:
        return {"global": s["w"]}

    def update(self, state: Trees, got: Cohort) -> Trees:
        return {"w": state["w"] + self.server_lr * got.total["delta"]}
