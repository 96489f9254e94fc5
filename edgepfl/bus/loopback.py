"""The bus inside one process, for tests and simulation without a broker.

It has the semantics of :mod:`edgepfl.bus.mqtt` and no concurrency of its own: a message is in the receivers' inboxes
when ``publish`` returns, so the same calls give the same events.
"""

from __future__ import annotations

import asyncio
from typing import Literal

from paho.mqtt.matcher import MQTTMatcher

from edgepfl.bus._base import Arrived, Connected, Disconnected, Event, Traffic, Will
from edgepfl.bus._inbox import Inbox
from edgepfl.bus._socket import Meter
from edgepfl.errors import BusError

MOST = 1 << 20  # bytes of one message, as over MQTT


class LoopbackBroker:
    """Carries messages between the buses attached to it, in the order of the calls."""

    def __init__(self) -> None:
        self._up = True
        self._attached: dict[str, LoopbackBus] = {}
        self._waiting: dict[str, LoopbackBus] = {}
        self._turns: dict[LoopbackBus, int] = {}  # of those attached: who came first is served first
        self._next = 0
        self._subscribed: dict[str, dict[LoopbackBus, None]] = {}  # by filter, of those attached
        self._matcher = MQTTMatcher()  # type: ignore[no-untyped-call]  # paho has no types here; the same, by topic

    @property
    def up(self) -> bool:
        """Whether it accepts connections."""
        return self._up

    def stop(self) -> None:
        """Lose every connection and refuse new ones; wills are lost with it."""
        self._up = False
        attached, self._attached = self._attached, {}
        for bus in attached.values():
            self._waiting[bus.client_id] = bus
            self._leave(bus)
            bus.lose("the broker stopped")

    def start(self) -> None:
        """Accept connections (again): every bus that waits comes back, in the order of their names."""
        self._up = True
        waiting, self._waiting = self._waiting, {}
        for _, bus in sorted(waiting.items()):
            self.attach(bus)

    def attach(self, bus: LoopbackBus) -> None:
        """Connect a bus, now or when the broker starts; another one of its name is thrown out and stays out."""
        if not self._up:
            self._waiting[bus.client_id] = bus
            return
        other = self._attached.get(bus.client_id)
        if other is not None:
            self.detach(other, f"session taken over: another client is called {bus.client_id}")
        self._attached[bus.client_id] = bus
        self._turns[bus] = self._next = self._next + 1
        for topic_filter in bus.filters:
            self.subscribe(bus, topic_filter)
        bus.join()

    def detach(self, bus: LoopbackBus, reason: str | None) -> None:
        """End a connection: with a reason it is lost and the will is published, without one it said goodbye."""
        self._waiting.pop(bus.client_id, None)
        if self._attached.get(bus.client_id) is not bus:
            return
        del self._attached[bus.client_id]
        self._leave(bus)
        if reason is not None:
            bus.lose(reason)
            if bus.will is not None:
                self.deliver(bus.will.topic, bus.will.payload)

    def deliver(self, topic: str, payload: bytes) -> None:
        """Give a message to every bus that subscribed to it, once, in the order in which they connected."""
        found = self._matcher.iter_match(topic)  # type: ignore[no-untyped-call]  # likewise
        matching: list[LoopbackBus] = [bus for buses in found for bus in buses]
        for bus in sorted(dict.fromkeys(matching), key=self._turns.__getitem__) if len(matching) > 1 else matching:
            bus.offer(topic, payload)

    def subscribe(self, bus: LoopbackBus, topic_filter: str) -> None:
        """Let a bus have what is published under a filter, as long as it is attached."""
        if bus not in self._turns:
            return
        if topic_filter not in self._subscribed:
            self._subscribed[topic_filter] = self._matcher[topic_filter] = {}
        self._subscribed[topic_filter][bus] = None

    def unsubscribe(self, bus: LoopbackBus, topic_filter: str) -> None:
        """Let it have that no longer."""
        buses = self._subscribed.get(topic_filter, {})
        buses.pop(bus, None)
        if topic_filter in self._subscribed and not buses:
            del self._subscribed[topic_filter], self._matcher[topic_filter]

    def _leave(self, bus: LoopbackBus) -> None:
        """A bus is not attached any more."""
        for topic_filter in bus.filters:
            self.unsubscribe(bus, topic_filter)
        del self._turns[bus]


