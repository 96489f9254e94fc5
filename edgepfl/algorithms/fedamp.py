"""FedAMP: each device gets a centre of its own, in which models like its own weigh more.

Huang et al. 2021, "Personalized cross-silo federated learning on non-IID data", algorithm 1, with the attention
``A(x) = 1 - exp(-x / sigma)`` of its section on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from edgepfl.algorithms._base import Across, Algorithm, Cohort, Minibatch, Scalar, whole
from edgepfl.algorithms._rows import by_device, columns_of, matrix, row_of, rows_of, shaped
from edgepfl.errors import ConfigError, RunError
from edgepfl.plan import MODEL, Amend, Reduce, Slot, down, keep, up, work
from edgepfl.tree import Tensor, Tree, Trees

ROUNDING = 1e-6  # by which weights of float32 may be above 1


@dataclass(frozen=True)
class FedAMP(Algorithm):
    """``min sum_i f_i(w_i) + lam/2 sum_{i<j} A(|w_i - w_j|^2)``, ``A(x) = 1 - exp(-x / sigma)``: attentive messages.

    The paper has ``lam`` for ``lam/2``, and leaves the 2 of the gradient out of the equations that it follows::

        xi_ij = alpha A'(|w_i - w_j|^2) = alpha exp(-|w_i - w_j|^2 / sigma) / sigma       server
        u_i   = (1 - sum_{j != i} xi_ij) w_i + sum_{j != i} xi_ij w_j
        w_i   = argmin f_i(w) + lam / (2 alpha) |w - u_i|^2                               device, by steps from u_i

    The weights of the others must come to at most 1, or ``u_i`` leaves the models' hull: a run in which they do not
    fails.  ``sigma >= (m - 1) alpha`` makes sure of it.  Squared distances grow with the number of parameters, so
    ``sigma`` must too.  A device that has not trained yet counts with the initial model.

    Attributes:
        lr: step size of the local steps.
        lam: strength of the attraction (1 in PFLlib; 0.2 in fluke).
        alpha: step size of the server's message passing, and softness of the local pull (1; 0.1).
        sigma: squared distance at which the attention falls to 1/e (1; 0.1).
    """

    slots: ClassVar[Mapping[str, Slot]] = {
        "u": down(addressed=True),
        "x": work(),
        "w": keep(first=MODEL),
        "trained": up(Reduce.STACK, change=False),
    }
    evaluated: ClassVar[str] = "the device's own w_i, as it last trained it"
    revealed: ClassVar[tuple[str, ...]] = ("w",)
    grows: ClassVar[str] = "m*d + m*m"  # w, xi

    lr: Scalar = 0.05
    lam: Scalar = 1.0
    alpha: Scalar = 1.0
    sigma: float = 100.0

    def check(self) -> None:
        super().check()
        if self.alpha <= 0 or self.sigma <= 0 or self.lam < 0:
            raise ConfigError(
                f"alpha = {self.alpha}, sigma = {self.sigma}, lam = {self.lam} is no attraction",
                where="FedAMP",
                remedy="Give alpha and sigma above 0, and lam of 0 or more",
            )

    @property
    def amended(self) -> tuple[Amend, ...]:
        return (Amend("w", "trained"),)

    def begin(self, s: Trees) -> Trees:
        return {"x": s["u"]}

    def step(self, s: Trees, b: Minibatch) -> Trees:
        x, u = s["x"], s["u"]
        return {"x": x - self.lr * (b.grad(x) + self.lam / self.alpha * (x - u))}

    def finish(self, s: Trees) -> Trees:
        return {"w": s["x"], "trained": s["x"]}

    def predictor(self, s: Trees) -> Tree:
        return s["w"]

    def others(self, s: Trees) -> Trees:
        return {"cloud": s["u"]}

    def init(self, params: Tree) -> Trees:
        none = Tree({})
        return {"first": params, "w": none, "xi": none}  # w: by device, as the server last heard of it

    def send(self, state: Trees, device: str) -> Trees:
        first = state["first"]
        if device not in state["w"]:
            return {"u": first}
        own = state["w"][device]
        models = matrix(state["w"], len(own), own)
        xi = state["xi"].value[list(state["w"]).index(device)]
        return {"u": shaped(own + (xi[:, None] * (models - own)).sum(0), first)}

    def update(self, state: Trees, got: Cohort) -> Trees:
        devices = sorted({*state["w"], *got.fleet, *got.devices})
        first = row_of(state["first"])
        w = Tree(dict.fromkeys(devices, first)) | state["w"] | by_device(got.devices, rows_of(got.stack["trained"]))
        models = matrix(w, len(first), first)
        xi = self.attention(models[:, ~columns_of(state["first"], got.statistics)], got.across)
        if (heaviest := float(xi.sum(1).max())) > 1 + ROUNDING:
            raise RunError(
                f"the others' weights in a device's message come to {heaviest:.3g}, and need to be at most 1",
                where="FedAMP",
                remedy=f"Lower alpha, or raise sigma: {(len(devices) - 1) * self.alpha:.6g} is always enough",
            )
        return {**state, "w": by_device(devices, models), "xi": Tree.scalar(xi)}

    def attention(self, models: Tensor, across: Across = whole) -> Tensor:
        """``xi_ij`` of every two devices, ``(m, m)``; 0 where ``i = j``.

        Args:
            models: every device's parameters, ``(m, d)``.
            across: makes sums over their columns whole.
        """
        squared = models.new_empty((len(models), len(models)))
        for place, model in enumerate(models):
            squared[place] = ((models - model) ** 2).sum(1)
        xi: Tensor = self.alpha * (-across(squared) / self.sigma).exp() / self.sigma
        return xi.fill_diagonal_(0)
