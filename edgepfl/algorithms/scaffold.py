"""SCAFFOLD: control variates take the drift of each device's data out of its local steps.

Karimireddy et al. 2020, "SCAFFOLD: stochastic controlled averaging for federated learning", algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar

from edgepfl.algorithms._base import SHAPES, Algorithm, Cohort, Minibatch, Scalar
from edgepfl.errors import ConfigError
from edgepfl.plan import Amend, Reduce, Slot, Weighting, down, given, keep, up, work
from edgepfl.tree import Tree, Trees


class Option(StrEnum):
    """How a device renews its variate, as the paper numbers it."""

    GRADIENT = "I"
    CHANGE = "II"


@dataclass(frozen=True)
class Scaffold(Algorithm):
    """``min_w (1/m) sum f_k(w)`` over the whole fleet of ``m`` devices, whichever of them, ``S``, take part.

    A device takes ``K_k`` steps from ``y = w``, then renews its variate, and the server the mean of them all::

        y   <- y - lr (grad f(y) - c_k + c)
        c_k <- mean of grad f(w) over the round's minibatches     option I
        c_k <- c_k - c + (w - y) / (K_k lr)                       option II
        w   <- w + server_lr mean_S(y - w)
        c   <- c + (1/m) sum_S(change of c_k)

    Option II uploads ``y - w`` alone, from which the server computes the change.  Option I also uploads the change, and
    takes a second gradient on each minibatch.

    Attributes:
        lr: step size of the local steps (the paper's eta_l).
        server_lr: step size of the server on the mean change (the paper's eta_g: 1).
        option: I or II, how a device renews its variate (II in the paper's experiments).
    """

    slots: ClassVar[Mapping[str, Slot]] = {
        "w": down(),
        "c": down(),
        "y": work(),
        "c_k": keep(first=0.0),
        "steps": given(),
        "delta": up(Reduce.MEAN),
    }
    refused: ClassVar[Mapping[Weighting, str]] = {
        Weighting.EXAMPLES: "the mean of all variates, c, cancels them out of a uniform mean alone"
    }
    evaluated: ClassVar[str] = "the global model w"

    lr: Scalar = 0.05
    server_lr: float = 1.0
    option: Annotated[Option, SHAPES] = Option.CHANGE
    weighting: Weighting = Weighting.UNIFORM

    def check(self) -> None:
        super().check()
        if self.lr <= 0:
            raise ConfigError(
                f"lr = {self.lr} will not do: variates are changes divided by it",
                where="Scaffold",
                remedy="Set lr above 0",
            )

    def declared(self) -> Mapping[str, Slot]:
        if self.option is Option.GRADIENT:
            return {**self.slots, "g": work(), "change": up(Reduce.SUM)}
        return self.slots

    @property
    def amended(self) -> tuple[Amend, ...]:
        if self.option is Option.GRADIENT:
            return (Amend("c_k", "change"),)
        return (Amend("c_k", "delta", -1 / self.lr, per_step=True),)

    def begin(self, s: Trees) -> Trees:
        w = s["w"]
        return {"y": w, "g": 0 * w} if self.option is Option.GRADIENT else {"y": w}

    def step(self, s: Trees, b: Minibatch) -> Trees:
        y = s["y"]
        moved = {"y": y - self.lr * (b.grad(y) - s["c_k"] + s["c"])}
        if self.option is Option.GRADIENT:
            moved["g"] = s["g"] + b.grad(s["w"])
        return moved

    def finish(self, s: Trees) -> Trees:
        c, c_k, delta = s["c"], s["c_k"], s["y"] - s["w"]
        K = s["steps"].value.clip(min=1)
        if self.option is Option.GRADIENT:
            renewed = s["g"] / K
            return {"delta": delta, "c_k": renewed, "change": renewed - c_k}
        return {"delta": delta, "c_k": c_k - c - delta / (K * self.lr)}

    def predictor(self, s: Trees) -> Tree:
        return s["w"]

    def others(self, s: Trees) -> Trees:
        return {"global": s["w"]}

    def init(self, params: Tree) -> Trees:
        """The model ``w``, the mean variate ``c`` and ``c_sum``, the sum of every device's."""
        return {"w": params, "c": 0 * params, "c_sum": 0 * params}

    @property
    def rebuilt(self) -> Mapping[str, Reduce]:
        return {"variate": Reduce.SUM} if self.option is Option.CHANGE else {}

    def rebuild(self, upload: Trees, steps: int) -> Trees:
        """``c_k - (old c_k) + c``, which is what the upload alone tells of option II."""
        return {"variate": -upload["delta"] / (steps * self.lr)}

    def update(self, state: Trees, got: Cohort) -> Trees:
        w, c, delta = state["w"], state["c"], got.total["delta"]
        told = self.option is Option.GRADIENT
        c_sum = state["c_sum"] + (got.total["change"] if told else got.total["variate"] - len(got.devices) * c)
        moved = w + self.server_lr * delta
        return {"w": moved | (w + delta).like(got.statistics), "c": c_sum / len(got.fleet), "c_sum": c_sum}
