"""The fault proxy between real clients and both brokers: each fault happens, is counted, and is the only one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from edgepfl.bus import Arrived, Connected, Disconnected
from edgepfl.bus.mqtt import MqttBus, MqttSettings
from edgepfl.errors import ConfigError
from simulators.broker import BrokerHandle
from simulators.faults import CALM, FaultProxy, Faults, Way, both
from simulators.faults.command import faults_of, span
from simulators.faults.command import main as command

pytestmark = pytest.mark.broker
PATIENCE = 30.0
MANY = 60


def play(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, PATIENCE))


async def true(condition: Callable[[], object]) -> None:
    """Until a condition holds that tells nobody when it does."""
    while not condition():  # noqa: ASYNC110  a bus's room and a tally have no event
        await asyncio.sleep(0.002)


class Ends:
    """A client that sends and one that receives, both through the proxy."""

    def __init__(self, proxy: FaultProxy) -> None:
        self.proxy = proxy
        self.sender = MqttBus(MqttSettings(proxy.url, "sender", backoff_base=0.01, keepalive=1))
        self.receiver = MqttBus(MqttSettings(proxy.url, "receiver", backoff_base=0.01, keepalive=1))
        self.receiver.subscribe("t/+")

    async def send(self, payload: bytes, qos: int = 1) -> None:
        await true(lambda: self.sender.publish("t/x", payload, qos=1 if qos else 0))

    async def until(self, enough: Callable[[list[bytes]], bool]) -> list[bytes]:
        """What arrives until that is enough."""
        got: list[bytes] = []
        while not enough(got):
            event = await self.receiver.receive()
            if isinstance(event, Arrived):
                got.append(event.payload)
        return got

    async def heard(self, kind: type[Connected | Disconnected]) -> None:
        while not isinstance(await self.receiver.receive(), kind):
            pass


@contextlib.asynccontextmanager
async def ends(broker: BrokerHandle, faults: Faults = CALM, seed: int = 11) -> AsyncIterator[Ends]:
    """Two clients that connected without faults; these begin now."""
    async with FaultProxy(broker.url, seed=seed) as proxy:
        two = Ends(proxy)
        await two.receiver.start()
        await two.sender.start()
        await two.heard(Connected)
        proxy.faults = faults
        try:
            yield two
        finally:
            proxy.faults = CALM
            await two.sender.stop()
            await two.receiver.stop()


def numbered() -> list[bytes]:
    return [b"%04d" % number for number in range(MANY)]


def last(got: list[bytes]) -> bool:
    return b"end" in got


def test_a_calm_proxy_changes_nothing(broker: BrokerHandle) -> None:
    async def scenario() -> None:
        async with ends(broker) as two:
            assert two.proxy.connected == {"sender", "receiver"}
            for payload in (*numbered(), bytes(200_000), b"end"):
                await two.send(payload)
            assert await two.until(last) == [*numbered(), bytes(200_000), b"end"]
            assert two.proxy.tally.bytes > 400_000

    play(scenario())


def test_reordered_and_repeated_messages_all_arrive_over_one_connection(broker: BrokerHandle) -> None:
    async def scenario() -> None:
        async with ends(broker, both(Way(duplicate=0.3, reorder=0.3, held=(0.0, 0.05)))) as two:
            for payload in numbered():
                await two.send(payload)
            got = await two.until(lambda got: set(got) == set(numbered()))
            assert got != sorted(got), two.proxy
            assert len(got) > MANY, two.proxy
            assert two.proxy.tally.reordered > 5
            assert two.proxy.tally.duplicated > 5
            assert two.proxy.tally.connections == 2, two.proxy

    play(scenario())


def test_only_messages_that_nobody_acknowledges_are_dropped(broker: BrokerHandle) -> None:
    async def scenario() -> None:
        async with ends(broker, Faults(up=Way(drop=0.5))) as two:
            for payload in numbered():
                await two.send(payload, qos=0)
                await two.send(b"sure " + payload)
            await two.send(b"end")
            got = await two.until(last)
            sure = [each for each in got if each.startswith(b"sure")]
            assert len(sure) == MANY
            assert len(got) == 2 * MANY + 1 - two.proxy.tally.dropped
            assert 10 < two.proxy.tally.dropped < MANY - 10

    play(scenario())


def test_the_same_seed_loses_the_same_messages(broker: BrokerHandle) -> None:
    async def lost(seed: int) -> set[bytes]:
        async with ends(broker, Faults(up=Way(drop=0.3)), seed) as two:
            for payload in numbered():
                await two.send(payload, qos=0)
            await two.send(b"end")
            return set(numbered()) - set(await two.until(last))

    async def scenario() -> None:
        first = await lost(5)
        assert first
        assert await lost(5) == first
        assert await lost(6) != first

    play(scenario())


def test_a_corrupt_payload_arrives_with_one_other_bit(broker: BrokerHandle) -> None:
    async def scenario() -> None:
        async with ends(broker, Faults(down=Way(corrupt=1.0))) as two:
            await two.send(bytes(100))
            (got,) = await two.until(bool)
            assert int.from_bytes(got).bit_count() == 1
            assert two.proxy.tally.corrupted == 1

    play(scenario())


def test_a_cut_ends_a_connection_and_clients_come_back(broker: BrokerHandle) -> None:
    async def scenario() -> None:
        async with ends(broker) as two:
            assert two.proxy.cut("receiver") == 1
            await two.heard(Disconnected)
            await two.heard(Connected)
            assert two.proxy.connected == {"sender", "receiver"}
            assert (two.proxy.tally.cuts, two.proxy.tally.connections) == (1, 3)
            assert two.proxy.cut("nobody") == 0

    play(scenario())


def test_connections_are_cut_at_their_time_again_and_again(broker: BrokerHandle) -> None:
    async def scenario() -> None:
        async with ends(broker) as two:
            two.proxy.faults = Faults(cut=(0.05, 0.2))
            two.proxy.cut("receiver")
            for _ in range(4):
                await two.heard(Disconnected)
            assert two.proxy.tally.cuts >= 4, two.proxy

    play(scenario())


@pytest.mark.parametrize("way", ["up", "down"])
def test_a_half_open_connection_is_noticed_by_whoever_waits_for_an_answer(broker: BrokerHandle, way: str) -> None:
    async def scenario() -> None:
        async with ends(broker) as two:
            mute = Way(swallow=True)
            two.proxy.faults = Faults(up=mute) if way == "up" else Faults(down=mute)
            await two.heard(Disconnected)
            assert two.proxy.tally.swallowed > 0
            assert two.proxy.tally.cuts == 0

    play(scenario())


def test_a_connection_falls_silent_at_its_time(broker: BrokerHandle) -> None:
    async def scenario() -> None:
        async with ends(broker) as two:
            two.proxy.faults = Faults(silence=(0.1, 0.2))
            two.proxy.cut("receiver")
            await two.heard(Connected)
            await two.heard(Disconnected)
            assert two.proxy.tally.silences >= 1

    play(scenario())


def test_a_garbled_packet_costs_a_connection_at_most(broker: BrokerHandle) -> None:
    async def scenario() -> None:
        async with ends(broker, both(Way(garble=0.2))) as two:
            for payload in numbered()[:20]:
                await two.send(payload)
            await true(lambda: two.proxy.tally.garbled)
            two.proxy.faults = CALM
            two.proxy.cut()
            await two.heard(Connected)
            await true(lambda: two.proxy.connected == {"sender", "receiver"})
            await two.send(b"end")
            await two.until(last)

    play(scenario())


def test_a_slow_line_takes_its_time(broker: BrokerHandle) -> None:
    async def scenario() -> None:
        async with ends(broker, Faults(up=Way(rate=100_000.0))) as two:
            began = asyncio.get_running_loop().time()
            await two.send(bytes(50_000))
            await two.until(bool)
            assert asyncio.get_running_loop().time() - began >= 0.45

    play(scenario())


def test_without_a_broker_clients_are_turned_away_until_it_is_back(broker: BrokerHandle) -> None:
    async def scenario() -> None:
        async with ends(broker) as two:
            broker.kill()
            await two.heard(Disconnected)
            await true(lambda: two.proxy.tally.refused)
            broker.start()
            await two.heard(Connected)

    play(scenario())


def test_what_the_command_line_says_becomes_faults() -> None:
    from simulators.faults.command import _parser  # noqa: PLC0415  only here

    words = _parser().parse_args(
        ["--broker", "mqtt://b", "--listen", "0", "--cut", "0.3-1.2", "--delay", ".1", "--way", "up", "--drop", "0.5"]
    )
    assert faults_of(words) == Faults(up=Way(delay=(0.1, 0.1), drop=0.5), cut=(0.3, 1.2))


@pytest.mark.parametrize("text", ["", "1-", "2-1", "a", "-1", "1-2-3", "inf"])
def test_what_is_no_span_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no span"):
        span(text, "--cut", (0.0, 0.0))


@pytest.mark.parametrize("url", ["mqtts://broker", "http://broker", "broker", "mqtt://", "mqtt://b:none"])
def test_what_is_no_broker_without_tls_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        command(["--broker", url, "--listen", "0"])
