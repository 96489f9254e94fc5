"""A run whose mathematics aggregators do: the same as the coordinator's own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from _aggregating import aggregating, remotely, shards_in, store
from _crews import whole_of
from _plans import MODEL, bundle_of
from _scripted import Clock, Honest, config, coordinating, finished, honest_fleet, play, serving

from coordinator.checkpoint import state_in
from coordinator.storage.depot import GRACE
from edgepfl import codec
from edgepfl.bundle import Bundle, pack
from edgepfl.bus.loopback import LoopbackBroker
from edgepfl.plan import Role
from edgepfl.tree import Trees
from edgepfl.wire import Task

HEAD = {"head.weight": MODEL["head.weight"]}
BODY = {"body.bias": MODEL["body.bias"]}


def downloads(bundle: Bundle, hand: Honest) -> list[Trees]:
    """What a device was offered, all of it inline."""
    specs = {name: slot.tensors for name, slot in bundle.plan.by_role(Role.DOWN).items()}
    return [codec.decode(task.download.inline, specs) for task in hand.seen if isinstance(task, Task)]


async def locally(bundle: Bundle, state: Path, more: dict[str, Any]) -> tuple[Trees, list[Trees]]:
    """The last state, and the downloads that a device was offered."""
    broker = LoopbackBroker()
    devices = honest_fleet(broker, bundle)
    async with coordinating(broker, state) as service, serving(*devices):
        run = service.start_run(config(rounds=3, **more), pack(bundle))
        assert (await finished(service, run)).status == "done"
        found = state_in(service.vault.private, service.journal.checkpoint(run))
        return found, downloads(bundle, devices[0])


async def remote(bundle: Bundle, state: Path, ranks: int, more: dict[str, Any]) -> tuple[list[Trees], list[Trees]]:
    broker, depot = LoopbackBroker(), store(state)
    devices = honest_fleet(broker, bundle)
    async with (
        remotely(broker, state, depot) as service,
        aggregating(broker, depot, ranks),
        serving(*devices),
    ):
        run = service.start_run(config(rounds=3, **more), pack(bundle))
        status = await finished(service, run)
        assert (status.status, status.why) == ("done", "")
        found = shards_in(depot, service.journal.checkpoint(run))
        return found, downloads(bundle, devices[0])


def close(found: Trees, expected: Trees, tolerance: float) -> None:
    for slot, tree in expected.items():
        for name, tensor in tree.items():
            torch.testing.assert_close(
                torch.as_tensor(found[slot][name]), torch.as_tensor(tensor), rtol=tolerance, atol=tolerance
            )


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize(
    ("name", "settings", "more", "same"),
    [
        pytest.param("feddyn", {}, {}, True, id="feddyn"),
        pytest.param("fedcr", {}, {}, True, id="fedcr"),
        pytest.param("scaffold", {}, {"exact": True}, True, id="scaffold rebuilds a slot, and sums are exact"),
        pytest.param("fedavg", {}, {"robust": "median", "decay": {"lr": 0.5}}, True, id="the median"),
        pytest.param("fedavg", {}, {"robust": "krum:0"}, True, id="krum compares whole uploads"),
        pytest.param("fedavg", {}, {"robust": "clip:0.1"}, False, id="clipping measures them"),
        pytest.param("fedavg", {}, {"server_optimizer": "fedadam"}, True, id="an optimiser remembers"),
        pytest.param("fedavg", {}, {"codec": "topk:0.3+int8+zlib", "robust": "median"}, True, id="uploads are encoded"),
        pytest.param("fpfc", {"finalize": "cluster_mean", "lam": 0.5}, {}, False, id="fpfc"),
    ],
)
def test_the_same_as_in_one_process(
    name: str, settings: dict[str, float | str], more: dict[str, Any], *, same: bool, ranks: int, tmp_path: Path
) -> None:
    async def scenario() -> None:
        bundle = bundle_of(name, **settings)
        whole, sent = await locally(bundle, tmp_path / "local", more)
        shards, sent_too = await remote(bundle, tmp_path / "remote", ranks, more)
        assert len(shards) == ranks
        tolerance = 0 if same else 1e-5
        assert len(sent) == len(sent_too) == 4
        for one, other in zip(sent, sent_too, strict=True):
            close(one, other, tolerance)
        if name != "fpfc":  # whose engine has as many rows in a page as fit
            close(whole_of(shards, whole, MODEL, HEAD, BODY), whole, tolerance)

    play(scenario())


def test_what_a_run_left_in_the_store_is_deleted_when_it_is_old_enough(tmp_path: Path) -> None:
    async def scenario() -> None:
        bundle, broker, depot = bundle_of("fedavg"), LoopbackBroker(), store(tmp_path)
        devices = honest_fleet(broker, bundle)
        async with remotely(broker, tmp_path, depot) as service, aggregating(broker, depot, 1), serving(*devices):
            run = service.start_run(config(rounds=1), pack(bundle))
            await finished(service, run)
            depot.keep(b"what the last round put after it was tidied up")
            assert isinstance(service._clock, Clock)
            service._clock.now += GRACE
            service._look()
            await asyncio.wrap_future(service._worker.submit(int))  # it is done with what came before
            assert depot.digests() == service.journal.blobs()

    play(scenario())
