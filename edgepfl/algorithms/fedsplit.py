"""FedSplit: operator splitting, so that local work does not move the fixed point.

Pathak et al. 2020, "FedSplit: an algorithmic framework for fast federated optimization", algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from edgepfl.algorithms._base import Algorithm, Cohort, Minibatch, Participation, Scalar
from edgepfl.errors import ConfigError
from edgepfl.plan import Amend, Reduce, Slot, Weighting, down, keep, up, work
from edgepfl.tree import Tree, Trees


@dataclass(frozen=True)
class FedSplit(Algorithm):
    """``min_x sum_k f_k(x)``, by Peaceman-Rachford splitting.

    On a device, and then on the server::

        y   <- argmin f_k(y) + 1/2s |y - (2x - z_k)|^2     by gradient steps from y = x
        z_k <- z_k + 2 (y - x)
        x   <- mean of all z_k

    At the fixed point ``y = x`` is the minimiser and ``z_k = x - s grad f_k(x)``, for every ``s``.  Because the steps
    start there, it is their fixed point too, however few of them solve the inner problem.

    The server holds no ``z_k``: a device starts with ``z_k = x`` and sends what it adds, so ``x`` stays the mean over
    the devices that have ever taken part, whichever are lost in a round or come late.

    Attributes:
        lr: step size of the inner solver; ``lr (L + 1/s) < 2`` or it diverges.
        s: step size of the splitting; ``1/sqrt(l L)`` for functions of curvature ``l .. L`` (the paper's choice).
    """

    slots: ClassVar[Mapping[str, Slot]] = {
        "x": down(),
        "y": work(),
        "z": keep(first="x"),
        "next": work(),  # what z will be
        "delta": up(Reduce.SUM),
    }
    refused: ClassVar[Mapping[Weighting, str]] = {Weighting.EXAMPLES: "x is the plain mean of the z_k"}
    participation: ClassVar[Participation] = Participation.ALL
    evaluated: ClassVar[str] = "x, the global model"
    grows: ClassVar[str] = "m"  # who has joined

    lr: Scalar = 0.05
    s: Scalar = 1.0
    weighting: Weighting = Weighting.UNIFORM

    def check(self) -> None:
        super().check()
        if self.s <= 0 or self.lr <= 0:
            raise ConfigError(f"lr = {self.lr} and s = {self.s} must be above 0", where=type(self).__name__)
        if self.lr >= 2 * self.s:
            raise ConfigError(
                f"the inner solver would diverge: lr / s = {self.lr / self.s:.3g} >= 2 whatever the loss",
                where=type(self).__name__,
                remedy="Lower lr or raise s",
            )

    @property
    def amended(self) -> tuple[Amend, ...]:
        return (Amend("z", "delta"),)

    def begin(self, s: Trees) -> Trees:
        return {"y": s["x"], "next": s["z"]}

    def step(self, s: Trees, b: Minibatch) -> Trees:
        reflected = 2 * s["x"] - s["z"]
        y = s["y"] - self.lr * (b.grad(s["y"]) + (s["y"] - reflected) / self.s)
        # Here rather than in finish: a running statistic in y is a measurement until the step ends, so it goes into z
        # as it is.  Reflected like a parameter, a variance could become negative.
        return {"y": y, "next": 2 * y - reflected}

    def finish(self, s: Trees) -> Trees:
        return {"z": s["next"], "delta": s["next"] - s["z"]}

    def predictor(self, s: Trees) -> Tree:
        return s["x"]

    def others(self, s: Trees) -> Trees:
        return {"global": s["x"]}

    def init(self, params: Tree) -> Trees:
        return {"x": params, "joined": Tree({})}

    def update(self, state: Trees, got: Cohort) -> Trees:
        mark = next(iter(state["x"].values())).new_ones(())
        joined = state["joined"] | Tree(dict.fromkeys(got.devices, mark))
        return {"x": state["x"] + got.total["delta"] / len(joined), "joined": joined}
