"""L2SGD: local steps and steps towards the mean, whichever a coin says.

Hanzely et al. 2020, "Federated learning of a mixture of global and local models", algorithm 1 (loopless local gradient
descent, L2GD), with stochastic gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edgepfl.algorithms._base import Algorithm, Cohort, Minibatch, Scalar
from edgepfl.errors import ConfigError
from edgepfl.plan import Reduce, Slot, Weighting, down, keep, up, work
from edgepfl.tree import Tree, Trees

MOST_STEPS = 10_000
"""Local steps of one round at most: the geometric distribution has no end, a device's patience has."""


@dataclass(frozen=True)
class L2SGD(Algorithm):
    """``min_X 1/m sum_k f_k(x_k) + lam/2m sum_k |x_k - xbar|^2``, where ``xbar`` is the mean of the ``x_k``.

    The server tosses one coin for everyone at each iteration::

        tails (1 - p):  x_k <- x_k - lr/(1 - p) grad f_k(x_k)
        heads (p):      x_k <- (1 - omega_1) x_k + omega_1 xbar     omega_1 = lr lam / p

    ``lr`` is the paper's step size over the number of devices, so that both are independent of it, and in expectation
    an iteration is a gradient step of size ``lr`` on each device's share of the objective.  Averaging leaves ``xbar``
    as it is, so ``j`` heads in a row are one step with ``omega = 1 - (1 - omega_1)^j``.  A round is such a row, and
    the tails until the next: both lengths are geometric.

    With a constant step the iterates end in a ball around the optimum, which is also pFedMe's; their time average goes
    there.  The theory has all devices in each round.  Here ``xbar`` is the mean of those that took part, the others
    keep their ``x_k``, and an iteration is then no unbiased step any more.  With weights by examples the ``1/m`` above
    are the devices' shares of the examples.

    Attributes:
        lr: step size of an iteration, the paper's alpha / n; in theory at most (1 - p) / 2L and p / 2 lam.
        lam: pull of the mean on each device's model; 0 is local training.
        p: chance that an iteration averages (lam / (L + lam), the paper's optimum; .1 to .9 in its experiments).
        omega: weight of the mean as a round opens; the server sets it, from its coins.
    """

    slots: ClassVar[Mapping[str, Slot]] = {
        "xbar": down(),
        "x": keep(first="xbar"),  # as the last round left it
        "y": work(),  # x_k while it moves
        "delta": up(Reduce.MEAN),
    }
    evaluated: ClassVar[str] = "x_k, the device's own model, after the averaging that opens a round"

    lr: Scalar = 0.05
    lam: Scalar = 0.1
    p: Scalar = 0.2
    omega: Scalar = 0.0
    weighting: Weighting = Weighting.UNIFORM

    def check(self) -> None:
        super().check()
        where = type(self).__name__
        if not 0 < self.p < 1:
            raise ConfigError(f"p = {self.p} is outside 0 .. 1: one of the two steps would never come", where=where)
        if self.lam < 0:
            raise ConfigError(f"lam = {self.lam} would push the models apart", where=where, remedy="Set lam >= 0")
        if self.lr * self.lam > self.p:
            raise ConfigError(
                f"a step towards the mean would go past it: lr lam / p = {self.lr * self.lam / self.p:.3g} > 1",
                where=where,
                remedy="Lower lr or lam, or raise p",
            )

    def begin(self, s: Trees) -> Trees:
        x, xbar = s["x"], s["xbar"]
        return {"y": x + self.omega * (xbar - x)}

    def step(self, s: Trees, b: Minibatch) -> Trees:
        y = s["y"]
        return {"y": y - self.lr / (1 - self.p) * b.grad(y)}

    def finish(self, s: Trees) -> Trees:
        return {"x": s["y"], "delta": s["y"] - s["xbar"]}

    def predictor(self, s: Trees) -> Tree:
        return s["y"]

    def others(self, s: Trees) -> Trees:
        return {"global": s["xbar"]}

    def init(self, params: Tree) -> Trees:
        return {"xbar": params}

    def update(self, state: Trees, got: Cohort) -> Trees:
        return {"xbar": state["xbar"] + got.total["delta"]}

    def local_steps(self, usual: int, rng: np.random.Generator) -> int:  # noqa: ARG002  the coins say how many
        return min(int(rng.geometric(self.p)), MOST_STEPS)

    def round_hyper(self, number: int, rng: np.random.Generator) -> Mapping[str, float]:  # noqa: ARG002  round 1 has x = xbar
        heads = int(rng.geometric(1 - self.p))
        return {"omega": 1 - (1 - self.lr * self.lam / self.p) ** heads}
