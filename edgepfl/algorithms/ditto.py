"""Ditto: a personal model beside the global one, pulled towards it.

Li et al. 2021, "Ditto: fair and robust federated learning through personalization", algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from edgepfl.algorithms._base import Algorithm, Cohort, Minibatch, Scalar
from edgepfl.errors import ConfigError
from edgepfl.plan import Reduce, Slot, Weighting, down, given, keep, up, work
from edgepfl.tree import Tree, Trees


@dataclass(frozen=True)
class Ditto(Algorithm):
    """``min_v f_k(v) + lam/2 |v - w*|^2``, where ``w*`` is FedAvg's model; ``v`` never feeds back.

    Both branches step on the same minibatches; the centre is the received ``w``, not the trained copy.

    Attributes:
        lr: step size of both branches (0.05 on Fashion-MNIST, 0.01 on vehicle).
        lam: pull of the global model on the personal one (1, or chosen from 0.1, 1 and 2).
        personal_steps: on how many of a round's minibatches, its first, the personal model steps too; 0 for all (2 on
            Fashion-MNIST, 1 on vehicle).
    """

    slots: ClassVar[Mapping[str, Slot]] = {
        "w": down(),
        "steps": given(),
        "x": work(),
        "v": keep(first="w"),
        "delta": up(Reduce.MEAN),
    }
    evaluated: ClassVar[str] = "v, the personal model; beside it w"

    lr: Scalar = 0.05
    lam: Scalar = 0.1
    personal_steps: Scalar = 0.0
    weighting: Weighting = Weighting.UNIFORM

    def check(self) -> None:
        super().check()
        if self.personal_steps < 0 or self.personal_steps != int(self.personal_steps):
            raise ConfigError(
                f"personal_steps = {self.personal_steps:g} will not do: it is a number of steps",
                where="Ditto",
                remedy="Take a whole number, or 0 for as many as the global branch takes",
            )

    def begin(self, s: Trees) -> Trees:
        return {"x": s["w"]}

    def step(self, s: Trees, b: Minibatch) -> Trees:
        w, x, v = s["w"], s["x"], s["v"]
        past = (s["steps"].value - self.personal_steps + 1).clip(0, 1)  # 1 once so many steps are done
        moving = (1 - self.personal_steps * past).clip(0, 1)  # so with 0 it stays 1
        return {
            "x": x - self.lr * b.grad(x),
            "v": v - self.lr * moving * (b.grad(v) + self.lam * (v - w)),
        }

    def finish(self, s: Trees) -> Trees:
        return {"delta": s["x"] - s["w"]}

    def predictor(self, s: Trees) -> Tree:
        return s["v"]

    def others(self, s: Trees) -> Trees:
        return {"global": s["w"]}

    def update(self, state: Trees, got: Cohort) -> Trees:
        return {"w": state["w"] + got.total["delta"]}
