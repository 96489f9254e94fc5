"""A problem with representations: softmax regression on draws of normals whose means and scales are linear in x."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from _problems import Batch, Draw, Shapes, Softmax, Vector

from edgepfl.tree import Tree

CLASSES, WIDTH = 3, 2
DIMS = {"batch": 4, "classes": CLASSES, "width": WIDTH}
FLOOR = 1e-4  # of standard deviations
PARTS = (2 * WIDTH, 4 * 2 * WIDTH, CLASSES, WIDTH * CLASSES)  # in the order of the names


@dataclass
class RepresentedBatch(Batch):
    """A minibatch whose model has an extractor and a head."""

    def represent(self, params: Tree) -> tuple[torch.Tensor, torch.Tensor]:
        both = self.x[0] @ params["features.weight"] + params["features.bias"]
        return both[:, :WIDTH], both[:, WIDTH:]

    def judge_head(self, params: Tree, z: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = z @ params["head.weight"] + params["head.bias"]
        return logits

    def outputs(self, params: Tree) -> torch.Tensor:
        return self.judge_head(params, self.represent(params)[0])


class Represented(Softmax):
    """``head(mean(x))`` in 29 parameters; the devices' data is :class:`Softmax`'s."""

    shapes: Shapes = {  # noqa: RUF012  a constant
        "features.bias": (2 * WIDTH,),
        "features.weight": (4, 2 * WIDTH),
        "head.bias": (CLASSES,),
        "head.weight": (WIDTH, CLASSES),
    }
    personal: tuple[str, ...] = ("head.bias", "head.weight")

    def __init__(self, devices: int, *, seed: int = 0) -> None:
        super().__init__(devices, seed=seed)
        self._start = np.random.default_rng(seed + 1).normal(size=sum(PARTS))

    def batch(self, device: str, draw: Draw) -> RepresentedBatch:
        plain = super().batch(device, draw)
        return RepresentedBatch(plain.x, plain.y, plain.weight, plain.forward, plain.judge)

    def gradient(self, device: str, w: Vector, draw: Draw) -> Vector:  # noqa: ARG002  a device is its data alone
        none = np.zeros((1, len(draw.x), WIDTH))
        pairs = np.zeros((CLASSES, WIDTH)), np.ones((CLASSES, WIDTH))
        return gradient(w, draw, none, pairs, beta=0.0)


def parts_of(w: Vector) -> tuple[Vector, Vector, Vector, Vector]:
    """Bias and weight of the extractor, bias and weight of the head."""
    c, W, d, H = np.split(w, np.cumsum(PARTS)[:-1])
    return c, W.reshape(4, 2 * WIDTH), d, H.reshape(WIDTH, CLASSES)


def normals(w: Vector, x: Vector) -> tuple[Vector, Vector, Vector]:
    """Means, standard deviations and the deviations' slopes in the raw scales."""
    c, W, _, _ = parts_of(w)
    both = x @ W + c
    mean, raw = both[:, :WIDTH], both[:, WIDTH:]
    sigma = np.logaddexp(0, raw)
    return mean, np.maximum(sigma, FLOOR), (1 + np.tanh(raw / 2)) / 2 * (sigma >= FLOOR)


def gradient(w: Vector, draw: Draw, eps: Vector, pairs: tuple[Vector, Vector], beta: float) -> Vector:
    """Of FedCR's objective, by hand.

    Args:
        w: the model.
        draw: the minibatch.
        eps: the draws' noise, scaled; ``(draws, rows, WIDTH)``.
        pairs: the classes' means and standard deviations, ``(CLASSES, WIDTH)`` each.
        beta: weight of the divergence.
    """
    _, _, d, H = parts_of(w)
    mean, sigma, slope = normals(w, draw.x)
    p = draw.weight / draw.weight.sum()
    mu_g, sigma_g = (each[draw.y] for each in pairs)
    d_mean = beta * p[:, None] * (mean - mu_g) / sigma**2
    d_sigma = beta * p[:, None] * (1 / sigma - (sigma_g**2 + (mu_g - mean) ** 2) / sigma**3)
    d_d, d_H = np.zeros_like(d), np.zeros_like(H)
    for e in eps:
        z = mean + sigma * e
        logits = z @ H + d
        odds = np.exp(logits - logits.max(1, keepdims=True))
        error = (odds / odds.sum(1, keepdims=True) - np.eye(CLASSES)[draw.y]) * p[:, None] / len(eps)
        d_d += error.sum(0)
        d_H += z.T @ error
        d_mean += error @ H.T
        d_sigma += error @ H.T * e
    both = np.concatenate([d_mean, d_sigma * slope], 1)
    return np.concatenate([both.sum(0), (draw.x.T @ both).ravel(), d_d, d_H.ravel()])
