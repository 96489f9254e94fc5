"""Promise 9: whatever is sent to it, nobody falls over, nobody reconnects in a loop, and the run goes on."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import msgpack
import pytest
from _fleet import FLEET, coordinating, devices, everyone, gathered, true
from _scale import record, scaled, seed_of
from _scripted import finished, watched

from edgepfl import wire
from edgepfl.bundle import Bundle, pack
from edgepfl.bus.mqtt import MqttBus, MqttSettings
from edgepfl.bus.refusals import UNREAD, Bounds
from edgepfl.topics import Chunk, FromDevice, ToAll, ToDevice, Topics
from edgepfl.wire import Cancel, Commit, Failed, Gone, Hello, Progress, Report, RollCall
from simulators.broker import BrokerHandle
from simulators.faults import FaultProxy
from simulators.fleet import AgentFleet

DEVICES = 3
ROUNDS = scaled(4, 40)
STEPS = 2000
FLOOD = scaled(40, 400)  # times all that
TOPICS = Topics(FLEET)
KINDS = ("hello", "gone", "report", "failed", "progress", "need", "task", "commit", "cancel", "rollcall", "strange")
MIB = 1 << 20


def poison(source: random.Random) -> dict[str, bytes]:
    """What no decoder may take, by what is wrong with it."""
    hello = wire.encode(Hello("eve", 1, ("onnx",), 5, 512, "test"))
    return {
        "nothing": b"",
        "noise": source.randbytes(100),
        "half a message": hello[: len(hello) // 2],
        "a bit more": hello + b"\0",
        "an array of 2^32 - 1": b"\xdd\xff\xff\xff\xff" + bytes(1000),
        "arrays in arrays": b"\xdc\x10\x00" * 10_000,
        "a string of 2^32 - 1": b"\xdb\xff\xff\xff\xff" + bytes(1000),
        "another protocol": msgpack.packb([7, "hello", {}]),
        "an unknown kind": msgpack.packb([1, "strange", {}]),
        "fields of the wrong types": msgpack.packb([1, "hello", {"device": 7, "session": "x"}]),
        "a number that is none": wire.encode(_report()).replace(
            b"\xcb" + b"\x3f\xf0" + bytes(6), b"\xcb\x7f\xf8" + bytes(6)
        ),
        "longer than a message": bytes(wire.MESSAGE_LIMIT + 1),
        "the longest that a broker takes": bytes(MIB - 200),
    }


def _report() -> Report:
    return Report("eve", 1, "run", 1, 0, 5, 5, None, {"loss": 1.0}, {}, "0" * 64)


def impostors() -> list[wire.Message]:
    """Good messages that are not eve's to send."""
    return [
        Hello("pi-000", 9, (), 0, 0, "test"),
        Gone("pi-000", 1),
        Failed("pi-001", 1, "run", 1, 0, "data", "gone"),
        Progress("pi-001", 1, "run", 1, 0, 3),
        Commit("run", 1, ("eve",)),
        Cancel("run", 1, 0, "because"),
        RollCall(1),
    ]


def oversized(topic: str, version: int = 5) -> bytes:
    """A CONNECT and a PUBLISH of 1 MiB + 1, which no bus of ours would send."""
    connect = b"\x00\x04MQTT" + bytes((version, 2)) + b"\x00\x1e" + b"\x00" + b"\x00\x05giant"
    body = len(topic).to_bytes(2) + topic.encode() + b"\x00\x01" + b"\x00" + bytes(MIB + 1)
    length = len(body)
    digits = bytes((length >> 7 * place & 0x7F) | (0x80 if place < 3 else 0) for place in range(4))
    return b"\x10" + bytes((len(connect),)) + connect + b"\x32" + digits + body


async def throw_giants(proxy: FaultProxy) -> None:
    """Send them to everyone, each over a connection of its own, which the broker ends."""
    host, port = proxy.url.removeprefix("mqtt://").split(":")
    for address in (FromDevice("giant", "hello"), ToDevice("pi-000", "task"), ToAll("task")):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(oversized(TOPICS.build(address)))
        while await reader.read(1000):  # CONNACK, and then the end
            pass
        writer.close()


