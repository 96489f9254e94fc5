"""Fixtures of the coordinator's tests: bundles, made once.

A plugin of tests/conftest.py, because mypy takes only one module of the name conftest.
"""

from __future__ import annotations

import msgspec
import pytest
import torch

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
    model = zoo.mlp(hidden=300)
    slots = resolve(FedAvg.slots, model.specs, (), small.plan.hyper)
    plan = msgspec.structs.replace(small.plan, model=model.specs, slots=slots)
    return Bundle(plan, model.parameters.map(torch.Tensor.numpy), small.graphs, small.golden)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service looks at its clock all the time: here the clock is the test's, and waiting would only take longer."""
    monkeypatch.setattr(service, "TICK", 0.002)
