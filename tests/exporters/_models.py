"""Models small enough to export in a test, and what the tests of this room share."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from edgepfl import algorithms
from edgepfl.algorithms import Algorithm
from exporters.binding import Binding
from exporters.draws import Draws, Padding
from exporters.eager import EagerRunner
from exporters.model import Model, model_of, seeded

PADDINGS = tuple(Padding)


class TinyCnn(nn.Module):
    """One convolution, a pooling with a remainder, and a head: 45 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 3, 3, padding=1)
        self.pool = nn.MaxPool1d(2)
        self.head = nn.Linear(3 * 4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.conv(x).relu()).flatten(1))  # type: ignore[no-any-return]  # torch's untyped call


def tiny_cnn(personal: tuple[str, ...] = ("head.*",)) -> Model:
    return model_of(seeded(TinyCnn, 0), [(2, 9)], batch=4, personal=personal, title="tiny")


def around(layer: nn.Module, width: int = 6) -> Model:
    """``layer`` between two linear ones."""
    module = seeded(lambda: nn.Sequential(nn.Linear(5, width), layer, nn.Linear(width, 3)), 0)
    return model_of(module, [(5,)], batch=4)


def fedavg() -> Algorithm:
    return algorithms.build("fedavg", {})


def draws_of(binding: Binding, seed: int = 5) -> Draws:

    return Draws(binding, np.random.default_rng(seed))


def reference_of(binding: Binding) -> EagerRunner:
    return EagerRunner(binding.algorithm, binding.model, dtype=torch.float64)
