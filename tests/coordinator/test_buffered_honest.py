"""Buffered runs of devices at work by themselves, wherever the mathematics is done, against NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _aggregating import aggregating, remotely, store
from _late import models
from _scripted import Honest, config, coordinating, finished, honest_fleet, play, serving

from coordinator.lateness import Lateness
from coordinator.service import Coordinator
from coordinator.staleness import weighting_of
from coordinator.watching import line_of
from edgepfl import codec
from edgepfl.bundle import Bundle, pack
from edgepfl.bus.loopback import LoopbackBroker
from edgepfl.plan import Role
from edgepfl.tree import Tree
from edgepfl.wire import Task

pytestmark = pytest.mark.usefixtures("impatient")

ONE_BY_ONE: dict[str, Any] = {"rounds": 7, "buffer": 1, "minimum": 1, "staleness": "polynomial:0.5"}


def evaluated(bundle: Bundle, device: Honest) -> Tree:
    """The model that the last task, which evaluates, gave a device."""
    specs = {name: slot.tensors for name, slot in bundle.plan.by_role(Role.DOWN).items()}
    last = [message for message in device.seen if isinstance(message, Task)][-1]
    assert last.final
    return codec.decode(last.download.inline, specs)["w"]


async def check(bundle: Bundle, service: Coordinator, device: Honest, more: dict[str, Any]) -> None:
    """One run: each update has the one report that the journal says, weighted by how late it came."""
    settings = config(**ONE_BY_ONE, **more)
    run = service.start_run(settings, pack(bundle))
    status = await finished(service, run)
    assert (status.status, status.why) == ("done", "")
    results = service.journal.results(run)
    late = [result.staleness for result in results if result.round <= settings.rounds]
    assert max(late) > 0
    wanted = models(bundle, results, settings.seed, weighting_of(settings.staleness))
    assert len(wanted) == settings.rounds + 1
    for name, array in evaluated(bundle, device).items():
        np.testing.assert_allclose(array, wanted[-1][name], rtol=0, atol=1e-6)
    assert status.buffer is not None
    assert (status.buffer.version, status.buffer.size, status.buffer.working) == (settings.rounds, 1, None)
    assert status.buffer.staleness == Lateness(late[-1], late[-1], late[-1])
    assert f"staleness {late[-1]} to {late[-1]}" in line_of(status)


@pytest.mark.parametrize("more", [{}, {"exact": True}, {"robust": "clip:1000"}, {"server_optimizer": "sgd:lr=1"}])
def test_by_the_coordinator(more: dict[str, Any], small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        devices = honest_fleet(broker, small)
        async with coordinating(broker, tmp_path) as service, serving(*devices):
            await check(small, service, devices[0], more)

    play(scenario())


@pytest.mark.parametrize("ranks", [1, 2])
def test_by_aggregators(ranks: int, small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker, depot = LoopbackBroker(), store(tmp_path)
        devices = honest_fleet(broker, small)
        async with (
            remotely(broker, tmp_path, depot) as service,
            aggregating(broker, depot, ranks),
            serving(*devices),
        ):
            await check(small, service, devices[0], {})

    play(scenario())
