"""The step that users of plain torch would take: module, loss, backward, SGD."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import torch
from torch import Tensor, nn

from edgepfl.errors import RunError
from simulators.bench.job import Job, Step
from simulators.bench.models import MODELS

LR = 0.01
_COMPILERS = ("c++", "g++", "clang++")


def eager(job: Job) -> Step:
    """The usual training loop."""
    module = _module(job)
    return _loop(job, module, module)


def compiled(job: Job) -> Step:
    """The same with ``torch.compile`` around the module.

    Raises:
        RunError: there is no C++ compiler, which torch.compile needs.
    """
    if not any(map(shutil.which, _COMPILERS)):
        raise RunError("torch.compile needs a C++ compiler", where="compile", remedy="Install g++")
    module = _module(job)
    return _loop(job, module, torch.compile(module))


def minibatch(job: Job) -> tuple[Tensor, Tensor]:
    """Inputs and labels, made up."""
    generator = torch.Generator().manual_seed(0)
    (spec,) = MODELS[job.model](job.batch).inputs
    x = torch.randn(job.batch, *spec.shape, generator=generator)
    return x, torch.randint(0, 7, (job.batch,), generator=generator)  # every model has at least 7 classes


def _module(job: Job) -> nn.Module:
    module = MODELS[job.model](job.batch).module
    return module.train().requires_grad_()


def _loop(job: Job, module: nn.Module, forward: Callable[[Tensor], Tensor]) -> Step:
    x, y = minibatch(job)
    optimizer = torch.optim.SGD(module.parameters(), lr=LR)

    def step() -> float:
        torch.set_num_threads(job.threads)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(forward(x), y)
        loss.backward()  # type: ignore[no-untyped-call]  # torch gives it no types
        optimizer.step()
        return float(loss.detach())

    return step
