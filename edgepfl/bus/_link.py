"""One MQTT connection, from its first byte to its loss: paho-mqtt driven by an asyncio loop.

A connection that is lost is thrown away together with its paho client, and with everything paho would like to send
again: nothing of a session outlives it, here or at the broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags, MQTTMessage, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from edgepfl.bus._base import Arrived, Will
from edgepfl.bus._inbox import Inbox
from edgepfl.bus._settings import Endpoint, MqttSettings
from edgepfl.bus._socket import CountedSocket, Meter, open_socket
from edgepfl.errors import BusError

_log = logging.getLogger("edgepfl.bus")
_FILTERS = 8  # in one SUBSCRIBE: some brokers take no more
_HEADER = 16  # bytes of a PUBLISH besides topic and payload, at most
_TOPIC = 256  # bytes of a topic, at most
_READS = 64  # packets, before other clients of the loop have their turn
_TAKEN_OVER = 0x8E
# Reasons to refuse a connection that another attempt does not change: protocol, client id, password, not authorised,
# banned, authentication method.
_HOPELESS = {0x84, 0x85, 0x86, 0x87, 0x8A, 0x8C}


@dataclass(frozen=True)
class Lost:
    """Why there is no connection (any more).

    Attributes:
        reason: for a person.
        hopeless: another attempt with the same settings will fare no better.
        taken_over: another client came with our name.
    """

    reason: str
    hopeless: bool = False
    taken_over: bool = False


class _Client(Client):
    """paho over a socket that is already connected, because paho connects with a call that blocks."""

    def __init__(self, client_id: str, sock: CountedSocket) -> None:
        super().__init__(CallbackAPIVersion.VERSION2, client_id, protocol=MQTTv5, reconnect_on_failure=False)
        self._connected_socket = sock

    def _create_socket(self) -> CountedSocket:
        return self._connected_socket


class Link:
    """A connection.  ``lost`` is done when it is over, ``ready`` when every filter is subscribed."""

    def __init__(self, settings: MqttSettings, to: Endpoint, *, will: Will | None, meter: Meter, inbox: Inbox) -> None:
        self._settings = settings
        self._to = to
        self._will = will
        self._meter = meter
        self._inbox = inbox
        self._loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self.lost: asyncio.Future[Lost] = self._loop.create_future()
        self._client: _Client | None = None
        self._sock: CountedSocket | None = None
        self._filters: Sequence[str] = ()
        self._asked: set[int] = set()  # SUBSCRIBEs whose answer is awaited
        self._queued: dict[int, int] = {}  # message id to bytes of what is not sent (QoS 0) or acknowledged (QoS 1)
        self._limit = settings.max_packet
        self._ticking: asyncio.TimerHandle | None = None
        self._drained: asyncio.Future[None] | None = None
        self._flushing = False  # whether paho is about to write
        self._watched = -1  # the socket's number, while it is watched for room

    @property
    def limit(self) -> int:
        """Bytes of a packet, at most: ours, and once it is connected the broker's."""
        return self._limit

    @property
    def backlog(self) -> int:
        """Bytes of what is not sent or not acknowledged."""
        return sum(self._queued.values())

    async def open(self, filters: Sequence[str]) -> None:
        """Connect and subscribe; returns when the connection is ready or lost.

        Raises:
            OSError: no broker answers there, or its certificate does not convince.
        """
        self._filters = filters
        self._sock = CountedSocket(await open_socket(self._to.host, self._to.port, self._to.tls), self._meter)
        self._client = _Client(self._settings.client_id, self._sock)
        self._prepare(self._client)
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.ReceiveMaximum = self._settings.receive_maximum
        properties.MaximumPacketSize = self._settings.max_packet
        self._client.connect(
            self._to.host, self._to.port, self._settings.keepalive, clean_start=True, properties=properties
        )
        self._tick()
        await asyncio.wait((self.ready, self.lost), return_when=asyncio.FIRST_COMPLETED)

    def subscribe(self, filters: Sequence[str]) -> None:
        """Subscribe; a refusal ends the connection."""
        for at in range(0, len(filters), _FILTERS):
            batch = [(each, SubscribeOptions(qos=1)) for each in filters[at : at + _FILTERS]]
            _, mid = self._paho().subscribe(batch)
            if mid is not None:
                self._asked.add(mid)

    def unsubscribe(self, topic_filter: str) -> None:
        """Unsubscribe; the answer does not matter."""
        self._paho().unsubscribe(topic_filter)

    def publish(self, topic: str, payload: bytes, qos: Literal[0, 1]) -> bool:
        """Queue a message, or say False if too much is queued.

        Raises:
            BusError: it is longer than the broker takes.
        """
        if len(topic.encode()) + len(payload) + _HEADER > self._limit:
            raise BusError(
                f"a message of {len(payload)} bytes, at most {self._limit} are possible",
                where=topic,
                remedy="Send it as a blob",
            )
        if not self._roomy(len(payload)):
            return False
        info = self._paho().publish(topic, payload, qos)
        if info.rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
            return False
        self._queued[info.mid] = len(payload)
        self._meter.messages_out += 1
        return True

    def resume(self) -> None:
        """Read again after the inbox was full."""
        if self._sock is not None and not self.lost.done():
            self._loop.add_reader(self._sock.fileno(), self._read)
            self._loop.call_soon(self._read)  # what was read ahead makes no socket readable

    async def close(self, patience: float) -> None:
        """Send what is queued, say goodbye and close; all within ``patience`` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                if self._queued:
                    self._drained = self._loop.create_future()
                    await asyncio.wait((self._drained, self.lost), return_when=asyncio.FIRST_COMPLETED)
        with suppress(TimeoutError):
            async with asyncio.timeout(max(patience / 4, 0.1)):
                self._paho().disconnect()
                await asyncio.wait((self.lost,))
        self.abort("closed")

    def abort(self, reason: str) -> None:
        """Close at once, without a goodbye."""
        self._lose(Lost(reason))
        if self._ticking is not None:
            self._ticking.cancel()
        if self._client is not None:
            _detach(self._client)
        if self._sock is not None and self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
            self._loop.remove_writer(self._sock.fileno())
            self._sock.close()

    def _roomy(self, size: int) -> bool:
        if not self._queued:
            return True
        fits = sum(self._queued.values()) + size <= self._settings.max_queued_bytes
        return fits and len(self._queued) < self._settings.max_queued

    def _paho(self) -> _Client:
        if self._client is None:
            raise RuntimeError("the link is not open")
        return self._client

    def _lose(self, lost: Lost) -> None:
        if not self.lost.done():
            self.lost.set_result(lost)

    def _call(self, work: Callable[..., object], *arguments: object) -> None:
        """Do something of paho's or for paho; an error in it is the end of this connection and of nothing else."""
        if self.lost.done():
            return
        try:
            work(*arguments)
        except Exception as error:  # noqa: BLE001  a malformed packet must not end the loop that serves other clients
            _log.exception("%s: error in the MQTT client", self._settings.client_id)
            self._lose(Lost(f"error in the MQTT client ({error!r})"))

    def _read(self) -> None:
        for _ in range(_READS):
            if self._inbox.full and self._sock is not None:
                self._loop.remove_reader(self._sock.fileno())
                return
            self._call(self._paho().loop_read)
            if self.lost.done() or self._sock is None or not self._sock.pending():
                return
        self._loop.call_soon(self._read)

    def _write(self) -> None:
        self._call(self._paho().loop_write)

    def _write_soon(self) -> None:
        """Let paho write, once for all that it has by then; mostly the socket takes it, and need not be watched."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self.lost.done() or self._sock is None or self._sock.fileno() < 0:
            return
        self._write()
        if not self.lost.done() and self._paho().want_write():
            self._watched = self._sock.fileno()
            self._loop.add_writer(self._watched, self._write)

    def _written(self) -> None:
        """Watch the socket no longer: paho has nothing to write."""
        if self._watched >= 0:
            self._loop.remove_writer(self._watched)
            self._watched = -1

    def _tick(self) -> None:
        """Let paho send its pings, and notice that they are not answered."""
        client = self._paho()
        self._call(client.loop_misc)
        if not self.lost.done():
            self._ticking = self._loop.call_later((client.keepalive or 30) / 3, self._tick)

    def _prepare(self, client: _Client) -> None:
        settings = self._settings
        client.max_inflight_messages_set(settings.max_inflight)
        client.max_queued_messages_set(settings.max_queued)
        if settings.username:
            client.username_pw_set(settings.username, settings.password)
        if self._will is not None:
            client.will_set(self._will.topic, self._will.payload, qos=1)
        client.on_connect = lambda *given: self._call(self._connected, *given[2:])
        client.on_disconnect = lambda *given: self._call(self._disconnected, *given[2:4])
        client.on_subscribe = lambda *given: self._call(self._subscribed, *given[2:4])
        client.on_publish = lambda *given: self._call(self._sent, *given[2:4])
        client.on_message = lambda *given: self._call(self._arrived, given[2])
        client.on_socket_open = lambda *given: self._loop.add_reader(given[2].fileno(), self._read)
        client.on_socket_close = lambda *given: _discard(self._loop.remove_reader, given[2].fileno())
        client.on_socket_register_write = lambda *_: self._write_soon()
        client.on_socket_unregister_write = lambda *_: self._written()

    # What paho reports.  None of these may close the socket: paho holds a lock around them.

    def _connected(self, _flags: ConnectFlags, reason: ReasonCode, properties: Properties) -> None:
        if reason.is_failure:
            self._lose(Lost(f"refused: {reason}", hopeless=reason.value in _HOPELESS))
            return
        self._limit = min(self._limit, getattr(properties, "MaximumPacketSize", self._limit))
        self.subscribe(self._filters)
        if not self._asked:
            self.ready.set_result(None)

    def _disconnected(self, flags: DisconnectFlags, reason: ReasonCode) -> None:
        taken_over = reason.value == _TAKEN_OVER
        if taken_over:
            text = f"session taken over: another client is called {self._settings.client_id}"
        elif flags.is_disconnect_packet_from_server:
            text = f"ended by the broker: {reason}"
        elif reason == "Keep alive timeout":
            text = "connection lost: nothing came from the broker any more"
        else:  # many brokers do not say that they close a connection because another client took its name
            text = f"connection lost: network, broker, or another client that is called {self._settings.client_id}"
        self._lose(Lost(text, taken_over=taken_over))

    def _subscribed(self, mid: int, reasons: Sequence[ReasonCode]) -> None:
        self._asked.discard(mid)
        for reason in reasons:
            if reason.is_failure:
                self._lose(Lost(f"subscription refused: {reason}", hopeless=True))
                return
        if not self._asked and not self.ready.done():
            self.ready.set_result(None)

    def _sent(self, mid: int, reason: ReasonCode) -> None:
        if reason.is_failure:
            _log.warning("%s: the broker does not take a message: %s", self._settings.client_id, reason)
        self._queued.pop(mid, None)
        if not self._queued and self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def _arrived(self, message: MQTTMessage) -> None:
        try:
            topic = message.topic
        except UnicodeDecodeError:
            _log.warning("%s: a topic that is no UTF-8 is ignored", self._settings.client_id)
            return
        self._meter.messages_in += 1
        self._inbox.put(Arrived(topic, bytes(message.payload)))


def largest_payload(packet: int) -> int:
    """Bytes that a packet has room for beside its topic, which may be any of ours."""
    return max(0, packet - _HEADER - _TOPIC)


def _discard(remove: Callable[[int], bool], handle: int) -> None:
    remove(handle)


def _detach(client: Client) -> None:
    for name in ("connect", "disconnect", "subscribe", "publish", "message"):
        setattr(client, f"on_{name}", None)
    for name in ("open", "close", "register_write", "unregister_write"):
        setattr(client, f"on_socket_{name}", None)
