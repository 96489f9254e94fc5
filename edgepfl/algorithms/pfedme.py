"""pFedMe: the global model minimises the mean of the devices' Moreau envelopes.

T. Dinh et al. 2020, "Personalized federated learning with Moreau envelopes", algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar

from edgepfl.algorithms._base import SHAPES, Algorithm, Cohort, Minibatch, Scalar
from edgepfl.errors import ConfigError
from edgepfl.plan import Reduce, Slot, Weighting, down, keep, up, work
from edgepfl.tree import Tree, Trees


class Start(StrEnum):
    """Where an inner solve starts."""

    W = "w"  # the device's copy of the global model, at each minibatch
    THETA = "theta"  # the last solve's result


@dataclass(frozen=True)
class PFedMe(Algorithm):
    """``min_w (1/m) sum F_k(w)``, where ``F_k(w) = min_z f_k(z) + lam/2 |z - w|^2``.

    One minibatch is one of the paper's local rounds; with ``x`` the device's copy ``w_k`` of the global model::

        z     <- z - inner_lr (grad f(z) + lam (z - x) + inner_wd z)     inner_steps times
        theta <- z
        x     <- x - lr lam (x - theta)                                  a step along grad F_k

    and the server takes ``(1 - beta) w + beta mean x``.  ``theta`` is a copy of its own: the authors' code evaluates
    ``x`` in its place, here the model "local".  From ``start = w`` the global model does not depend on ``theta``.

    Attributes:
        lr: step size of ``x`` (MNIST and synthetic data 0.005, tuned 0.01).
        inner_lr: step size of the inner solve (MNIST 0.09 and 0.1, synthetic data 0.01).
        lam: weight of the pull towards ``x`` (MNIST 15, synthetic data 20, its deep network 30).
        inner_wd: weight decay of the inner solve, in the authors' code but not in the paper (0.001).
        beta: step size of the server (1, tuned 2).
        start: where the inner solve starts.
    """

    slots: ClassVar[Mapping[str, Slot]] = {
        "w": down(),
        "x": work(),
        "z": work(),
        "theta": keep(first="w"),
        "local": keep(first="w"),  # x at the end of the last round, for evaluation only
        "delta": up(Reduce.MEAN),
    }
    evaluated: ClassVar[str] = (
        "theta (the paper's PM); beside it w (GM) and w_k,R, which the authors' code reports as PM"
    )

    inner_steps: int = 5
    weighting: Weighting = Weighting.UNIFORM
    lr: Scalar = 0.005
    inner_lr: Scalar = 0.1
    lam: Scalar = 15.0
    inner_wd: Scalar = 0.0
    beta: float = 1.0
    start: Annotated[Start, SHAPES] = Start.W

    def check(self) -> None:
        """Refuse steps that overshoot for every loss.

        ``inner_lr lam = 1.5``, published for MNIST, is not refused: there the solve jumps past ``x`` and comes back
        by half at each step, and settles where the loss's curvature is below ``2 / inner_lr - lam = 5``.
        """
        super().check()
        where = type(self).__name__
        if self.inner_lr * self.lam >= 2:  # noqa: PLR2004  gradient descent on a quadratic of curvature lam
            raise ConfigError(
                f"inner_lr * lam = {self.inner_lr * self.lam:g} makes the inner solve diverge",
                where=where,
                remedy="It must be below 2, and inner_lr * (lam + the loss's curvature) too",
            )
        if self.lr * self.lam >= 1:
            raise ConfigError(
                f"lr * lam = {self.lr * self.lam:g} takes the device's copy of w past its personal model",
                where=where,
                remedy="It must be below 1",
            )

    def begin(self, s: Trees) -> Trees:
        return {"x": s["w"], "z": s["w"] if self.start is Start.W else s["theta"]}

    def inner(self, s: Trees, b: Minibatch) -> Trees:
        x, z = s["x"], s["z"]
        return {"z": z - self.inner_lr * (b.grad(z) + self.lam * (z - x) + self.inner_wd * z)}

    def step(self, s: Trees, b: Minibatch) -> Trees:  # noqa: ARG002  the minibatch was the inner solve's
        x, theta = s["x"], s["z"]
        moved = x - self.lr * self.lam * (x - theta)
        return {"theta": theta, "x": moved, "z": moved if self.start is Start.W else theta}

    def finish(self, s: Trees) -> Trees:
        return {"delta": s["x"] - s["w"], "local": s["x"]}

    def predictor(self, s: Trees) -> Tree:
        return s["theta"]

    def others(self, s: Trees) -> Trees:
        return {"global": s["w"], "local": s["local"]}

    def update(self, state: Trees, got: Cohort) -> Trees:
        return {"w": state["w"] + self.beta * got.total["delta"]}