class LoopbackBus:
    """A :class:`~edgepfl.bus._base.Bus` on a :class:`LoopbackBroker`.

    Args:
        broker: whom to connect to.
        client_id: unique at the broker.
        will: published when the connection is lost.
    """

    def __init__(self, broker: LoopbackBroker, client_id: str, *, will: Will | None = None) -> None:
        self.client_id = client_id
        self.will = will
        self._broker = broker
        self.filters: dict[str, None] = {}
        self._inbox = Inbox()
        self._meter = Meter()
        self._started = False
        self._connected = False

    @property
    def traffic(self) -> Traffic:
        """What MQTT packets for the same messages would have been, without keepalive and connection."""
        return self._meter.read()

    @property
    def backlog(self) -> int:
        """Nothing: what is published is there."""
        return 0

    @property
    def largest(self) -> int:
        """Bytes of the longest payload."""
        return MOST - 256  # beside its topic

    async def start(self) -> None:
        """Connect, now or when the broker starts."""
        if self._started:
            raise BusError("the bus is started already", where=self.client_id)
        self._started = True
        self._broker.attach(self)

    async def stop(self) -> None:
        """Say goodbye.  No event comes afterwards."""
        self._started = False
        self._connected = False
        self._broker.detach(self, None)

    def drop(self) -> None:
        """Cut the connection without a goodbye; it comes back at the next turn of the event loop."""
        self._broker.detach(self, "dropped")
        asyncio.get_running_loop().call_soon(self._return)

    def subscribe(self, topic_filter: str) -> None:
        """Receive what is published under this filter, now and after every reconnection."""
        self.filters[topic_filter] = None
        self._broker.subscribe(self, topic_filter)

    def unsubscribe(self, topic_filter: str) -> None:
        """Receive it no longer."""
        self.filters.pop(topic_filter, None)
        self._broker.unsubscribe(self, topic_filter)

    def publish(self, topic: str, payload: bytes, *, qos: Literal[0, 1] = 1) -> bool:
        """Send, or say False: not connected.

        Raises:
            BusError: it is longer than MQTT would carry.
        """
        size = packet_size(topic, payload, qos)
        if size > MOST:
            raise BusError(
                f"a message of {size} bytes, at most {MOST} are possible", where=topic, remedy="Send it as a blob"
            )
        if not self._connected:
            return False
        self._meter.messages_out += 1
        self._meter.bytes_out += size
        self._meter.bytes_in += 4 * qos  # its acknowledgement
        self._broker.deliver(topic, payload)
        return True

    async def receive(self) -> Event:
        """The next event."""
        return await self._inbox.take()

    # What the broker calls.

    def join(self) -> None:
        """The connection is up."""
        self._connected = True
        self._inbox.put(Connected())

    def lose(self, reason: str) -> None:
        """The connection is lost."""
        self._connected = False
        self._inbox.put(Disconnected(reason))

    def offer(self, topic: str, payload: bytes) -> None:
        """Take a message that is under one of the filters."""
        self._meter.messages_in += 1
        self._meter.bytes_in += packet_size(topic, payload, 1)
        self._inbox.put(Arrived(topic, payload))

    def _return(self) -> None:
        if self._started and not self._connected:
            self._broker.attach(self)


def packet_size(topic: str, payload: bytes, qos: int) -> int:
    """Bytes of the MQTT packet that publishes a message."""
    rest = 2 + len(topic.encode()) + 2 * qos + 1 + len(payload)
    return 1 + max(1, -(-rest.bit_length() // 7)) + rest
