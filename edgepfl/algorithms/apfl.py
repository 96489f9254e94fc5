"""APFL: the personal model is a mixture of a local and the global model, with an adaptive weight.

Deng et al. 2020, "Adaptive personalized federated learning", algorithm 1 and equation 11 (the weight's step).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar, TypeVar

from edgepfl.algorithms._base import SHAPES, Algorithm, Cohort, Minibatch, Predicting, Scalar
from edgepfl.plan import Reduce, Shape, Slot, TensorSpec, TensorSpecs, Weighting, down, given, keep, tell, up, work
from edgepfl.tree import Tensor, Tree, Trees


class AlphaEvery(StrEnum):
    """How often the mixture's weight moves."""

    ROUND = "round"  # on a round's first minibatch, as in the authors' code
    EPOCH = "epoch"  # on the first minibatch of every pass over the examples
    STEP = "step"  # on every minibatch, as in the paper's algorithm


class Mix(StrEnum):
    """What of the two models is mixed."""

    WEIGHTS = "weights"  # their parameters, as in the paper
    OUTPUTS = "outputs"  # what they give, as in the authors' code


@dataclass(frozen=True)
class APFL(Algorithm):
    """``min_v f_k(alpha v + (1 - alpha) w*)``, where ``w*`` is FedAvg's model.

    On each minibatch, with ``g_v`` the gradient at the mixture ``alpha v + (1 - alpha) x``::

        alpha <- clip(alpha - alpha_lr <v - x, g_v>, 0, 1)    where alpha_every says so
        x     <- x - lr grad f(x)
        v     <- v - lr alpha g_v                             alpha: the chain rule's factor

    The authors' code does another thing, here for comparison as ``mix = outputs`` with ``alpha_reg = 0.02``.  There
    ``L`` is the loss of ``alpha o(v) + (1 - alpha) o(x)``, the models' outputs, and::

        alpha <- clip(alpha - alpha_lr (<v - x, alpha dL/dv + (1 - alpha) dL/dx> + alpha_reg alpha), 0, 1)
        v     <- v - lr dL/dv

    Where the model is linear its step of ``alpha`` is ``alpha^2 + (1 - alpha)^2`` times that of the mixed parameters.

    Attributes:
        lr: step size of both models (0.1).
        alpha_lr: step size of the mixture's weight; 0 keeps it at ``alpha_first`` (as lr).
        alpha_first: the weight of the local model before the first round (0.5).
        alpha_reg: what pulls the weight to 0, which is not in the paper (0.02 in the authors' code).
        alpha_every: when the weight moves: round, epoch or step (round).
        mix: weights or outputs (outputs in the authors' code).
    """

    slots: ClassVar[Mapping[str, Slot]] = {
        "w": down(),
        "epoch": given(),
        "x": work(),
        "wait": work(Shape.SCALAR),  # how many minibatches there are before alpha moves
        "v": keep(first="w"),
        "alpha": keep(Shape.SCALAR, first="alpha_first"),
        "delta": up(Reduce.MEAN),
        "alpha_k": tell(),
    }
    evaluated: ClassVar[str] = "the mixture alpha v + (1 - alpha) w with the last w received; beside it w"
    revealed: ClassVar[tuple[str, ...]] = ("alpha",)  # told as alpha_k

    lr: Scalar = 0.05
    alpha_lr: Scalar = 0.05
    alpha_first: Scalar = 0.5
    alpha_reg: Scalar = 0.0
    alpha_every: Annotated[AlphaEvery, SHAPES] = AlphaEvery.ROUND
    mix: Annotated[Mix, SHAPES] = Mix.WEIGHTS
    weighting: Weighting = Weighting.UNIFORM

    def begin(self, s: Trees) -> Trees:
        return {"x": s["w"], "wait": s["alpha"] * 0}

    def step(self, s: Trees, b: Minibatch) -> Trees:
        x, v, alpha = s["x"], s["v"], s["alpha"].value
        due = (1 - s["wait"].value).clip(0, 1)
        slope, gradient = (_of_weights if self.mix is Mix.WEIGHTS else _of_outputs)(alpha, v, x, b)
        moved = (alpha - due * self.alpha_lr * (slope + self.alpha_reg * alpha)).clip(0, 1)
        lr = self.lr * moved if self.mix is Mix.WEIGHTS else self.lr  # that of the outputs has the factor in itself
        return {
            "x": x - self.lr * b.grad(x),
            "v": v - lr * gradient,
            "alpha": Tree.scalar(moved),
            "wait": Tree.scalar(self._wait(s, due)),
        }

    def finish(self, s: Trees) -> Trees:
        return {"delta": s["x"] - s["w"], "alpha_k": s["alpha"] * 1}

    def predictor(self, s: Trees) -> Tree:
        if self.mix is Mix.OUTPUTS:
            return _both(s["v"], s["w"], s["alpha"].value)
        personal: Tree = _mixed(s["alpha"].value, s["v"], s["w"])
        return personal

    def others(self, s: Trees) -> Trees:
        return {"global": s["w"] if self.mix is Mix.WEIGHTS else _both(s["w"], s["w"], s["alpha"].value * 0)}

    def served(self, model: TensorSpecs) -> TensorSpecs:
        if self.mix is Mix.WEIGHTS:
            return model
        both = {f"{which}.{name}": spec for which in ("v", "w") for name, spec in model.items()}
        return {**both, "alpha": TensorSpec(())}

    def predict(self, m: Predicting, params: Tree) -> Tensor:
        if self.mix is Mix.WEIGHTS:
            return m.outputs(params)
        v, w = (
            Tree({name.removeprefix(which): tensor for name, tensor in params.items() if name.startswith(which)})
            for which in ("v.", "w.")
        )
        return _mixed(params["alpha"], m.outputs(v), m.outputs(w))

    def update(self, state: Trees, got: Cohort) -> Trees:
        return {"w": state["w"] + got.total["delta"]}

    def _wait(self, s: Trees, due: Tensor) -> Tensor:
        match self.alpha_every:
            case AlphaEvery.ROUND:
                return due * 0 + 1
            case AlphaEvery.EPOCH:
                return s["wait"].value - 1 + due * s["epoch"].value
            case AlphaEvery.STEP:
                return due * 0


