"""What a round costs the coordinator does not grow with the fleet: the broker fans it out."""

from __future__ import annotations

import asyncio
from pathlib import Path
from statistics import fmean

from _shared import digits, digits_bundle

from coordinator.config import RunConfig
from simulators.stage import Stage

ROUNDS = 4


def bytes_out(devices: int, folder: Path) -> float:
    """At the coordinator's socket, per round once every device has the bundle."""
    config = RunConfig(rounds=ROUNDS, steps=2, goal=devices, minimum=devices, evaluate_every=0, lease=30.0)

    async def run() -> float:
        with Stage(digits(devices).devices, folder) as stage:
            async with stage.fleet() as fleet:
                trained = await stage.train(fleet, digits_bundle(folder), config, lambda _: None)
        return fmean(trained.costs[number].bytes_out for number in range(2, ROUNDS + 1))

    return asyncio.run(run())


def folder(parent: Path, devices: int) -> Path:
    found = parent / str(devices)
    found.mkdir()
    return found


def test_twenty_devices_cost_the_coordinator_what_five_do(tmp_path: Path) -> None:
    few, many = (bytes_out(devices, folder(tmp_path, devices)) for devices in (5, 20))
    model = 4810 * 4  # bytes
    assert few > model
    assert many < 1.05 * few
    assert many < 1.1 * model
