"""pFedMac: personal models that correlate with the global one, and may be sparse.

Liu et al. 2023, "Sparse personalized federated learning" (FedMac), its two-level algorithm.  Three levels are
``coordinator.hub.levels``'s.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar

from edgepfl.algorithms._base import SHAPES, Algorithm, Cohort, Minibatch, Scalar
from edgepfl.errors import ConfigError
from edgepfl.plan import Reduce, Slot, Weighting, down, keep, tell, up, work
from edgepfl.tree import Number, Tree, Trees

FARTHEST = 1e3
"""How large theta may grow, in units of ``1 + |w|``: beyond, the inner problem has no minimum."""


class Sparsity(StrEnum):
    """What makes the personal model sparse."""

    NONE = "none"
    EXACT = "exact"  # soft thresholding after each inner step: true zeros
    SMOOTH = "smooth"  # rho log cosh(z / rho) in place of |z|: small numbers, no zeros


def _shrunk(z: Tree, by: Number) -> Tree:
    """``sign(z) max(|z| - by, 0)``, the proximal map of ``by |z|_1``; running statistics stay as they are."""
    return z.map(lambda tensor: tensor - tensor.clip(-by, by))


def _norm(tree: Tree) -> Number:
    return tree.dot(tree).sqrt()


@dataclass(frozen=True)
class PFedMac(Algorithm):
    """``min_w (1/m) sum F_k(w)``, ``F_k(w) = min_z f_k(z) - mu <z, w> + mu/2 |w|^2 + gamma |z|_1``.

    On each minibatch, with ``x`` the device's copy ``w_k`` of the global model and ``z`` starting there::

        z     <- z - inner_lr (grad f(z) - mu x)      inner_steps times, each shrunk by inner_lr gamma where exact
        theta <- z
        x     <- x - lr mu (x - theta)                a step along grad F_k

    and the server takes ``(1 - beta) w + beta mean x``.  The correlation adds no curvature: where ``f_k`` grows no
    faster than linearly, as softmax losses do, more inner steps take theta ever farther, and where ``mu`` exceeds the
    loss's curvature the global model grows.  So there are few inner steps, and a device whose theta is longer than
    ``1000 (1 + |w|)`` uploads NaN, which its agent reports as divergence.

    Attributes:
        lr: step size of ``x``; what counts is ``lr mu`` (0.01 with 15).
        inner_lr: step size of the inner solve (none published).
        mu: weight of the correlation (15, with which ``w`` grew eightfold a round on softmax regression).
        gamma: weight of the 1-norm, without effect where ``sparsity = none`` (to be tuned).
        rho: the smooth norm is ``rho log cosh(z / rho)`` (none published).
        beta: step size of the server (1).
        sparsity: what makes theta sparse.
    """

    slots: ClassVar[Mapping[str, Slot]] = {
        "w": down(),
        "x": work(),
        "z": work(),
        "theta": keep(first="w"),
        "delta": up(Reduce.MEAN),
        "sparsity": tell(),  # the share of theta that is zero
        "norm": tell(),  # of theta
    }
    evaluated: ClassVar[str] = "theta, the personal model; beside it w"

    inner_steps: int = 5
    weighting: Weighting = Weighting.UNIFORM
    lr: Scalar = 5.0
    inner_lr: Scalar = 0.05
    mu: Scalar = 0.02
    gamma: Scalar = 0.01
    rho: Scalar = 0.01
    beta: float = 1.0
    sparsity: Annotated[Sparsity, SHAPES] = Sparsity.NONE

    def check(self) -> None:
        super().check()
        where = type(self).__name__
        if self.lr * self.mu >= 1:
            raise ConfigError(
                f"lr * mu = {self.lr * self.mu:g} takes the device's copy of w past its personal model",
                where=where,
                remedy="It must be below 1",
            )
        if min(self.mu, self.gamma) < 0:
            raise ConfigError("mu and gamma are weights, which are not negative", where=where)
        if self.sparsity is Sparsity.SMOOTH and self.rho <= 0:
            raise ConfigError(f"rho = {self.rho:g} is no width", where=where, remedy="Set it to 0.01, say")

    def begin(self, s: Trees) -> Trees:
        return {"x": s["w"], "z": s["w"]}

    def inner(self, s: Trees, b: Minibatch) -> Trees:
        x, z = s["x"], s["z"]
        gradient = b.grad(z) - self.mu * x
        match self.sparsity:
            case Sparsity.NONE:
                return {"z": z - self.inner_lr * gradient}
            case Sparsity.EXACT:
                return {"z": _shrunk(z - self.inner_lr * gradient, self.inner_lr * self.gamma)}
            case Sparsity.SMOOTH:
                slope = (z / self.rho).map(lambda tensor: tensor.tanh())
                return {"z": z - self.inner_lr * (gradient + self.gamma * slope)}

    def step(self, s: Trees, b: Minibatch) -> Trees:  # noqa: ARG002  the minibatch was the inner solve's
        x, theta = s["x"], s["z"]
        moved = x - self.lr * self.mu * (x - theta)
        return {"theta": theta, "x": moved, "z": moved}

    def finish(self, s: Trees) -> Trees:
        w, x, theta = s["w"], s["x"], s["theta"]
        norm = _norm(theta)
        sound = norm <= FARTHEST * (1 + _norm(w))  # False where theta is not finite
        zeros = sum((1 - tensor.sign().abs()).sum() for tensor in theta.values())
        return {
            "delta": (x - w).map(lambda tensor: tensor.where(sound, math.nan)),
            "sparsity": Tree.scalar(zeros / sum(tensor.numel() for tensor in theta.values())),
            "norm": Tree.scalar(norm),
        }

    def predictor(self, s: Trees) -> Tree:
        return s["theta"]

    def others(self, s: Trees) -> Trees:
        return {"global": s["w"]}

    def update(self, state: Trees, got: Cohort) -> Trees:
        return {"w": state["w"] + self.beta * got.total["delta"]}
