"""Representations that are normal distributions, one for each number, and what FedCR does with them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from edgepfl.algorithms._base import Predicting
from edgepfl.tree import Tensor, Tree

FLOOR = 1e-4
"""The least standard deviation: so no precision is above 1e8."""


def representation(m: Predicting, params: Tree) -> tuple[Tensor, Tensor]:
    """Means and standard deviations, ``(size, width)`` each: ``softplus`` of the raw scales, without overflow."""
    mean, raw = m.represent(params)
    size = raw.abs()
    return mean, ((raw + size) / 2 + (-size).exp().log1p()).clip(min=FLOOR)


def divergence(mu_g: Tensor, sigma_g: Tensor, mu: Tensor, sigma: Tensor) -> Tensor:
    """``KL( N(mu_g, sigma_g) || N(mu, sigma) )`` of each row, ``(size,)``, in ``(size, width)``."""
    variance, agreed, apart = sigma * sigma, sigma_g * sigma_g, mu_g - mu
    return ((variance / agreed).log() + (agreed + apart * apart) / variance - 1).sum(1) / 2


def membership(y: Tensor, pairs: Tensor) -> Tensor:
    """``(size, classes)`` zeros and ones from ``(size,)`` classes, in the dtype of ``pairs``, ``(classes, width)``."""
    classes = torch.arange(pairs.shape[0], device=pairs.device)
    return (y.unsqueeze(1) == classes).to(pairs.dtype)


def average(values: Sequence[Tensor]) -> Tensor:
    """Of tensors of one shape."""
    first, *others = values
    return sum(others, first) / len(values)
