"""ProxSkip (Scaffnew): communication is skipped by chance, and control variates keep the devices from drifting.

Mishchenko et al. 2022, "ProxSkip: yes! Local gradient steps provably lead to communication acceleration! Finally!",
algorithm 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edgepfl.algorithms._base import Algorithm, Cohort, Minibatch, Participation, Scalar
from edgepfl.errors import ConfigError
from edgepfl.plan import Amend, Reduce, Slot, Weighting, down, keep, up, work
from edgepfl.tree import Tree, Trees

MOST_STEPS = 10_000
"""Local steps of one round at most: the geometric distribution has no end, a device's patience has."""


@dataclass(frozen=True)
class ProxSkip(Algorithm):
    """``min_w 1/m sum_k f_k(w)``, where most iterations are the devices' own.

    At each iteration, with one coin for everyone::

        xh_k <- x_k - lr (grad f_k(x_k) - h_k)
        heads (p):      x_k <- mean of all xh_j
        tails (1 - p):  x_k <- xh_k
        h_k  <- h_k + p/lr (x_k - xh_k)         tails change nothing

    The server tosses the coins, so a round is the iterations up to the next heads, geometric in number.  A device
    learns the mean with the next round, and moves its ``h_k`` then.  ``sum_k h_k = 0`` after every round of all
    devices, and at the fixed point ``h_k = grad f_k(w*)``; a device that misses a round breaks the sum for good.

    Attributes:
        lr: step size, the paper's gamma; 1/L in theory.
        p: chance that an iteration communicates; 1/sqrt(kappa), with kappa = L/mu the condition number, is optimal.
    """

    slots: ClassVar[Mapping[str, Slot]] = {
        "w": down(),
        "x": work(),
        "xh": keep(first="w"),  # what the device last sent, before the mean
        "h": keep(first=0.0),  # without the change that this round's w brings
        "delta": up(Reduce.MEAN),
    }
    refused: ClassVar[Mapping[Weighting, str]] = {
        Weighting.EXAMPLES: "the variates sum to 0, and so cancel, under the plain mean alone"
    }
    participation: ClassVar[Participation] = Participation.ALL
    evaluated: ClassVar[str] = "w, the global model"

    lr: Scalar = 0.05
    p: Scalar = 0.2
    weighting: Weighting = Weighting.UNIFORM

    def check(self) -> None:
        super().check()
        if not 0 < self.p <= 1:
            raise ConfigError(f"p = {self.p} is no chance above 0 and at most 1", where=type(self).__name__)
        if self.lr <= 0:
            raise ConfigError(f"lr = {self.lr}: the variates' step p / lr needs lr > 0", where=type(self).__name__)

    @property
    def amended(self) -> tuple[Amend, ...]:
        return (Amend("xh", "delta"),)

    def begin(self, s: Trees) -> Trees:
        return {"x": s["w"]}

    def step(self, s: Trees, b: Minibatch) -> Trees:
        x = s["x"]
        return {"x": x - self.lr * (b.grad(x) - self._variate(s))}

    def finish(self, s: Trees) -> Trees:
        return {"xh": s["x"], "h": self._variate(s), "delta": s["x"] - s["w"]}

    def predictor(self, s: Trees) -> Tree:
        return s["w"]

    def others(self, s: Trees) -> Trees:
        return {"global": s["w"]}

    def update(self, state: Trees, got: Cohort) -> Trees:
        return {"w": state["w"] + got.total["delta"]}

    def local_steps(self, usual: int, rng: np.random.Generator) -> int:  # noqa: ARG002  the coins say how many
        return min(int(rng.geometric(self.p)), MOST_STEPS)

    def _variate(self, s: Trees) -> Tree:
        """``h_k`` of this round: the mean that ended the last one is this round's ``w``."""
        moved: Tree = s["h"] + self.p / self.lr * (s["w"] - s["xh"])
        return moved
