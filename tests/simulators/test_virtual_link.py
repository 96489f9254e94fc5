"""A device's bus in virtual time: when messages arrive, and what either end knows of a lost connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from edgepfl.bus import Arrived, Connected, Disconnected, Event, Will
from edgepfl.bus.loopback import LoopbackBroker, LoopbackBus
from simulators import clock
from simulators.faults import CALM, Faults, Way
from simulators.virtual.link import BLOCK, LinkBus

KEEPALIVE = 45.0
SLOW = Faults(up=Way(delay=(0.1, 0.1), rate=10 * BLOCK), down=Way(delay=(0.2, 0.2), rate=5 * BLOCK))


class Ends:
    """A device, and an ear at the broker; both note when they hear what."""

    def __init__(self, network: Faults = CALM, seed: str = "seed") -> None:
        self.loop = asyncio.get_running_loop()
        self.broker = LoopbackBroker()
        self.bus = LinkBus(
            self.broker,
            "pi",
            will=Will("gone/pi", b""),
            network=network,
            seed=seed,
            keepalive=KEEPALIVE,
            back=lambda: 2.0,
        )
        self.bus.subscribe("to/pi")
        self.ear = LoopbackBus(self.broker, "ear")
        self.ear.subscribe("#")
        self.device: list[tuple[float, Event]] = []
        self.server: list[tuple[float, str]] = []

    async def start(self) -> None:
        await self.ear.start()
        await self.bus.start()
        self._tasks = [self.loop.create_task(self._device()), self.loop.create_task(self._server())]

    async def _device(self) -> None:
        while True:
            event = await self.bus.receive()
            self.device.append((round(self.loop.time(), 6), event))

    async def _server(self) -> None:
        while True:
            event = await self.ear.receive()
            if isinstance(event, Arrived):
                self.server.append((round(self.loop.time(), 6), event.topic))

    async def at(self, seconds: float) -> None:
        await asyncio.sleep(seconds - self.loop.time())


def play(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(scene(), 3600.0)

    clock.run(bounded())


def test_messages_take_their_bytes_over_the_rate_and_the_delay_and_keep_their_order() -> None:
    async def scene() -> None:
        ends = Ends(SLOW)
        await ends.start()
        await ends.at(1.0)
        for topic in ("up/1", "up/2"):
            assert ends.bus.publish(topic, b"x")  # one block: 0.1 s each on the wire, then 0.1 s on the way
        assert ends.bus.publish("up/3", bytes(2 * BLOCK))  # three blocks, with its topic
        assert ends.bus.backlog > 2 * BLOCK
        ends.broker.deliver("to/pi", b"y")
        await ends.at(3.0)
        assert [each for each in ends.server if each[1] != "to/pi"] == [(1.2, "up/1"), (1.3, "up/2"), (1.6, "up/3")]
        assert ends.device == [(0.3, Connected()), (1.4, Arrived("to/pi", b"y"))]
        assert ends.bus.backlog == 0
        assert (ends.bus.traffic.messages_out, ends.bus.traffic.messages_in) == (3, 1)

    play(scene)


def test_jitter_follows_from_the_seed_and_stays_in_its_span() -> None:
    network = Faults(up=Way(delay=(0.5, 1.5)))

    def arrivals(seed: str) -> list[float]:
        found: list[float] = []

        async def scene() -> None:
            ends = Ends(network, seed)
            await ends.start()
            for number in range(10):
                await ends.at(10.0 * (number + 1))
                ends.bus.publish("up", b"")
            await ends.at(200.0)
            found.extend(at for at, _ in ends.server)

        play(scene)
        return found

    first = arrivals("one")
    assert first == arrivals("one") != arrivals("two")
    assert all(10 * k + 0.5 <= at <= 10 * k + 1.5 for k, at in enumerate(first, 1))
    assert len(set(first)) == len(first)


def test_a_message_of_qos_0_may_be_lost_and_one_of_qos_1_is_not() -> None:
    async def scene() -> None:
        ends = Ends(Faults(up=Way(drop=0.5)))
        await ends.start()
        await ends.at(1.0)
        for number in range(100):
            ends.bus.publish(f"sure/{number}", b"")
            ends.bus.publish(f"maybe/{number}", b"", qos=0)
        await ends.at(2.0)
        topics = [topic for _, topic in ends.server]
        assert [each for each in topics if "sure" in each] == [f"sure/{number}" for number in range(100)]
        assert 20 < sum("maybe" in each for each in topics) < 80

    play(scene)


def test_a_cut_loses_what_is_on_its_way_and_the_will_comes_with_the_next_connection() -> None:
    async def scene() -> None:
        ends = Ends(SLOW)
        await ends.start()
        await ends.at(1.0)
        ends.bus.publish("up/lost", b"")
        ends.broker.deliver("to/pi", b"lost")
        ends.bus.cut("cut")
        assert not ends.bus.publish("up/refused", b"")
        await ends.at(10.0)
        assert ends.device == [(0.3, Connected()), (1.0, Disconnected("cut")), (3.3, Connected())]
        assert [each for each in ends.server if each[1] != "to/pi"] == [(3.3, "gone/pi")]
        assert ends.bus.publish("up/again", b"")
        await ends.at(100.0)
        assert ends.server[-1] == (10.2, "up/again")  # and no second will

    play(scene)


def test_the_broker_finds_out_by_itself_where_the_device_does_not_come_back() -> None:
    async def scene() -> None:
        ends = Ends()
        await ends.start()
        await ends.at(1.0)
        ends.bus.unplug("no network")
        await ends.at(100.0)
        assert ends.server == [(1.0 + KEEPALIVE, "gone/pi")]
        ends.bus.plug()
        await ends.at(103.0)
        assert ends.device[-1] == (102.0, Connected())

    play(scene)


def test_a_silent_connection_takes_everything_and_gives_nothing_until_the_keepalive() -> None:
    async def scene() -> None:
        ends = Ends()
        await ends.start()
        await ends.at(1.0)
        ends.bus.silence()
        assert ends.bus.publish("up/lost", b"")
        ends.broker.deliver("to/pi", b"lost")
        assert ends.bus.backlog > 0
        await ends.at(100.0)
        found = 1.0 + KEEPALIVE
        assert [each for each in ends.server if each[1] != "to/pi"] == [(found, "gone/pi")]
        assert [at for at, _ in ends.device] == [0.0, found, found + 2.0]
        assert ends.bus.backlog == 0

    play(scene)


def test_a_goodbye_leaves_no_will_and_loses_nothing() -> None:
    async def scene() -> None:
        ends = Ends(SLOW)
        await ends.start()
        await ends.at(1.0)
        ends.bus.publish("up/last", b"")
        await ends.bus.stop()
        await ends.at(100.0)
        assert ends.server == [(1.2, "up/last")]

    play(scene)


def test_who_vanishes_is_missed_and_is_not_there_when_the_broker_comes_back() -> None:
    async def scene() -> None:
        ends = Ends()
        await ends.start()
        await ends.at(1.0)
        ends.bus.vanish()
        ends.broker.stop()
        ends.broker.start()
        await ends.at(100.0)
        assert ends.server == []  # the will was the broker's, and died with it
        assert not ends.bus.connected

    play(scene)


@pytest.mark.parametrize("away", [1.0, 30.0])
def test_a_broker_that_comes_back_finds_its_devices_back(away: float) -> None:
    async def scene() -> None:
        ends = Ends()
        await ends.start()
        await ends.at(1.0)
        ends.broker.stop()
        await ends.at(1.0 + away)
        ends.broker.start()
        await ends.at(10.0 + away)
        assert [type(event) for _, event in ends.device] == [Connected, Disconnected, Connected]
        ends.bus.publish("up", b"")
        await ends.at(20.0 + away)
        assert [topic for _, topic in ends.server] == ["up"]

    play(scene)
