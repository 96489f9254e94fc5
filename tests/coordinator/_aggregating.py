"""An aggregator whose ranks are threads of this process, on a loopback bus."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from _crews import Seat, Table
from _plans import bundle_of, uploads_of
from _scripted import FLEET, Clock, attended, config

from coordinator import pieces, updater
from coordinator.aggregator.crew import Crew, Scattered
from coordinator.aggregator.job import Given, Job, Update, read_manifest
from coordinator.aggregator.member import Member
from coordinator.aggregator.service import Leader, follow
from coordinator.checkpoint import Vault
from coordinator.journal import Checkpoint
from coordinator.orders import Aggregation
from coordinator.service import Coordinator
from coordinator.storage.depot import Depot
from coordinator.storage.directory import DirectoryDepot
from edgepfl import codec
from edgepfl.bundle import pack
from edgepfl.bus.loopback import LoopbackBroker, LoopbackBus
from edgepfl.tree import Trees

DEVICES = ("ant", "bee")


@asynccontextmanager
async def aggregating(broker: LoopbackBroker, depot: Depot, ranks: int) -> AsyncIterator[None]:
    """Ranks at work; what breaks rank 0 breaks the test."""
    table = Table(ranks)
    crews = [Crew(Seat(table, rank)) for rank in range(ranks)]

    def rank(crew: Crew) -> None:
        with suppress(Scattered):
            follow(crew, Member(crew, depot))

    threads = [threading.Thread(target=rank, args=(crew,)) for crew in crews[1:]]
    for thread in threads:
        thread.start()
    leader = Leader(FLEET, LoopbackBus(broker, "aggregator"), crews[0], Member(crews[0], depot), depot)
    serving = asyncio.ensure_future(leader.run())
    try:
        yield
        if serving.done():
            serving.result()
    finally:
        serving.cancel()
        table.leave()
        with suppress(asyncio.CancelledError, Scattered):
            await serving
        for thread in threads:
            await asyncio.to_thread(thread.join)


@asynccontextmanager
async def remotely(broker: LoopbackBroker, state: Path, depot: Depot) -> AsyncIterator[Coordinator]:
    """A coordinator whose mathematics aggregators do; its fault is the test's."""
    service = Coordinator(
        FLEET, LoopbackBus(broker, "coordinator"), state, aggregation=Aggregation(depot, 1e9), clock=Clock()
    )
    async with attended(service):
        yield service


def store(path: Path) -> DirectoryDepot:
    """A store from which everything unused is deleted at once."""
    return DirectoryDepot(path / "store", grace=0.0)


def job_in(depot: Depot, folder: Path, name: str = "feddyn") -> Job:
    """The update of a first round, with all that it needs in the store."""
    bundle = bundle_of(name)
    plan = bundle.plan
    algorithm = updater.algorithm_of(plan, {})
    vault = Vault.at(folder)
    first = vault.save(algorithm, 0, updater.first_state(algorithm, plan, bundle.model)).checkpoint
    for sha256 in first.blobs:
        depot.keep(vault.private.read(sha256))
    uploads = [Given(device, 5, 3, depot.keep(codec.encode(uploads_of(plan, device, 1)))) for device in DEVICES]
    return Job("run", 1, 0, depot.keep(pack(bundle)), config(), first, Update(tuple(uploads), DEVICES, last=False))


def shards_in(depot: Depot, checkpoint: Checkpoint) -> list[Trees]:
    """The shards of a state that aggregators made."""
    return [pieces.take(depot, shard) for shard in read_manifest(depot.read(checkpoint.state)).shards]