Mixable = TypeVar("Mixable", Tree, Tensor)


def _mixed(alpha: Tensor, v: Mixable, x: Mixable) -> Mixable:
    mixed: Mixable = alpha * v + (1 - alpha) * x
    return mixed


def _both(v: Tree, w: Tree, alpha: Tensor) -> Tree:
    """Two models and the weight of the first, as one tree."""
    both = {f"{which}.{name}": tensor for which, tree in (("v", v), ("w", w)) for name, tensor in tree.items()}
    return Tree({**both, "alpha": alpha})


def _of_weights(alpha: Tensor, v: Tree, x: Tree, b: Minibatch) -> tuple[Tensor, Tree]:
    """The slope of ``alpha``, and the gradient at the mixture."""
    gradient = b.grad(_mixed(alpha, v, x))
    return (v - x).dot(gradient), gradient


def _of_outputs(alpha: Tensor, v: Tree, x: Tree, b: Minibatch) -> tuple[Tensor, Tree]:
    """What the authors' code takes for the slope of ``alpha``, and the gradient of the local model."""
    of_v, of_x = b.outputs(v), b.outputs(x)
    at_v = b.value_and_grad(lambda tree: b.mean(b.losses(_mixed(alpha, b.outputs(tree), of_x))), v)[1]
    at_x = b.value_and_grad(lambda tree: b.mean(b.losses(_mixed(alpha, of_v, b.outputs(tree)))), x)[1]
    return (v - x).dot(_mixed(alpha, at_v, at_x)), at_v
