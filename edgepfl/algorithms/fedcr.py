"""FedCR: a shared extractor whose representations are held to what the devices agree on for each class.

Zhang et al. 2023, "FedCR: personalized federated learning based on across-client common representation with
conditional mutual information regularization", algorithm 1; where paper and authors' code differ, see ``local_poe``
and ``beta2``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar

import torch

from edgepfl.algorithms._base import SHAPES, Algorithm, Cohort, Minibatch, Predicting, Scalar
from edgepfl.algorithms._clip import clipped
from edgepfl.algorithms._extractor import EvalExtractor
from edgepfl.algorithms._normal import FLOOR, average, divergence, membership, representation
from edgepfl.errors import ConfigError
from edgepfl.plan import MODEL, Reduce, Shape, Slot, Weighting, down, given, keep, noise, up, work
from edgepfl.seeds import generator
from edgepfl.tree import Tensor, Tree, Trees

_PAIRS = ("classes", "width")


class LocalPoE(StrEnum):
    """How a device makes one expert for each class from its examples' own."""

    GEOMETRIC = "geometric"  # the geometric mean of their densities, as in the paper
    PRODUCT = "product"  # their product, as in the authors' code: more examples, a surer expert


@dataclass(frozen=True)
class FedCR(Algorithm):
    """Body ``w^f`` and personal head ``w_k^p`` are trained together on draws of a representation.

    With ``mu(x)`` and ``sigma(x)`` from the body and ``z = mu(x) + sigma(x) eps``, a device lowers the mean over its
    examples ``(x, y)`` of::

        E_eps CE(head(z), y) + beta KL( N(mu_g^y, sigma_g^y) || N(mu(x), sigma(x)) )

    where the pair of the class, ``mu_g^y`` and ``sigma_g^y``, is the server's and held fixed.  In the last local epoch
    the device makes a pair for each class ``c`` that it has, from what the body gives before each step::

        prec_k^c = mean_i 1 / sigma(x_i)^2        shift_k^c = mean_i mu(x_i) / sigma(x_i)^2

    and the server multiplies these experts and N(0, 1); a class that nobody has keeps its pair::

        Sigma^c = 1 / (1 + sum_k prec_k^c)        mu_g^c = Sigma^c sum_k shift_k^c

    A device that stops before its last epoch has no class to tell of.  Before prediction the head alone is trained on.

    Attributes:
        lr: step size of body and head (0.05 for CIFAR-100, else 0.01).
        tune_lr: step size of the head alone, on the frozen body, before prediction (as lr).
        beta: weight of the divergence (1e-4 for CIFAR-100, else 1e-3).
        noise_scale: factor of the draws' noise in training; 0 trains on the means (1).
        clip: greatest norm of a gradient; longer ones are scaled down to it (10).
        draws: representations drawn for an example in training (18 for CIFAR-100, else 15).
        draws_test: likewise in prediction, the same for all examples; 0 predicts with the mean, which is what
            infinitely many give where the head is linear (18 for CIFAR-100, else 30).
        local_poe: geometric or product.
        eval_extractor: whose body is evaluated, local or global (local).
        beta2: how far the server goes from the old pairs to the new ones, 0 to 1 (1).
    """

    slots: ClassVar[Mapping[str, Slot]] = {
        "body": down(Shape.SHARED),
        "mu_g": down(_PAIRS, first=0.0),
        "sigma_g": down(_PAIRS, first=1.0),
        "head": keep(Shape.PERSONAL, first=MODEL),
        "steps": given(),
        "planned": given(),
        "epoch": given(),
        "eps": noise("draws", "batch", "width"),
        "x": work(),
        "S0": work(_PAIRS),  # sum of 1 / sigma^2 over the examples of a class
        "S1": work(_PAIRS),  # sum of mu / sigma^2
        "N": work(("classes",)),  # how many they are
        "delta": up(Reduce.MEAN, Shape.SHARED),
        "precision": up(Reduce.SUM, _PAIRS, change=False),
        "shift": up(Reduce.SUM, _PAIRS, change=False),
        "present": up(Reduce.SUM, ("classes",), change=False),
    }
    evaluated: ClassVar[str] = "the body last received (or last trained: eval_extractor) with the device's own head"
    represented: ClassVar[bool] = True

    lr: Scalar = 0.05
    tune_lr: Scalar = 0.05
    beta: Scalar = 1e-3
    noise_scale: Scalar = 1.0
    clip: Scalar = 1e9
    draws: int = 4
    draws_test: int = 0
    local_poe: Annotated[LocalPoE, SHAPES] = LocalPoE.GEOMETRIC
    eval_extractor: Annotated[EvalExtractor, SHAPES] = EvalExtractor.GLOBAL
    beta2: float = 1.0
    weighting: Weighting = Weighting.UNIFORM

    def check(self) -> None:
        super().check()
        for name, fits, what in (
            ("draws", self.draws >= 1, "it must be at least 1; noise_scale 0 trains without noise"),
            ("draws_test", self.draws_test >= 0, "it must be 0 or more; 0 predicts with the mean"),
            ("beta", self.beta >= 0, "it would reward being far from the common representation"),
            ("noise_scale", self.noise_scale >= 0, "it must be 0 or more"),
            ("clip", self.clip > 0, "no gradient would be left"),
            ("beta2", 0 <= self.beta2 <= 1, "it must be from 0 to 1"),
        ):
            if not fits:
                raise ConfigError(f"{name} = {getattr(self, name):g} will not do: {what}", where="FedCR")

    def declared(self) -> Mapping[str, Slot]:
        own = {"own": keep(Shape.SHARED, first="body")} if self.eval_extractor is EvalExtractor.LOCAL else {}
        return {**self.slots, **own}

    def begin(self, s: Trees) -> Trees:
        none = s["mu_g"] * 0
        return {
            "x": s["body"] | s["head"],
            "S0": none,
            "S1": none,
            "N": none.map(lambda pairs: pairs.sum(1)),
        }

    def step(self, s: Trees, b: Minibatch) -> Trees:
        x = s["x"]
        gradient = b.value_and_grad(lambda tree: self._objective(tree, s, b), x)[1]
        return {"x": x - self.lr * clipped(gradient, self.clip), **self._experts(s, b)}

    def finish(self, s: Trees) -> Trees:
        x, body, head = s["x"], s["body"], s["head"]
        N = s["N"].value
        examples = N.clip(min=1).unsqueeze(1) if self.local_poe is LocalPoE.GEOMETRIC else 1
        own = {"own": x.like(body)} if self.eval_extractor is EvalExtractor.LOCAL else {}
        return {
            "delta": x.like(body) - body,
            "head": x.like(head),
            "precision": s["S0"].map(lambda S0: S0 / examples),
            "shift": s["S1"].map(lambda S1: S1 / examples),
            "present": Tree.scalar(N.clip(0, 1)),
            **own,
        }

    def tune(self, s: Trees, b: Minibatch) -> Trees:
        x = self.predictor(s)
        head = x.like(s["head"])
        mean, sigma = representation(b, x)
        gradient = b.value_and_grad(lambda tree: b.mean(self._risk(x | tree, mean, sigma, s, b)), head)[1]
        return {"x": s["x"] | (head - self.tune_lr * clipped(gradient, self.clip))}

    def predictor(self, s: Trees) -> Tree:
        return s["x"] | s["own"] if self.eval_extractor is EvalExtractor.LOCAL else s["x"]

    def predict(self, m: Predicting, params: Tree) -> Tensor:
        if self.draws_test == 0:
            return m.outputs(params)
        mean, sigma = representation(m, params)
        eps = generator(0, "fedcr", "draws_test").standard_normal((self.draws_test, mean.shape[1]))
        drawn = [torch.tensor(each).to(mean) for each in eps]
        return average([m.judge_head(params, mean + sigma * each) for each in drawn])

    def init(self, params: Tree) -> Trees:
        return {"body": params}

    def update(self, state: Trees, got: Cohort) -> Trees:
        precision, shift = got.total["precision"].value, got.total["shift"].value
        Sigma = 1 / (1 + precision.clip(min=0))  # below 0 only a device's lie can be
        seen = got.total["present"].value.unsqueeze(1) > 0

        def moved(name: str, new: Tensor) -> Tree:
            old = state[name].value
            return Tree.scalar(torch.where(seen, (1 - self.beta2) * old + self.beta2 * new, old))

        return {
            "body": state["body"] + got.total["delta"],
            "mu_g": moved("mu_g", Sigma * shift),
            "sigma_g": moved("sigma_g", Sigma.sqrt().clip(min=FLOOR)),
        }

    def _objective(self, tree: Tree, s: Trees, b: Minibatch) -> Tensor:
        mean, sigma = representation(b, tree)
        own = membership(b.y, s["mu_g"].value)
        apart = divergence(own @ s["mu_g"].value, own @ s["sigma_g"].value, mean, sigma)
        return b.mean(self._risk(tree, mean, sigma, s, b) + self.beta * apart)

    def _risk(self, tree: Tree, mean: Tensor, sigma: Tensor, s: Trees, b: Minibatch) -> Tensor:
        """Each row's loss, the mean over the draws."""
        eps = s["eps"].value
        drawn = [mean + self.noise_scale * sigma * eps[i] for i in range(self.draws)]
        return average([b.losses(b.judge_head(tree, z)) for z in drawn])

    def _experts(self, s: Trees, b: Minibatch) -> Trees:
        """The sums over each class's examples, with this minibatch's if it is of the last epoch."""
        mean, sigma = representation(b, s["x"])
        last = (s["steps"].value - (s["planned"].value - s["epoch"].value) + 1).clip(0, 1)
        rows = membership(b.y, s["mu_g"].value) * (last * b.weight).unsqueeze(1)
        precision = 1 / (sigma * sigma)
        return {
            "S0": s["S0"] + rows.T @ precision,
            "S1": s["S1"] + rows.T @ (mean * precision),
            "N": s["N"] + rows.sum(0),
        }
