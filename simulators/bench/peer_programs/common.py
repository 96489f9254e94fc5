"""What every peer's program shares: the job, the network, its training loop, and what is written in the end."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Job:
    """FedAvg on a perceptron: every device takes a round's steps on all of its examples, so no order matters.

    Attributes:
        devices: all take part in every round.
        inputs: numbers of an example.
        hidden: units.
        classes: to tell apart.
        batch: examples of a device, all of which are its minibatch.
        steps: of a round.
        rounds: one warms up, the others count.
        lr: step size.
        seed: of the data and the initial model.
        workers: processes or threads to use at once.
    """

    devices: int = 100
    inputs: int = 60
    hidden: int = 128
    classes: int = 10
    batch: int = 32
    steps: int = 5
    rounds: int = 11
    lr: float = 0.1
    seed: int = 0
    workers: int = 2


class Net(nn.Module):
    """A perceptron with one hidden layer."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.body = nn.Linear(job.inputs, job.hidden)
        self.head = nn.Linear(job.hidden, job.classes)

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, inputs)`` -> ``(batch, classes)``."""
        logits: Tensor = self.head(torch.relu(self.body(x)))
        return logits


def job_in(folder: Path) -> Job:
    """The job that a folder holds."""
    return Job(**json.loads((folder / "job.json").read_text()))


@lru_cache(1)
def data_in(folder: Path) -> tuple[Tensor, Tensor]:
    """Every device's examples: ``(devices, batch, inputs)`` and ``(devices, batch)``."""
    with np.load(folder / "data.npz") as found:
        return torch.from_numpy(found["x"]), torch.from_numpy(found["y"])


def first_in(folder: Path) -> dict[str, Tensor]:
    """The initial model."""
    with np.load(folder / "first.npz") as found:
        return {name: torch.from_numpy(found[name]) for name in found.files}


def train(net: nn.Module, x: Tensor, y: Tensor, job: Job) -> None:
    """One device's round, as everybody writes it."""
    optimizer = torch.optim.SGD(net.parameters(), lr=job.lr)
    for _ in range(job.steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()  # type: ignore[no-untyped-call]  # torch gives it no types
        optimizer.step()


def finish(folder: Path, name: str, stamps: Sequence[float], model: dict[str, Any], packages: Sequence[str]) -> None:
    """Write what a program found.

    Args:
        folder: of the job.
        name: of the contestant.
        stamps: when each round ended, by the wall clock.
        model: the final one, by tensor.
        packages: whose versions count.
    """
    arrays: dict[str, Any] = {key: np.asarray(tensor) for key, tensor in model.items()}
    np.savez(folder / f"{name}.npz", **arrays)
    found = {"stamps": list(stamps), "versions": {package: version(package) for package in packages}}
    (folder / f"{name}.json").write_text(json.dumps(found))


def now() -> float:
    """The wall clock, which processes have in common."""
    return time.time()
