"""What the MQTT bus does when the other side misbehaves: servers here are ours, and speak just enough MQTT."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from _components import absent
from _world import play, running, send, until

from edgepfl.bus import Arrived, Connected, Disconnected, mqtt
from edgepfl.bus._link import Lost
from edgepfl.bus.mqtt import MqttBus, MqttSettings
from edgepfl.errors import BusError
from simulators.broker import BrokerHandle, PrivateBroker

WELCOME = bytes([0x20, 3, 0, 0, 0])  # CONNACK


@asynccontextmanager
async def server(*answers: bytes, tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that answers the first packet of each connection with the next of ``answers``, the last one for ever."""
    seen: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            seen.append(await reader.read(1000))
            writer.write(answers[min(len(seen), len(answers)) - 1])
            await reader.read()
        except ConnectionError:
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(talk, "127.0.0.1", 0, ssl=tls)
    host, port = listening.sockets[0].getsockname()
    async with listening:
        yield f"{'mqtts' if tls else 'mqtt'}://{host}:{port}", seen


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("localhost:1883", "not the URL"),
        ("http://localhost", "not the URL"),
        ("mqtt://", "not the URL"),
        ("mqtt://localhost:port", "not a URL"),
        ("mqtt://me:secret@localhost", "Set username"),
    ],
)
def test_a_wrong_url_is_refused_and_no_password_shown(url: str, words: str) -> None:
    bus = MqttBus(MqttSettings(url, "bus", password="hidden"))  # noqa: S106  no secret
    with pytest.raises(BusError, match=words) as caught:
        asyncio.run(bus.start())
    assert "secret" not in str(caught.value)
    assert "hidden" not in repr(bus._settings)


def test_refused_credentials_are_an_error_at_once() -> None:
    async def scenario() -> None:
        async with server(bytes([0x20, 3, 0, 0x86, 0])) as (url, seen):
            bus = MqttBus(MqttSettings(url, "bus", username="me", password="wrong"))  # noqa: S106  no secret
            with pytest.raises(BusError, match="Bad user name or password"):
                await bus.start()
            assert b"wrong" in seen[0]
            assert len(seen) == 1

    play(scenario())


def test_an_unreachable_broker_is_waited_for() -> None:
    async def scenario() -> None:
        broker = PrivateBroker("mosquitto")
        broker.start()
        broker.stop()
        bus = MqttBus(MqttSettings(broker.url, "bus", backoff_cap=0.1))
        await bus.start()
        assert not bus.publish("a", b"")
        broker.start()
        assert await bus.receive() == Connected()
        await bus.stop()
        broker.close()

    play(scenario())


def test_a_half_open_connection_is_noticed() -> None:
    async def scenario() -> None:
        async with server(WELCOME) as (url, _):  # it never answers a ping
            bus = MqttBus(MqttSettings(url, "bus", keepalive=1))
            async with running(bus):
                assert "nothing came" in (await until(bus, Disconnected)).reason
                assert not bus.publish("a", b"")

    play(scenario())


def test_a_silent_server_is_given_up() -> None:
    async def scenario() -> None:
        async with server(b"", WELCOME) as (url, seen):
            bus = MqttBus(MqttSettings(url, "bus", connect_timeout=0.2))
            async with running(bus):
                assert len(seen) == 2
                assert bus.traffic.bytes_in == len(WELCOME)
                assert bus.traffic.bytes_out == sum(map(len, seen))

    play(scenario())


