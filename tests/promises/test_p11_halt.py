"""Promise 11: a bundle that the devices cannot run stops at its canaries, and one bad device stops nothing."""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from _fleet import FLEET, coordinating, devices, everyone, gathered
from _scale import record, scaled
from _scripted import finished

from device_agent.runners import Runner
from device_agent.work import Workshop
from edgepfl.bundle import Bundle, pack
from edgepfl.errors import GraphFailed
from simulators.broker import BrokerHandle
from simulators.fleet import AgentFleet

DEVICES = scaled(10, 50)
MARK = 0.2  # the part of a cohort that may fail to load a bundle


def broken(bundle: Bundle) -> Bundle:
    """The same with graphs that no runtime can load."""
    graphs = {runtime: dict.fromkeys(files, b"no graph") for runtime, files in bundle.graphs.items()}
    return Bundle(bundle.plan, bundle.model, graphs, bundle.golden)


def old_runtime(bundle: Bundle) -> Runner:  # noqa: ARG001  whatever it is
    """A runtime that loads nothing."""
    raise GraphFailed("this opset is not known", where="graph step", remedy="Update onnxruntime")


def reached_by(state: Path) -> list[str]:
    """The devices that fetched anything: whoever has no task has no blob."""
    return sorted(folder.parent.name for folder in state.glob("*/fetched") if any(folder.iterdir()))


@pytest.mark.promise(11)
def test_a_bundle_that_cannot_load_reaches_two_devices(broker: BrokerHandle, small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            service = await stack.enter_async_context(coordinating(broker.url, tmp_path / "coordinator"))
            await stack.enter_async_context(AgentFleet(broker.url, FLEET, devices(DEVICES), tmp_path / "agents"))
            await gathered(service, DEVICES)
            run = service.start_run(everyone(DEVICES, rounds=2, steps=2, halt_failures=MARK), pack(broken(small)))
            status = await finished(service, run)
            assert (status.status, status.round) == ("failed", 0)
            assert "devices that have the task cannot run its bundle" in status.why
            reached = reached_by(tmp_path / "agents")
            record(11, "a bundle that cannot load", devices=DEVICES, reached=len(reached))
            assert 2 <= len(reached) <= max(2, DEVICES // 20 + 1)
            again = service.start_run(everyone(DEVICES, rounds=1, steps=2), pack(small))  # nobody is harmed
            assert (await finished(service, again)).status == "done"

    asyncio.run(asyncio.wait_for(scenario(), 120))


@pytest.mark.promise(11)
@pytest.mark.parametrize("bad", [0, 7])
def test_one_device_of_ten_that_cannot_run_it_stops_nothing(
    broker: BrokerHandle, small: Bundle, tmp_path: Path, bad: int
) -> None:
    names = list(devices(10))

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            service = await stack.enter_async_context(coordinating(broker.url, tmp_path / "coordinator"))
            fleet = AgentFleet(broker.url, FLEET, devices(10), tmp_path / "agents")
            agent = fleet[names[bad]]
            agent.outfit = dataclasses.replace(agent.outfit, workshop=Workshop(old_runtime))
            await stack.enter_async_context(fleet)
            await gathered(service, 10)
            config = everyone(10, minimum=9, rounds=2, steps=2, canary=0.3, gather=0.5, halt_failures=MARK)
            run = service.start_run(config, pack(small))
            status = await finished(service, run)
            assert (status.status, status.round) == ("done", 3)
            counted = {result.device for result in service.journal.results(run)}
            assert counted == set(names) - {names[bad]}
            assert service.journal.conduct(run)[names[bad]].failures >= 2

    asyncio.run(asyncio.wait_for(scenario(), 120))
