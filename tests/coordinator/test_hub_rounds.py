"""Partial participation, losses, and whatever order messages come in: through hubs as without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from _levels import HUBS, NAMES, at_work, ended, flat, present, soon, two_levels
from _plans import bundle_of
from _scripted import Clock, config, play, watched

from coordinator import active
from coordinator.cohort import choose
from coordinator.rounds import State
from edgepfl.bundle import pack

pytestmark = pytest.mark.usefixtures("impatient")


def below(device: str) -> tuple[str, ...]:
    return HUBS.get(device, (device,))


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "feddyn"])
@pytest.mark.parametrize("backwards", [False, True], ids=["in order", "backwards"])
def test_some_take_part_in_any_order(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    backwards: bool,  # noqa: FBT001  by pytest, by name
) -> None:
    """A round of two of the hubs and the direct device is the flat round of whoever is with them."""
    bundle = bundle_of(name)
    settings: dict[str, Any] = {"rounds": 4, "goal": 2, "minimum": 2}
    chosen: dict[int, tuple[str, ...]] = {}

    def choosing(devices: tuple[str, ...], count: int, seed: int, number: int, attempt: int = 0) -> tuple[str, ...]:
        those = choose(devices, count, seed, number, attempt)
        if set(devices) & set(HUBS):
            chosen[number] = those
        return those

    async def scenario() -> None:
        monkeypatch.setattr(active, "choose", choosing)
        async with two_levels(bundle, tmp_path) as (world, service):
            if backwards:
                for agent in world.agents.values():
                    agent.working.clear()
            run = service.start_run(config(**settings), pack(bundle))
            if backwards:  # each device's first task waits until the one after it in the alphabet has done its own
                for device in reversed(NAMES):
                    await soon(lambda: service._active.round.phase == "reporting")
                    world.agents[device].working.set()
            with_hubs = await ended(service, run, world.agents)

        def forced(devices: tuple[str, ...], count: int, seed: int, number: int, attempt: int = 0) -> tuple[str, ...]:  # noqa: ARG001  as choose
            return tuple(sorted(member for device in chosen[number] for member in below(device)))

        monkeypatch.setattr(active, "choose", forced)
        without = await flat(bundle, tmp_path / "flat", NAMES, **{**settings, "goal": len(NAMES)})
        assert len({frozenset(those) for those in chosen.values()}) > 1
        assert with_hubs == without

    play(scenario())


def test_a_member_that_falls_silent_is_left_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        bundle, clock = bundle_of("scaffold"), Clock()
        async with two_levels(bundle, tmp_path, without=("north",)) as (world, service):
            hub = world.hub("north", clock)
            async with at_work(hub):
                await present(service, "north", "south", "fly", members=5)
                bee = world.agents["bee"]
                bee.working.clear()
                run = service.start_run(config(rounds=2), pack(bundle))
                await soon(lambda: hub._run is not None and hub._run.round.devices(State.REPORTED) == ("ant", "cat"))
                clock.now += 11.0
                await soon(lambda: hub._active.round.seats["bee"].nudged)
                clock.now += 11.0
                await watched(service, run, lambda status: status.round >= 1)
                bee.working.set()
                result = await ended(service, run, world.agents)
        assert result.status == "done"
        assert result.results[1] == ("ant", "cat", "dog", "eel", "fly")
        assert result.results[3][0] == "ant"
        assert world.agents["bee"].tasks[0].round == 1

    play(scenario())