class Eve:
    """Whoever may publish anything anywhere."""

    def __init__(self, url: str, source: random.Random) -> None:
        self.bus = MqttBus(MqttSettings(url, "eve", max_queued=100_000, max_queued_bytes=1 << 30))
        self.poison = poison(source)
        self.to_coordinator = 0
        self.to_devices = 0

    async def sent(self, topic: str, payload: bytes) -> None:
        await true(lambda: self.bus.publish(topic, payload))

    async def attack(self, bundle: str) -> None:
        """Everything once: to the coordinator, as herself and as others, and to the devices.

        Chunks that nobody wants are no offence, for they may be late: they go first, while eve is still read.
        """
        for payload in self.poison.values():
            for device in ("", "eve"):
                await self.sent(TOPICS.build(Chunk(bundle[:16], 0, device)), payload[:1000])
        for payload in self.poison.values():
            for kind in KINDS:
                await self._up(FromDevice("eve", kind), payload)
            await self._up(FromDevice("pi-000", "report"), payload)
            await self._down(ToDevice("pi-000", "task"), payload)
            await self._down(ToAll("commit"), payload)
        for message in impostors():
            await self._up(FromDevice("eve", message.KIND), wire.encode(message))
        await self._up(FromDevice("eve", "x" * 40), b"")

    async def flood(self) -> None:
        """Small ones, ever again."""
        for _ in range(FLOOD):
            for payload in self.poison.values():
                if len(payload) < 100_000:
                    await self._up(FromDevice("eve", "hello"), payload)

    async def _up(self, address: FromDevice, payload: bytes) -> None:
        self.to_coordinator += 1
        await self.sent(TOPICS.build(address), payload)

    async def _down(self, address: ToDevice | ToAll, payload: bytes) -> None:
        self.to_devices += DEVICES if isinstance(address, ToAll) else 1
        await self.sent(TOPICS.build(address), payload)


@pytest.mark.broker
@pytest.mark.promise(9)
@pytest.mark.timeout(scaled(120, 900))
def test_poison_is_refused_and_counted_and_the_run_goes_on(broker: BrokerHandle, small: Bundle, tmp_path: Path) -> None:
    seed = seed_of("poison")

    async def scenario() -> None:
        async with (
            FaultProxy(broker.url) as proxy,
            coordinating(proxy.url, tmp_path / "coordinator") as service,
            AgentFleet(proxy.url, FLEET, devices(DEVICES), tmp_path / "agents") as fleet,
        ):
            await gathered(service, DEVICES)
            eve = Eve(broker.url, random.Random(seed))
            await eve.bus.start()
            run = service.start_run(everyone(DEVICES, rounds=ROUNDS, steps=STEPS), pack(small))
            await watched(service, run, lambda status: status.phase == "reporting")
            bundle = service._active._terms.bundle.sha256
            await asyncio.gather(eve.attack(bundle), throw_giants(proxy))
            await eve.flood()
            last = await finished(service, run)
            await true(lambda: sum(service.status(run).refused.values()) >= eve.to_coordinator)
            refused = service.status(run).refused
            taken = [sum(agent.service.refused.values()) for agent in fleet.agents.values()]
            fleet.check()
            await eve.bus.stop()
            assert (last.status, last.round) == ("done", ROUNDS + 1), last
            assert len(service.journal.results(run)) == DEVICES * (ROUNDS + 1)
            assert sum(refused.values()) == eve.to_coordinator, refused
            assert {"malformed", "invalid", "too long", "protocol", "unknown kind", "topic"} <= set(refused), refused
            assert refused[UNREAD] > Bounds().most, refused
            assert sum(taken) >= eve.to_devices, taken
            giants, clients = 3, DEVICES + 1
            reconnected = proxy.tally.connections - giants - clients
            assert reconnected <= 1, proxy
            sent = eve.to_coordinator + eve.to_devices
            record(9, "poison", broker=broker.name, messages=sent, unread=refused[UNREAD], reconnected=reconnected)

    asyncio.run(scenario())
