"""pFedBreD with a spherical Gaussian prior: each device shifts the centre of its own Moreau envelope.

Shi et al. 2023, "PRIOR: personalized prior for reactivating the information overlooked in federated learning",
equations 16 and 17 (the prior means) and their algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar

from edgepfl.algorithms._base import SHAPES, Algorithm, Cohort, Minibatch, Scalar
from edgepfl.errors import ConfigError
from edgepfl.plan import Reduce, Slot, down, keep, up, work
from edgepfl.tree import Tree, Trees


class Variant(StrEnum):
    """How the prior mean follows from the device's copy of the global model."""

    FO = "fo"  # first order
    MFO = "mfo"  # memorised first order
    MG = "mg"  # memorised gradients
    MG_MAML = "mg_maml"  # the authors' code in the place of mg


class Start(StrEnum):
    """Where an inner solve starts."""

    MU = "mu"
    THETA = "theta"  # the last solve's result, as in the paper
    W = "w"  # the device's copy of the global model, as in the authors' code of mfo and mg


@dataclass(frozen=True)
class PFedBreD(Algorithm):
    """``min_w mean F_k(w)``, where ``F_k(w) = min_z f_k(z) + lam/2 |z - mu_k(w)|^2``.

    One minibatch is one of the paper's local rounds; with ``x`` the device's copy ``w_k`` of the global model and
    ``a`` the model that it uploaded when it last took part::

        fo       mu <- x - eta_a grad f(x)
        mfo      mu <- x - eta (a - theta)
        mg       mu <- x - eta_a grad f(x) - eta (a - theta)
        mg_maml  x  <- x - eta_a grad f(x - eta_a grad f(x; b1); b2),  mu <- x - eta (a - theta)

        z     <- z - inner_lr (grad f(z) + lam (z - mu))     inner_steps times
        theta <- z
        x     <- x - lr lam (mu - theta)                     grad F_k, with 1 for the derivative of mu_k

    ``b1`` and ``b2`` are halves of the minibatch; ``mg_maml`` solves on ``b2``.  The server takes
    ``(1 - beta) w + beta mean x``.  ``eta = 0`` means zero: in the authors' code it means the learning rate.

    Attributes:
        lr: step size of ``x`` (0.01).
        inner_lr: step size of the inner solve (0.01).
        lam: weight of the pull towards ``mu`` (logistic regression 15, deep networks 30).
        eta: step along the memory (0.05).
        eta_a: step along the gradient (0.05 in fo as eta; 0.01 in mg_maml).
        beta: step size of the server (1).
        variant: how the prior mean is computed.
        start: where the inner solve starts.
    """

    slots: ClassVar[Mapping[str, Slot]] = {
        "w": down(),
        "x": work(),
        "mu": work(),
        "z": work(),
        "theta": keep(first="w"),
        "a": keep(first="w"),
        "delta": up(Reduce.MEAN),
    }
    evaluated: ClassVar[str] = "theta, the personal model; beside it w"

    inner_steps: int = 5
    lr: Scalar = 0.01
    inner_lr: Scalar = 0.01
    lam: Scalar = 15.0
    eta: Scalar = 0.05
    eta_a: Scalar = 0.05
    beta: float = 1.0
    variant: Annotated[Variant, SHAPES] = Variant.MG
    start: Annotated[Start, SHAPES] = Start.MU

    def check(self) -> None:
        super().check()
        for name, step, most in (("lr", self.lr, 1), ("inner_lr", self.inner_lr, 2)):
            if step * self.lam >= most:
                raise ConfigError(
                    f"{name} * lam = {step * self.lam:g} overshoots for every loss",
                    where=type(self).__name__,
                    remedy=f"It must be below {most}",
                )

    def declared(self) -> Mapping[str, Slot]:
        """Without the memory where the variant has none."""
        return {name: slot for name, slot in self.slots.items() if name != "a" or self._remembers}

    def begin(self, s: Trees) -> Trees:
        return {"x": s["w"]}

    def prepare(self, s: Trees, b: Minibatch) -> Trees:
        x, theta = s["x"], s["theta"]
        if self.variant is Variant.MG_MAML:
            first, second = b.parts(2)
            x = x - self.eta_a * second.grad(x - self.eta_a * first.grad(x))
        mu = x
        if self.variant in {Variant.FO, Variant.MG}:
            mu = mu - self.eta_a * b.grad(x)
        if self._remembers:
            mu = mu - self.eta * (s["a"] - theta)
        starts = {Start.MU: mu, Start.THETA: theta, Start.W: x}
        return {"x": x, "mu": mu, "z": starts[self.start]}

    def inner(self, s: Trees, b: Minibatch) -> Trees:
        z, mu = s["z"], s["mu"]
        data = b.parts(2)[1] if self.variant is Variant.MG_MAML else b
        return {"z": z - self.inner_lr * (data.grad(z) + self.lam * (z - mu))}

    def step(self, s: Trees, b: Minibatch) -> Trees:  # noqa: ARG002  the minibatch was the inner solve's
        x, mu, theta = s["x"], s["mu"], s["z"]
        return {"theta": theta, "x": x - self.lr * self.lam * (mu - theta)}

    def finish(self, s: Trees) -> Trees:
        memory = {"a": s["x"]} if self._remembers else {}
        return {"delta": s["x"] - s["w"], **memory}

    def predictor(self, s: Trees) -> Tree:
        return s["theta"]

    def others(self, s: Trees) -> Trees:
        return {"global": s["w"]}

    def update(self, state: Trees, got: Cohort) -> Trees:
        return {"w": state["w"] + self.beta * got.total["delta"]}

    @property
    def _remembers(self) -> bool:
        return self.variant is not Variant.FO
