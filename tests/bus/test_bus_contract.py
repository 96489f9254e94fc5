"""What every bus promises, on every transport."""

from __future__ import annotations

import asyncio

import pytest
from _world import make_bus, play, running, send, until

from edgepfl.bus import Arrived, Connected, Disconnected, Will
from edgepfl.bus.loopback import LoopbackBroker
from edgepfl.errors import BusError
from simulators.broker import BrokerHandle

Transport = BrokerHandle | LoopbackBroker
pytestmark = pytest.mark.broker


def test_filters_choose_what_arrives(transport: Transport) -> None:
    async def scenario() -> None:
        plus, rest, sender = (make_bus(transport, name) for name in ("plus", "rest", "sender"))
        plus.subscribe("f/up/+/hello")
        rest.subscribe("f/down/#")
        async with running(plus, rest, sender):
            for topic in (
                "f/up/pi/report",
                "f/up/pi/hello",
                "f/up/a/b/hello",
                "f/down/pi/task",
                "f/downs",
                "f/up/x/hello",
            ):
                await send(sender, topic, topic.encode())
            await send(sender, "f/down/end", b"end")
            assert [(await until(plus, Arrived)).topic for _ in range(2)] == ["f/up/pi/hello", "f/up/x/hello"]
            down = await until(rest, Arrived)
            assert (down.topic, down.payload) == ("f/down/pi/task", b"f/down/pi/task")
            assert await rest.receive() == Arrived("f/down/end", b"end")

    play(scenario())


def test_a_filter_can_be_added_and_removed_while_connected(transport: Transport) -> None:
    async def scenario() -> None:
        bus = make_bus(transport, "one")
        async with running(bus):
            bus.subscribe("a/+")
            bus.subscribe("b/+")
            assert bus.publish("a/1", b"first")
            assert await until(bus, Arrived) == Arrived("a/1", b"first")
            bus.unsubscribe("a/+")
            assert bus.publish("a/2", b"lost")
            assert bus.publish("b/2", b"second")
            assert await until(bus, Arrived) == Arrived("b/2", b"second")

    play(scenario())


def test_messages_keep_their_order(transport: Transport) -> None:
    async def scenario() -> None:
        sender, receiver = make_bus(transport, "sender"), make_bus(transport, "receiver")
        receiver.subscribe("n/#")
        async with running(sender, receiver):
            for number in range(500):
                await send(sender, "n/x", number.to_bytes(2, "big"))
            got = [int.from_bytes((await until(receiver, Arrived)).payload, "big") for _ in range(500)]
            assert got == list(range(500))
            assert receiver.traffic.messages_in == sender.traffic.messages_out == 500

    play(scenario())


def test_the_will_of_a_lost_bus_is_published_and_it_comes_back(transport: Transport) -> None:
    async def scenario() -> None:
        watcher = make_bus(transport, "watcher")
        watcher.subscribe("gone/+")
        mortal = make_bus(transport, "mortal", will=Will("gone/mortal", b"farewell"))
        async with running(watcher, mortal):
            mortal.drop()
            assert await until(watcher, Arrived) == Arrived("gone/mortal", b"farewell")
            assert (await until(mortal, Disconnected)).reason
            assert await mortal.receive() == Connected()
            assert mortal.publish("gone/not", b"back")
            assert await until(watcher, Arrived) == Arrived("gone/not", b"back")

    play(scenario())


def test_a_bus_that_stops_leaves_no_will_and_loses_nothing(transport: Transport) -> None:
    async def scenario() -> None:
        watcher = make_bus(transport, "watcher")
        watcher.subscribe("#")
        mortal = make_bus(transport, "mortal", will=Will("gone/mortal", b"farewell"))
        async with running(watcher):
            async with running(mortal):
                assert all(mortal.publish("last", bytes([number])) for number in range(40))
            assert not mortal.publish("late", b"")
            assert watcher.publish("end", b"")
            topics = [(await until(watcher, Arrived)).topic for _ in range(41)]
            assert sorted(topics) == ["end", *["last"] * 40]

    play(scenario())


def test_a_broker_that_comes_back_finds_everything_subscribed(transport: Transport) -> None:
    async def scenario() -> None:
        bus, other = make_bus(transport, "bus"), make_bus(transport, "other")
        bus.subscribe("a/+")
        async with running(bus, other):
            transport.stop()
            assert (await until(bus, Disconnected)).reason
            assert not bus.publish("a/x", b"nowhere")
            bus.subscribe("b/+")
            transport.start()
            assert await bus.receive() == Connected()
            await until(other, Connected)
            assert other.publish("a/x", b"1")
            assert other.publish("b/x", b"2")
            assert await bus.receive() == Arrived("a/x", b"1")
            assert await bus.receive() == Arrived("b/x", b"2")

    play(scenario())


def test_a_second_bus_of_the_same_name_throws_out_the_first(transport: Transport) -> None:
    async def scenario() -> None:
        first, second = make_bus(transport, "twin"), make_bus(transport, "twin")
        async with running(first), running(second):
            lost = await until(first, Disconnected)
            assert "another client" in lost.reason
            assert "twin" in lost.reason

    play(scenario())


def test_what_is_too_long_is_refused_and_nothing_breaks(transport: Transport) -> None:
    async def scenario() -> None:
        bus = make_bus(transport, "bus")
        bus.subscribe("a/+")
        async with running(bus):
            with pytest.raises(BusError, match="as a blob"):
                bus.publish("a/x", bytes(1 << 20))
            longest = bytes((1 << 20) - 100)
            await send(bus, "a/x", longest)
            event = await bus.receive()  # and not Disconnected
            assert isinstance(event, Arrived)
            assert event.payload == longest

    play(scenario())


def test_traffic_counts_what_crosses(transport: Transport) -> None:
    async def scenario() -> None:
        bus = make_bus(transport, "bus")
        bus.subscribe("a/+")
        async with running(bus):
            before = bus.traffic
            assert bus.publish("a/x", bytes(1000))
            await until(bus, Arrived)
            assert bus.publish("a/x", bytes(1000))  # the first one's acknowledgements are through when it comes
            await until(bus, Arrived)
            moved = bus.traffic - before
            assert (moved.messages_in, moved.messages_out) == (2, 2)
            assert 2000 < moved.bytes_in < 2100
            assert 2000 < moved.bytes_out < 2100

    play(scenario())


def test_a_bus_is_started_once(transport: Transport) -> None:
    async def scenario() -> None:
        bus = make_bus(transport, "bus")
        await bus.stop()  # nothing to stop
        async with running(bus):
            with pytest.raises(BusError, match="started already"):
                await bus.start()
            assert bus.publish("a", b"")
        waiting = asyncio.ensure_future(bus.receive())
        await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()

    play(scenario())
