"""FedEM: each device's data is a mixture of the same few distributions, in proportions of its own.

Marfoq et al. 2021, "Federated multi-task learning under a mixture of distributions", algorithm 1 (FedEM).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

import numpy as np

from edgepfl.algorithms._base import Algorithm, Cohort, Minibatch, Predicting, Scalar
from edgepfl.errors import ConfigError
from edgepfl.plan import Reduce, Shape, Slot, TensorSpec, TensorSpecs, down, keep, up, work
from edgepfl.seeds import generator
from edgepfl.tree import Tensor, Tree, Trees

TINY = 1e-30
"""Keeps logarithms and quotients finite; no float32 that counts is so small."""


@dataclass(frozen=True)
class FedEM(Algorithm):
    """``min -sum_k sum_i log sum_m pi_km exp(-loss(theta_m; i))``: the components are shared, the ``pi_k`` personal.

    On each minibatch, with the components and the ``pi_k`` that the round began with::

        q_im <- pi_km exp(-loss(theta_m; i)), divided by its sum over m     E-step
        x_m  <- x_m - lr grad mean_i q_im loss(x_m; i)                      M-step, x_m = theta_m at first

    After the round ``pi_km`` is the mean of ``q_im`` over the examples seen in it, and each ``theta_m`` the devices'
    mean ``x_m``, weighted by examples.  The prediction is the components' mean, weighted with ``pi_k``.  Tuning
    estimates ``pi_k`` anew, as for a device that never trained.

    Component 0 starts as the given model.  The others start with the same values in another order within each tensor
    that has two dimensions or more, which are as likely a draw of independent initial weights; else all would stay
    equal.  A device holds, sends and computes as much as for so many models.

    Attributes:
        lr: step size of the components (.01 to .03, with one local epoch and minibatches of 128).
        components: how many there are (3); with 1 this is FedAvg.
    """

    slots: ClassVar[Mapping[str, Slot]] = {
        "pi": keep(("components",), first=0.0),  # declared() has its first value
        "seen": work(("components",)),  # sum of q over the examples seen
        "count": work(Shape.SCALAR),  # of the examples seen
    }
    evaluated: ClassVar[str] = "the components' mean prediction, weighted with the device's pi_k"

    lr: Scalar = 0.05
    components: int = 3

    def check(self) -> None:
        super().check()
        if self.components < 1:
            raise ConfigError(f"components = {self.components} is no number of models", where=type(self).__name__)

    def declared(self) -> Mapping[str, Slot]:
        models = {"theta": down(), "x": work(), "delta": up(Reduce.MEAN)}
        pi = keep(("components",), first=1 / self.components)
        each = {f"{name}{m}": slot for name, slot in models.items() for m in range(self.components)}
        return {**self.slots, **each, "pi": pi}

    # The device.

    def begin(self, s: Trees) -> Trees:
        nothing = {"seen": s["pi"] * 0, "count": Tree.scalar(s["pi"].value.sum() * 0)}
        return {**nothing, **{f"x{m}": theta for m, theta in enumerate(self._thetas(s))}}

    def step(self, s: Trees, b: Minibatch) -> Trees:
        q = self._responsibilities(s, b)
        moved = {f"x{m}": self._moved(s[f"x{m}"], q[m], b) for m in range(self.components)}
        return {**self._counted(s, q, b), **moved}

    def finish(self, s: Trees) -> Trees:
        deltas = {f"delta{m}": s[f"x{m}"] - theta for m, theta in enumerate(self._thetas(s))}
        return {**deltas, "pi": Tree.scalar(_estimate(s))}

    def tune(self, s: Trees, b: Minibatch) -> Trees:
        return self._counted(s, self._responsibilities(s, b), b)

    def predictor(self, s: Trees) -> Tree:
        return self._mixture(s, _estimate(s))

    def others(self, s: Trees) -> Trees:
        return {"global": self._mixture(s, s["pi"].value * 0 + 1 / self.components)}

    def served(self, model: TensorSpecs) -> TensorSpecs:
        each = {f"{m}.{name}": spec for m in range(self.components) for name, spec in model.items()}
        return {**each, "pi": TensorSpec((self.components,))}

    def predict(self, m: Predicting, params: Tree) -> Tensor:
        outputs = [m.outputs(_component(params, number)) for number in range(self.components)]
        return m.mixture(outputs, params["pi"])

    def _thetas(self, s: Trees) -> list[Tree]:
        return [s[f"theta{m}"] for m in range(self.components)]

    def _responsibilities(self, s: Trees, b: Minibatch) -> list[Tensor]:
        """``q_im`` for each component, ``(size,)``."""
        prior = s["pi"].value.clip(min=TINY).log()
        logs = [prior[m] - b.losses(b.outputs(theta)) for m, theta in enumerate(self._thetas(s))]
        most = reduce(lambda a, c: a.maximum(c), logs)
        parts = [(each - most).exp() for each in logs]
        total = sum(parts)
        return [part / total for part in parts]

    def _moved(self, x: Tree, q: Tensor, b: Minibatch) -> Tree:
        _, gradient = b.value_and_grad(lambda params: b.mean(q * b.losses(b.outputs(params))), x)
        return x - self.lr * gradient

    def _counted(self, s: Trees, q: Sequence[Tensor], b: Minibatch) -> Trees:
        seen, count = s["seen"].value, s["count"].value
        axes = seen.new_tensor(np.eye(self.components).tolist())
        return {
            "seen": Tree.scalar(seen + sum((b.weight * each).sum() * axis for each, axis in zip(q, axes, strict=True))),
            "count": Tree.scalar(count + b.weight.sum()),
        }

    def _mixture(self, s: Trees, pi: Tensor) -> Tree:
        each = {f"{m}.{name}": value for m, theta in enumerate(self._thetas(s)) for name, value in theta.items()}
        return Tree({**each, "pi": pi})

    # The server.

    def init(self, params: Tree) -> Trees:
        return {"theta0": params, **{f"theta{m}": _another_draw(params, m) for m in range(1, self.components)}}

    def update(self, state: Trees, got: Cohort) -> Trees:
        return {f"theta{m}": theta + got.total[f"delta{m}"] for m, theta in enumerate(self._thetas(state))}


def _estimate(s: Trees) -> Tensor:
    """The mean of q over the examples seen; before any, the pi that there was."""
    count = s["count"].value
    return (s["seen"].value / count.clip(min=TINY)).where(count > 0, s["pi"].value)


def _component(params: Tree, number: int) -> Tree:
    prefix = f"{number}."
    return Tree({name.removeprefix(prefix): value for name, value in params.items() if name.startswith(prefix)})


def _another_draw(params: Tree, number: int) -> Tree:
    """The same values, in another order within each tensor of two dimensions or more."""
    order = generator(0, "component", number)

    def shuffled(tensor: Tensor) -> Tensor:
        if tensor.ndim < 2:  # noqa: PLR2004  biases and scales are alike in every draw
            return tensor
        return tensor.reshape(-1)[order.permutation(tensor.numel())].reshape(tensor.shape)

    return params.map(shuffled)