def test_a_takeover_is_said_and_waited_out(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with server(WELCOME + bytes([0xE0, 2, 0x8E, 0])) as (url, seen):
            bus = MqttBus(MqttSettings(url, "twin", backoff_cap=600.0))
            async with running(bus):
                assert "session taken over" in (await until(bus, Disconnected)).reason
                assert len(seen) == 1
            said = [record.getMessage() for record in caplog.records if record.name == "edgepfl.bus"]
            assert len(said) == 1
            assert 300.0 <= float(said[0].split()[-2]) <= 600.0  # "next attempt in 412.3 s"

    play(scenario())


def test_a_name_that_is_taken_again_and_again_is_an_error_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    rivalry = mqtt._Rivalry("twin")
    for now, told in ((0.0, 0), (30.0, 1), (60.0, 1), (89.9, 1), (90.0, 2), (500.0, 3)):
        rivalry.taken_over(now)
        assert len(caplog.records) == told, now
    assert "Give each device a name of its own" in caplog.text
    assert "taken over 2 times" in caplog.text


def test_waits_are_random_and_grow_up_to_the_cap() -> None:
    bus = MqttBus(MqttSettings("mqtt://localhost", "bus"))
    waits = [[bus._wait(attempt, Lost("")) for _ in range(300)] for attempt in range(12)]
    tops = [max(each) for each in waits]
    assert all(top <= min(8.0, 0.2 * 2**attempt) for attempt, top in enumerate(tops))
    assert tops[7] > 7.0
    assert min(waits[11]) < 1.0


@pytest.mark.parametrize(
    "garbage", [b"\xff\xff\xff\xff\xff\xff", bytes([0x30, 2, 0, 9]), bytes([0x90, 1, 0]), bytes([0x40, 0])]
)
def test_malformed_packets_cost_the_connection_and_nothing_else(garbage: bytes) -> None:
    async def scenario() -> None:
        async with server(WELCOME + garbage, WELCOME) as (url, seen):
            bus = MqttBus(MqttSettings(url, "bus"))
            async with running(bus):
                assert (await until(bus, Disconnected)).reason
                assert await bus.receive() == Connected()
                assert len(seen) == 2

    play(scenario())


def test_a_full_queue_is_said_and_drains(broker: BrokerHandle) -> None:
    async def scenario() -> None:
        bus = MqttBus(MqttSettings(broker.url, "bus", max_queued=10, max_queued_bytes=5000))
        bus.subscribe("a/+")
        async with running(bus):
            assert [bus.publish("a/x", b"few") for _ in range(11)] == [True] * 10 + [False]
            for _ in range(10):
                await until(bus, Arrived)
            await send(bus, "a/x", bytes(9000))  # longer than the queue, but alone
            assert not bus.publish("a/x", b"")
            assert len((await until(bus, Arrived)).payload) == 9000

    play(scenario())


def test_a_service_that_does_not_read_holds_the_broker_back_and_loses_nothing(broker: BrokerHandle) -> None:
    async def scenario() -> None:
        sender, receiver = (MqttBus(MqttSettings(broker.url, name)) for name in ("sender", "receiver"))
        receiver.subscribe("n")
        async with running(sender, receiver):
            for number in range(3000):
                await send(sender, "n", number.to_bytes(2, "big") + bytes(1000))
            assert receiver.traffic.messages_in < 2000  # it stopped reading
            got = [int.from_bytes((await until(receiver, Arrived)).payload[:2], "big") for _ in range(3000)]
            assert got == list(range(3000))

    play(scenario())


def test_many_clients_share_a_loop_without_threads(broker: BrokerHandle) -> None:
    async def scenario() -> None:
        buses = [MqttBus(MqttSettings(broker.url, f"d-{number}")) for number in range(400)]
        for bus in buses:
            bus.subscribe("all")
        await asyncio.gather(*(bus.start() for bus in buses))
        assert buses[0].publish("all", b"hello")
        got = await asyncio.gather(*(until(bus, Arrived) for bus in buses))
        assert got == [Arrived("all", b"hello")] * 400
        await asyncio.gather(*(bus.stop() for bus in buses))

    play(scenario())


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        absent("openssl", "apt install openssl")
    cert, key = (tmp_path_factory.mktemp("tls") / name for name in ("cert.pem", "key.pem"))
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    options = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run([*command.split(), *options], check=True, capture_output=True)
    return cert, key


def test_tls_proves_the_broker_and_the_client(certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=cert)
    tls.load_cert_chain(cert, key)
    tls.verify_mode = ssl.CERT_REQUIRED

    async def scenario() -> None:
        async with server(WELCOME, tls=tls) as (url, seen):
            async with running(MqttBus(MqttSettings(url, "bus", ca=cert, cert=cert, key=key))):
                assert b"MQTT" in seen[0]
            with pytest.raises(BusError, match="CERTIFICATE_VERIFY_FAILED"):
                await MqttBus(MqttSettings(url, "bus")).start()
        for wrong in (MqttSettings(url, "bus", ca=key), MqttSettings(url, "bus", cert=cert)):
            with pytest.raises(BusError, match=r"PEM|key"):
                await MqttBus(wrong).start()

    play(scenario())
