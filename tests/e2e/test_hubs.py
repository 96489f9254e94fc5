"""Real processes over a real broker: a run through two hubs, one of them killed again and again, is the flat run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest
from _shared import digits, digits_bundle

from coordinator import asking
from coordinator.config import RunConfig
from coordinator.journal import Journal
from coordinator.status import RunStatus
from edgepfl.errors import RunError
from simulators.broker import BrokerHandle
from simulators.fleet import AgentFleet
from simulators.processes import Command

pytestmark = pytest.mark.broker

ROUNDS = 4
FLAT: Mapping[str, tuple[int, ...]] = {"root": (0, 1, 2, 3)}
HUBS: Mapping[str, tuple[int, ...]] = {"north": (0, 1), "south": (2,), "root": (3,)}


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.toml"
    path.write_text(text, encoding="utf-8")
    return path


def coordinator(folder: Path, url: str, hubs: tuple[str, ...]) -> Command:
    named = ", ".join(f"{hub} = 4" for hub in hubs)
    text = f'fleet = "root"\nstate = "root"\nhubs = {{{named}}}\n[broker]\nurl = "{url}"\n'
    return Command(["coordinator", "--config", str(written(folder, "root", text))], folder / "root.log")


def hub(folder: Path, url: str, name: str, devices: int) -> Command:
    text = (
        f'fleet = "{name}"\nstate = "{name}"\nminimum = {devices}\n[broker]\nurl = "{url}"\n'
        f'[parent]\nfleet = "root"\ndevice = "{name}"\n[parent.broker]\nurl = "{url}"\n'
    )
    return Command(["hub", "--config", str(written(folder, name, text))], folder / f"{name}.log")


async def asked(state: Path, request: asking.Request) -> RunStatus | str:
    """The first answer, once the coordinator is up."""
    while True:
        try:
            async for answer in asking.ask(state, request):
                assert answer.ok is not None
                return answer.ok
        except RunError as error:
            if not isinstance(error.__cause__, OSError):
                raise
        await asyncio.sleep(0.05)


async def train(folder: Path, url: str, places: Mapping[str, tuple[int, ...]], kills: int) -> tuple[str, list[object]]:
    """The final state, and what each device's last report said that it keeps or measured."""
    names = tuple(digits().devices)
    hubs = tuple(name for name in places if name != "root")
    goal = len(hubs) + len(places["root"])
    config = RunConfig(
        rounds=ROUNDS, goal=goal, minimum=goal, gather=30.0, seed=5, lease=20.0, evaluate_every=2, exact=True
    )
    folder.mkdir()  # noqa: ASYNC240  nothing else runs yet
    bundle = digits_bundle(folder)
    with ExitStack() as stack:
        root = stack.enter_context(coordinator(folder, url, hubs))
        below = {name: stack.enter_context(hub(folder, url, name, len(places[name]))) for name in hubs}
        async with AsyncExitStack() as fleets:
            for fleet, devices in places.items():
                data = {names[k]: digits().devices[names[k]] for k in devices}
                await fleets.enter_async_context(AgentFleet(url, fleet, data, folder / f"{fleet}-agents"))
            run = await asked(folder / "root", asking.Request("start", bundle=str(bundle), config=config))
            async for answer in asking.ask(folder / "root", asking.Request("watch", run=str(run))):
                root.check()
                assert isinstance(answer.ok, RunStatus)
                last = answer.ok
                if kills and last.round < ROUNDS and last.phase == "reporting":
                    kills -= 1
                    below["north"].kill()
                    below["north"].start()
    assert last.status == "done"
    assert kills == 0
    journal = Journal(folder / "root" / "journal.db")
    results = [r for r in journal.results(str(run)) if r.device not in hubs]
    journal.close()
    told = sorted(
        (r.round, r.device.rpartition("/")[2], r.examples, r.steps, sorted(r.metrics.items())) for r in results
    )
    return last.state_sha256, list(told)


def test_a_run_through_hubs_of_which_one_is_killed(broker: BrokerHandle, tmp_path: Path) -> None:
    flat = asyncio.run(train(tmp_path / "flat", broker.url, FLAT, 0))
    assert len(flat[1]) == 4 * (ROUNDS + 1)
    assert asyncio.run(train(tmp_path / "hubs", broker.url, HUBS, 3)) == flat
