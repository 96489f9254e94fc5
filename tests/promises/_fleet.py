"""A real coordinator and real agents in this process, on a real broker."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
from _scripted import attended

from coordinator.config import RunConfig
from coordinator.service import Coordinator
from device_agent.data import Examples
from edgepfl.bus.mqtt import MqttBus, MqttSettings

FLEET = "home"


def toy_examples(number: int) -> Examples:
    """A device's data for the bundle ``small``: four inputs, two classes."""
    source = np.random.default_rng(number)
    x = source.standard_normal((20, 4), dtype=np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    return Examples(x[:16], y[:16], x[16:], y[16:])


def devices(count: int) -> dict[str, Examples]:
    """So many devices' data, by name."""
    return {f"pi-{number:03d}": toy_examples(number) for number in range(count)}


def everyone(count: int, **fields: float | bool | str) -> RunConfig:
    """Settings of a run in which every device takes part in every round, and none is given up."""
    usual = {"goal": count, "minimum": count, "gather": 5.0, "lease": 60.0, "deadline": 600.0, "evaluate_every": 0}
    return RunConfig(**{**usual, **fields})  # type: ignore[arg-type]  # whatever RunConfig takes


@asynccontextmanager
async def coordinating(url: str, state: Path) -> AsyncIterator[Coordinator]:
    """A coordinator at work; its fault is the test's."""
    settings = MqttSettings(url, f"{FLEET}_coordinator", max_queued=4096, max_queued_bytes=64 << 20)
    async with attended(Coordinator(FLEET, MqttBus(settings), state)) as service:
        yield service


async def gathered(service: Coordinator, count: int) -> None:
    """Until so many devices are here."""
    while sum(known.present for known in service.fleet.devices.values()) < count:
        changed = service._changed
        await changed.wait()


async def true(condition: Callable[[], object]) -> None:
    """Until a condition holds that has no event."""
    while not condition():  # noqa: ASYNC110  that is the point
        await asyncio.sleep(0.01)


def seconds_of_cpu() -> float:
    """What this process has used."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
