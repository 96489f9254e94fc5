"""Promise 10: a coordinator's memory does not grow with the uploads that wait, nor an agent's beyond its model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest
import torch
from _crowd import Crowd
from _fleet import FLEET, devices, everyone
from _once import once
from _scale import record, scaled

from coordinator import asking
from coordinator.config import RunConfig
from coordinator.status import RunStatus
from device_agent.footprint import own, pss
from edgepfl.algorithms.fedavg import FedAvg
from edgepfl.bundle import Bundle, pack, unpack
from edgepfl.bus.chunks import UNDER_WAY
from edgepfl.errors import RunError
from edgepfl.plan import resolve
from exporters import zoo
from exporters.build import build
from simulators.broker import BrokerHandle
from simulators.processes import Command

UPLOADS = scaled(100, 1000)
HIDDEN = 13_000  # 975,010 parameters: 3.9 MB
MIB = 1 << 20
AGENT = 64 * MIB
DOUBLE = 2  # the two models that a round takes, the sum and what comes of it, are float64


def large(small: Bundle) -> Bundle:
    """FedAvg on 3.9 MB of parameters; no device here runs its graphs."""
    model = zoo.mlp(hidden=HIDDEN)
    slots = resolve(FedAvg.slots, model.specs, (), small.plan.hyper)
    plan = msgspec.structs.replace(small.plan, model=model.specs, slots=slots)
    return Bundle(plan, model.parameters.map(torch.Tensor.numpy), small.graphs, small.golden)


def bytes_of(bundle: Bundle) -> int:
    return sum(array.nbytes for array in bundle.model.values())


class Watch:
    """The greatest proportional set size of a process while it is watched, in bytes."""

    def __init__(self, process: int) -> None:
        self._process = process
        self.most = 0
        self.own = 0  # likewise, of what it has written

    def look(self) -> int:
        found = pss(self._process)
        assert found is not None
        self.most = max(self.most, found)
        self.own = max(self.own, own(self._process) or 0)
        return found

    async def go_on(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(0.05)


@asynccontextmanager
async def going_on(*jobs: asyncio.Task[None]) -> AsyncIterator[None]:
    """Jobs in the background; a fault of one is the test's."""
    try:
        yield
        for job in jobs:
            if job.done():
                job.result()
    finally:
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)


@contextmanager
def command(folder: Path, name: str, settings: str) -> Iterator[Command]:
    """``edgepfl NAME`` in a process."""
    (folder / f"{name}.toml").write_text(settings)
    with Command([name, "--config", str(folder / f"{name}.toml")], folder / f"{name}.log") as process:
        yield process


async def run_to_its_end(state: Path, bundle: Path, config: RunConfig) -> RunStatus:
    """The last status of a new run of the coordinator there, which may just be starting."""
    request = asking.Request("start", bundle=str(bundle), config=config)
    run = ""
    while not run:
        try:
            async for answer in asking.ask(state, request):
                run = str(answer.ok)
        except RunError as error:
            if not isinstance(error.__cause__, OSError):
                raise
            await asyncio.sleep(0.1)
    last: RunStatus | None = None
    while last is None or last.status == "running":
        async for answer in asking.ask(state, asking.Request("status", run=run)):
            assert isinstance(answer.ok, RunStatus)
            last = answer.ok
        await asyncio.sleep(0.1)
    return last


@pytest.mark.broker
@pytest.mark.promise(10)
@pytest.mark.timeout(scaled(200, 1500))
def test_a_coordinators_memory_does_not_grow_with_the_uploads_that_wait(
    broker: BrokerHandle, small: Bundle, tmp_path: Path
) -> None:
    """The base is what it takes once the round's task is out and no report is in, after a round with a tiny model."""
    names = tuple(f"pi-{number:04d}" for number in range(UPLOADS))
    bundle = large(small)
    for name, each in (("small", small), ("large", bundle)):
        (tmp_path / name).write_bytes(pack(each))
    settings = f'fleet = "{FLEET}"\nstate = "state"\n[broker]\nurl = "{broker.url}"\n'

    async def scenario(process: int) -> tuple[int, int, int]:
        watch = Watch(process)
        bases: list[int] = []
        crowd = Crowd(broker.url, FLEET, names, bundle.plan, lambda: bases.append(watch.look()))
        warm = Crowd(broker.url, FLEET, names, small.plan)
        state, config = tmp_path / "state", everyone(UPLOADS, rounds=1, steps=1, deadline=1400.0)
        async with going_on(asyncio.create_task(warm.serve())):
            assert (await run_to_its_end(state, tmp_path / "small", config)).status == "done"
        async with going_on(asyncio.create_task(crowd.serve()), asyncio.create_task(watch.go_on())):
            last = await run_to_its_end(state, tmp_path / "large", config)
        assert (last.status, last.round) == ("done", 2), last
        return bases[0], watch.most, crowd.published

    with command(tmp_path, "coordinator", settings) as coordinator:
        assert coordinator.process is not None
        base, most, published = asyncio.run(scenario(coordinator.process))
    model = bytes_of(bundle)
    assert published >= UPLOADS * (model // (64 << 10))
    allowed = base + 2 * DOUBLE * model + UNDER_WAY
    record(
        10,
        "coordinator",
        broker=broker.name,
        uploads=UPLOADS,
        model_mb=round(model / 1e6, 2),
        base_mib=round(base / MIB, 1),
        most_mib=round(most / MIB, 1),
        allowed_mib=round(allowed / MIB, 1),
    )
    assert most <= allowed


@pytest.fixture(scope="module")
def trainable() -> Bundle:
    """FedAvg on 3.9 MB of parameters, with graphs."""
    model = zoo.mlp(inputs=4, hidden=(1000, 970), classes=2, batch=4)
    return unpack(once("FedAvg on a perceptron of 3.9 MB", lambda: pack(build(FedAvg(), model))))


@pytest.mark.broker
@pytest.mark.promise(10)
@pytest.mark.timeout(200)
def test_an_agents_memory_is_a_little_and_its_model(broker: BrokerHandle, trainable: Bundle, tmp_path: Path) -> None:
    (tmp_path / "bundle").write_bytes(pack(trainable))
    ((name, examples),) = devices(1).items()
    arrays = {part: getattr(examples, part) for part in ("train_x", "train_y", "test_x", "test_y")}
    np.savez(tmp_path / "data.npz", **arrays)
    table = f'fleet = "{FLEET}"\n[broker]\nurl = "{broker.url}"\n'
    agent_settings = f'device = "{name}"\nstate = "agent"\n{table}[data]\nsource = "data.npz"\n'

    async def scenario(process: int) -> Watch:
        watch = Watch(process)
        async with going_on(asyncio.create_task(watch.go_on())):
            config = everyone(1, rounds=scaled(3, 30), steps=20)
            last = await run_to_its_end(tmp_path / "state", tmp_path / "bundle", config)
        assert last.status == "done", last
        return watch

    with (
        command(tmp_path, "coordinator", f'state = "state"\n{table}'),
        command(tmp_path, "agent", agent_settings) as agent,
    ):
        assert agent.process is not None
        watch = asyncio.run(scenario(agent.process))
        resident = psutil.Process(agent.process).memory_info().rss
    model = bytes_of(trainable)
    record(
        10,
        "agent",
        broker=broker.name,
        model_mb=round(model / 1e6, 2),
        own_mib=round(watch.own / MIB, 1),
        pss_mib=round(watch.most / MIB, 1),
        rss_mib=round(resident / MIB, 1),
        allowed_mib=round((AGENT + model) / MIB, 1),
    )
    assert 0 < watch.own <= AGENT + model
