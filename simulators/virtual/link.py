"""A device's bus over a link of its own: latency, jitter, rate and loss in virtual time, cuts, and silence.

As over MQTT on TCP, what is sent arrives in order, and a message of QoS 1 is lost only together with its connection;
one of QoS 0 may be lost alone.  Bytes are counted in blocks, so that a version's longer name changes no time.

What the two ends know of a connection that is lost differs::

    cut, unplugged    the device notices at once; the broker after the keepalive, or when the device is back
    silent            both notice after the keepalive; until then each sends into the void
    vanished          there is no device any more; the broker notices as for a cut
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Literal

from edgepfl.bus import Arrived, Connected, Disconnected, Event, Traffic, Will
from edgepfl.bus._inbox import Inbox
from edgepfl.bus._socket import Meter
from edgepfl.bus.loopback import MOST, LoopbackBroker, LoopbackBus, packet_size
from edgepfl.errors import BusError
from simulators.faults import Faults, Way
from simulators.faults.fate import Fates

BLOCK = 1024  # bytes
MOST_BACKLOG = 4 << 20  # bytes, as over MQTT
_ACKNOWLEDGED = 4  # bytes
_KEEPALIVE = "nothing was heard for the keepalive"


class Pipe:
    """One direction of a link.

    Args:
        name: of its draws, with the seed in it.
        way: its delays, rate and loss.
        now: the time.
    """

    def __init__(self, name: str, way: Way, now: Callable[[], float]) -> None:
        self.way = way
        self._fates = Fates(name)
        self._now = now
        self._free = 0.0  # when it can take the next byte
        self._last = 0.0  # when the last packet arrives

    def carry(self, size: int) -> float:
        """When a packet arrives that is sent now."""
        blocks = -(-size // BLOCK) * BLOCK
        self._free = max(self._free, self._now()) + (blocks / self.way.rate if self.way.rate else 0.0)
        after = math.nextafter(self._last, math.inf)  # two timers of one time go off in any order
        self._last = max(after, self._free + self._fates.next(self.way).delay)
        return self._last

    def loses(self, qos: int) -> bool:
        """Whether a message is lost on it."""
        return qos == 0 and self.way.drop > 0 and self._fates.next_publish(self.way).dropped

    def clear(self) -> None:
        """A new connection: nothing is on its way."""
        self._free = self._last = 0.0


class _End(LoopbackBus):
    """The broker's end of one connection; it may outlive the device's."""

    def __init__(self, broker: LoopbackBroker, bus: LinkBus, will: Will, filters: dict[str, None]) -> None:
        super().__init__(broker, bus.client_id, will=will)
        self.filters = filters
        self.alive = True
        self.silent = False
        self._bus = bus

    def join(self) -> None:
        self._bus.joined(self)

    def lose(self, reason: str) -> None:
        self.alive = False
        self._bus.lost(self, reason)

    def offer(self, topic: str, payload: bytes) -> None:
        if self.alive and not self.silent:
            self._bus.offered(self, topic, payload)


class LinkBus:
    """A :class:`~edgepfl.bus.Bus` whose messages take virtual time.

    Args:
        broker: whom to connect to.
        client_id: unique at the broker.
        will: published when the broker finds the connection lost.
        network: the link's faults.
        seed: name of the link's draws.
        keepalive: seconds after which a dead connection is found.
        back: gives the seconds until the next attempt to connect.
        plugged: whether there is a network.
    """

    def __init__(
        self,
        broker: LoopbackBroker,
        client_id: str,
        *,
        will: Will,
        network: Faults,
        seed: str,
        keepalive: float,
        back: Callable[[], float],
        plugged: bool = True,
    ) -> None:
        self.client_id = client_id
        self._broker = broker
        self._will = will
        self._loop = asyncio.get_running_loop()
        self._up = Pipe(f"{seed}/up", network.up, self._loop.time)
        self._down = Pipe(f"{seed}/down", network.down, self._loop.time)
        self._keepalive = keepalive
        self._back = back
        self._plugged = plugged
        self._started = False
        self._filters: dict[str, None] = {}
        self._end: _End | None = None  # of the connection that the device has
        self._attempt: asyncio.TimerHandle | None = None
        self._flying = 0  # bytes
        self._inbox = Inbox()
        self._meter = Meter()

    # What a service calls.

    @property
    def connected(self) -> bool:
        """Whether the device thinks so."""
        return self._end is not None

    @property
    def traffic(self) -> Traffic:
        """What MQTT packets for the same messages would have been, without keepalive and connection."""
        return self._meter.read()

    @property
    def backlog(self) -> int:
        """Bytes on their way to the broker."""
        return self._flying

    @property
    def largest(self) -> int:
        """Bytes of the longest payload."""
        return MOST - 256  # beside its topic

    async def start(self) -> None:
        """Connect, as soon as there is a network and a broker."""
        if self._started:
            raise BusError("the bus is started already", where=self.client_id)
        self._started = True
        self._connect_in(0.0)

    async def stop(self) -> None:
        """Say goodbye: what was sent before still arrives.  No event comes afterwards."""
        self._started = False
        self._give_up()
        end, self._end = self._end, None
        if end is not None:
            goodbye = self._loop.time() + self._keepalive if end.silent else self._up.carry(_ACKNOWLEDGED)
            self._loop.call_at(goodbye, self._broker.detach, end, _KEEPALIVE if end.silent else None)

    def subscribe(self, topic_filter: str) -> None:
        """Receive what is published under this filter, now and after every reconnection."""
        self._filters[topic_filter] = None
        if self._end is not None:
            self._end.subscribe(topic_filter)

    def unsubscribe(self, topic_filter: str) -> None:
        """Receive it no longer."""
        self._filters.pop(topic_filter, None)
        if self._end is not None:
            self._end.unsubscribe(topic_filter)

    def publish(self, topic: str, payload: bytes, *, qos: Literal[0, 1] = 1) -> bool:
        """Send, or say False: not connected, or too much is under way.

        Raises:
            BusError: it is longer than MQTT would carry.
        """
        size = packet_size(topic, payload, qos)
        if size > MOST:
            raise BusError(
                f"a message of {size} bytes, at most {MOST} are possible", where=topic, remedy="Send it as a blob"
            )
        end = self._end
        if end is None or self._flying + size > MOST_BACKLOG:
            return False
        self._meter.messages_out += 1
        self._meter.bytes_out += size
        self._meter.bytes_in += _ACKNOWLEDGED * qos
        if end.silent:
            self._flying += size
        elif not self._up.loses(qos):
            self._flying += size
            self._loop.call_at(self._up.carry(size), self._arrive, end, topic, payload, size)
        return True

    async def receive(self) -> Event:
        """The next event."""
        return await self._inbox.take()

    # What the world does to it.

    def unplug(self, reason: str) -> None:
        """The network is gone, and the device sees it."""
        self._plugged = False
        self._give_up()
        self._drop(reason)

    def plug(self) -> None:
        """There is a network again."""
        self._plugged = True
        self._connect_in(self._back())

    def cut(self, reason: str) -> None:
        """The connection is lost; the network is not."""
        self._drop(reason)
        self._connect_in(self._back())

    def silence(self) -> None:
        """The connection is dead, and nobody knows yet."""
        end = self._end
        if end is not None and not end.silent:
            end.silent = True
            self._loop.call_later(self._keepalive, self._broker.detach, end, _KEEPALIVE)

    def vanish(self) -> None:
        """The device is gone without a word."""
        self._started = False
        self._give_up()
        self._drop("no power")

    # What the broker does at its end of a connection.

    def joined(self, end: _End) -> None:
        """It is up."""
        self._end = end
        self._flying = 0
        self._up.clear()
        self._down.clear()
        self._inbox.put(Connected())

    def lost(self, end: _End, reason: str) -> None:
        """It is lost."""
        self._broker.detach(end, None)  # a broker that starts again must not take it up
        if end is self._end:
            self._end = None
            self._inbox.put(Disconnected(reason))
            self._connect_in(self._back())

    def offered(self, end: _End, topic: str, payload: bytes) -> None:
        """A message goes down on it."""
        size = packet_size(topic, payload, 1)
        self._loop.call_at(self._down.carry(size), self._deliver, end, topic, payload, size)

    # How it goes on.

    def _connect_in(self, seconds: float) -> None:
        if self._attempt is None and self._started and self._plugged and self._end is None:
            there_and_back = self._up.way.delay[1] + self._down.way.delay[1]
            self._attempt = self._loop.call_later(seconds + there_and_back, self._connect)

    def _connect(self) -> None:
        self._attempt = None
        if self._broker.up:
            self._broker.attach(_End(self._broker, self, self._will, dict(self._filters)))
        else:
            self._connect_in(self._back())

    def _give_up(self) -> None:
        if self._attempt is not None:
            self._attempt.cancel()
            self._attempt = None

    def _drop(self, reason: str) -> None:
        """Lose the connection at this end; the broker finds out later."""
        end, self._end = self._end, None
        if end is not None:
            end.alive = False
            self._inbox.put(Disconnected(reason))
            self._loop.call_later(self._keepalive, self._broker.detach, end, _KEEPALIVE)

    def _arrive(self, end: _End, topic: str, payload: bytes, size: int) -> None:
        if end.alive and not end.silent:
            self._flying -= size if end is self._end else 0
            self._broker.deliver(topic, payload)

    def _deliver(self, end: _End, topic: str, payload: bytes, size: int) -> None:
        if end is self._end and not end.silent:
            self._meter.messages_in += 1
            self._meter.bytes_in += size
            self._inbox.put(Arrived(topic, payload))
