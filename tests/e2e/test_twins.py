"""Two agents with one name, on brokers that say why they throw a client out and on such that do not."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from msgspec import UNSET, UnsetType

from coordinator.service import Coordinator
from device_agent.data import Examples
from device_agent.runners.onnx import OnnxRunner
from device_agent.service import AgentService, Place, will
from device_agent.work import Workshop
from edgepfl.bus.mqtt import MqttBus, MqttSettings
from edgepfl.errors import IdentityError
from simulators.broker import BrokerHandle

FLEET, DEVICE = "watches", "pi-07"
PATIENCE = 60.0  # seconds; far more than anything here takes
LOOK = 0.01  # seconds between two looks at what nothing tells of


async def until(true: Callable[[], bool]) -> None:
    """Wait for what nothing tells of."""
    async with asyncio.timeout(PATIENCE):
        while not true():  # noqa: ASYNC110  see above
            await asyncio.sleep(LOOK)


def bus(broker: BrokerHandle, name: str, **given: object) -> MqttBus:
    """Impatient, so that two agents throw each other out often."""
    return MqttBus(MqttSettings(broker.url, name, backoff_base=0.1, backoff_cap=0.4), **given)  # type: ignore[arg-type]  # to a bus


@asynccontextmanager
async def coordinating(broker: BrokerHandle, folder: Path) -> AsyncIterator[Coordinator]:
    coordinator = Coordinator(FLEET, bus(broker, "coordinator"), folder / "coordinator")
    serving = asyncio.ensure_future(coordinator.run())
    try:
        yield coordinator
    finally:
        serving.cancel()
        await asyncio.wait({serving})


class Agent:
    """An agent on a board of its own."""

    def __init__(self, broker: BrokerHandle, state: Path) -> None:
        x, y = np.zeros((4, 2), np.float32), np.zeros(4, np.int64)
        self.place = Place.open(state)
        self.pool = ThreadPoolExecutor(1)
        number = self.place.store.next_session()
        self.service = AgentService(
            DEVICE,
            FLEET,
            number,
            bus=bus(broker, DEVICE, will=will(FLEET, DEVICE, number)),
            place=self.place,
            examples=Examples(x, y, x, y),
            workshop=Workshop(OnnxRunner),
            pool=self.pool,
        )
        self.serving = asyncio.ensure_future(self.service.run())

    async def end(self) -> BaseException | None:
        """Stop it, and say what had ended it before."""
        self.serving.cancel()
        [found] = await asyncio.gather(self.serving, return_exceptions=True)
        self.pool.shutdown()
        self.place.store.close()
        return None if isinstance(found, asyncio.CancelledError) else found


def other_card(first: Path, second: Path) -> None:
    """Nothing is copied: the second board has a storage of its own."""
    assert first != second


def copied_card(first: Path, second: Path) -> None:
    shutil.copytree(first, second)


@pytest.mark.parametrize("prepare", [other_card, copied_card], ids=["two cards", "a copied card"])
def test_of_two_agents_with_one_name_the_second_ends_with_words(
    broker: BrokerHandle, tmp_path: Path, prepare: Callable[[Path, Path], None]
) -> None:
    async def scenario() -> None:
        async with coordinating(broker, tmp_path) as coordinator:
            made = Agent(broker, tmp_path / "first")  # so that there is something to copy
            await until(lambda: DEVICE in coordinator.fleet.devices)
            assert await made.end() is None
            prepare(tmp_path / "first", tmp_path / "second")
            first = Agent(broker, tmp_path / "first")
            await until(lambda: coordinator.fleet.devices[DEVICE].hello.session == 2)
            second = Agent(broker, tmp_path / "second")
            async with asyncio.timeout(PATIENCE):
                await asyncio.wait({first.serving, second.serving}, return_when=asyncio.FIRST_COMPLETED)
            assert not first.serving.done()
            error = await second.end()
            assert isinstance(error, IdentityError)
            assert DEVICE in str(error)
            assert ("a card is copied" in str(error)) is (prepare is copied_card)
            assert "agent.toml" in error.remedy
            await until(lambda: coordinator.fleet.devices[DEVICE].present)
            known = coordinator.fleet.devices[DEVICE].hello
            assert known.identity == first.place.store.identity()
            assert await first.end() is None

    asyncio.run(scenario())


def test_a_new_card_and_a_restart_are_no_second_agent(broker: BrokerHandle, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinating(broker, tmp_path) as coordinator:

            def here() -> int | UnsetType:
                known = coordinator.fleet.devices.get(DEVICE)
                return known.hello.incarnation if known is not None and known.present else UNSET

            for card in ("a", "a", "b", "b", "b"):
                one = Agent(broker, tmp_path / card)
                await until(lambda own=one.service.incarnation: here() == own)  # type: ignore[misc]  # the default binds it
                assert await one.end() is None

    asyncio.run(scenario())
