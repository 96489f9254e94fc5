"""Rounds through hubs are the flat rounds, bit for bit."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from _levels import NAMES, Agent, at_work, ended, flat, hub_service, present, two_levels, working
from _plans import bundle_of
from _scripted import FLEET, config, play

from coordinator.service import Coordinator
from edgepfl.bundle import pack
from edgepfl.bus.loopback import LoopbackBroker, LoopbackBus

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.mark.parametrize(
    ("name", "settings", "codec"),
    [
        pytest.param("fedavg", {}, "", id="by examples"),
        pytest.param("fedavg", {"weighting": "uniform"}, "", id="uniform"),
        pytest.param("ditto", {}, "topk:0.3+float16", id="ditto, encoded"),
        pytest.param("scaffold", {}, "", id="a slot that is rebuilt"),
        pytest.param("feddyn", {}, "", id="a sum over the fleet"),
        pytest.param("fedcr", {}, "", id="natural parameters"),
        pytest.param("feddc", {}, "int8+zlib", id="two corrections, encoded"),
    ],
)
def test_hubs_change_nothing(name: str, settings: dict[str, float | str], codec: str, tmp_path: Path) -> None:
    bundle = bundle_of(name, **settings)

    async def scenario() -> None:
        without = await flat(bundle, tmp_path / "flat", NAMES, rounds=3, codec=codec)
        async with two_levels(bundle, tmp_path) as (world, service):
            run = service.start_run(config(rounds=3, codec=codec), pack(bundle))
            with_hubs = await ended(service, run, world.agents)
        assert with_hubs.status == "done"
        assert with_hubs == without

    play(scenario())


def test_a_hub_may_have_hubs(tmp_path: Path) -> None:
    bundle = bundle_of("scaffold")

    async def scenario() -> None:
        without = await flat(bundle, tmp_path / "flat", ("ant", "bee", "cat", "fly"), rounds=2)
        root, north, shed = LoopbackBroker(), LoopbackBroker(), LoopbackBroker()
        places = {"ant": shed, "bee": shed, "cat": north, "fly": root}
        agents = {name: Agent(broker, name, bundle.plan, tmp_path / "agents") for name, broker in places.items()}
        service = Coordinator(FLEET, LoopbackBus(root, "coordinator"), tmp_path / "root", hubs={"north": 3})
        upper = hub_service("north", root, north, tmp_path / "north", time.monotonic, hubs={"shed": 2}, minimum=2)
        lower = hub_service("shed", north, shed, tmp_path / "shed", time.monotonic, minimum=2)
        async with at_work(service), working(*agents.values()), at_work(upper), at_work(lower):
            await present(service, "north", "fly", members=3)
            run = service.start_run(config(rounds=2, goal=2, minimum=2), pack(bundle))
            assert await ended(service, run, agents) == without
            assert service.journal.accepted(run).keys() == {
                "north", "north/cat", "north/shed/ant", "north/shed/bee", "fly",
            }  # fmt: skip

    play(scenario())
