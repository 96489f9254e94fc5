"""Fixtures of the coordinator's tests: bundles, made once.

A plugin of tests/conftest.py, because mypy takes only one module of the name conftest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import msgspec
import pytest
import torch
from _s3 import S3, serving_s3

from coordinator import service
from edgepfl.algorithms.fedavg import FedAvg
from edgepfl.bundle import Bundle
from edgepfl.plan import resolve
from exporters import zoo
from exporters.build import build


@pytest.fixture(scope="session")
def small() -> Bundle:
    """FedAvg on 23 parameters: its uploads ride in their messages."""
    return build(FedAvg(), zoo.mlp(inputs=4, hidden=3, classes=2, batch=4))


@pytest.fixture(scope="session")
def wide(small: Bundle) -> Bundle:
    """The same on 22,510 parameters: its uploads go in two chunks.  No device here runs its graphs."""
    return _with_hidden(small, 300)


@pytest.fixture(scope="session")
def long(small: Bundle) -> Bundle:
    """The same on 300,010 parameters: its uploads go in nineteen chunks, more than are asked for at once."""
    return _with_hidden(small, 4000)


@pytest.fixture(scope="session")
def s3() -> Iterator[Callable[[], S3]]:
    """Gives a server that speaks S3, which starts when it is first asked for."""
    with ExitStack() as running:
        started: list[S3] = []

        def server() -> S3:
            if not started:
                started.append(running.enter_context(serving_s3()))
            return started[0]

        yield server


def _with_hidden(small: Bundle, hidden: int) -> Bundle:
    model = zoo.mlp(hidden=hidden)
    slots = resolve(FedAvg.slots, model.specs, (), small.plan.hyper)
    plan = msgspec.structs.replace(small.plan, model=model.specs, slots=slots)
    return Bundle(plan, model.parameters.map(torch.Tensor.numpy), small.graphs, small.golden)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service looks at its clock all the time: here the clock is the test's, and waiting would only take longer."""
    monkeypatch.setattr(service, "TICK", 0.002)
