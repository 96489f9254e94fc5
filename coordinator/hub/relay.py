"""A hub that adds nothing up: its devices appear at the parent one by one, under their own names.

What a device says is said again to the parent, and what the parent says to the device or to all of them is said again
here; chunks of blobs go the same way.  A relay remembers nothing that matters.  Neither broker is trusted to hold a
message while the other side is away: whenever a side is reached (again), or a message found no room, the relay calls
the roll, every device says Hello and sends what waits in its outbox, and the parent answers with what is open.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable

from edgepfl import wire
from edgepfl.bus import Arrived, Bus, Connected, Disconnected
from edgepfl.bus.chunks import CHUNK_SIZES
from edgepfl.errors import BusError, WireError
from edgepfl.topics import Address, Chunk, FromDevice, ToAll, ToDevice, Topics
from edgepfl.wire import Gone, Hello, Message, Need, RollCall

log = logging.getLogger(__name__)
MOST = 2000  # devices: no round of the parent has more
_BLOBS = 64  # whose chunks are passed on
_AGAIN = 1.0  # seconds from a message that found no room to the roll call


class Relay:
    """The relay.

    Args:
        fleet: the name of its own fleet.
        bus: its devices', not yet started.
        parent_fleet: the name of its parent's.
        parent_bus: not yet started.
    """

    def __init__(self, fleet: str, bus: Bus, parent_fleet: str, parent_bus: Bus) -> None:
        self._own, self._bus = Topics(fleet), bus
        self._parent, self._parent_bus = Topics(parent_fleet), parent_bus
        self._sessions: dict[str, int] = {}
        self._blobs: OrderedDict[str, None] = OrderedDict()
        self._calling: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Serve until cancelled.

        Raises:
            BusError: a bus can never work with its settings.
        """
        for topic_filter in self._own.for_coordinator():
            self._bus.subscribe(topic_filter)
        self._parent_bus.subscribe(self._parent.for_device("any")[1])  # what it says to all
        loop = asyncio.get_running_loop()
        sides = {
            loop.create_task(self._serve(self._bus, self._up), name="devices"),
            loop.create_task(self._serve(self._parent_bus, self._down), name="parent"),
        }
        try:
            done, _ = await asyncio.wait(sides, return_when=asyncio.FIRST_COMPLETED)
            for side in done:
                side.result()
        finally:
            for side in sides:
                side.cancel()
            await asyncio.shield(self._close())

    async def _close(self) -> None:
        if self._calling is not None:
            self._calling.cancel()
        for device, session in self._sessions.items():
            gone = wire.encode(Gone(device, session))
            self._say(self._parent_bus, self._parent, FromDevice(device, Gone.KIND), gone)
        await self._bus.stop()
        await self._parent_bus.stop()

    async def _serve(self, bus: Bus, pass_on: Callable[[str, bytes], None]) -> None:
        await bus.start()
        while True:
            match await bus.receive():
                case Connected():
                    self._call()
                case Disconnected(reason):
                    side = "the parent" if bus is self._parent_bus else "the devices"
                    log.warning("disconnected from %s (%s)", side, reason)
                case Arrived(topic, payload):
                    pass_on(topic, payload)

    def _up(self, topic: str, payload: bytes) -> None:
        match self._own.parse(topic):
            case Chunk(_, _, device) as address if device and len(payload) <= CHUNK_SIZES[-1]:
                self._say(self._parent_bus, self._parent, address, payload)
            case FromDevice(device, _) as address:
                message = _read(topic, payload)
                own = message is not None and getattr(message, "device", device) == device
                if message is not None and own and self._notes(device, message):
                    self._say(self._parent_bus, self._parent, address, payload)
            case _:
                log.warning("nothing to do with topic %r", topic)

    def _down(self, topic: str, payload: bytes) -> None:
        match self._parent.parse(topic):
            case Chunk(_, _, "") as address if len(payload) <= CHUNK_SIZES[-1]:
                self._say(self._bus, self._own, address, payload)
            case (ToAll() | ToDevice()) as address:
                if _read(topic, payload) is not None:
                    self._say(self._bus, self._own, address, payload)
            case _:
                log.warning("nothing to do with topic %r of the parent", topic)

    def _notes(self, device: str, message: Message) -> bool:
        """Whether what a device says may go on; what the parent will answer with comes here from now on."""
        match message:
            case Hello():
                if device not in self._sessions and len(self._sessions) >= MOST:
                    log.error("%s is one more than the %d devices that a relay passes on", device, MOST)
                    return False
                if device not in self._sessions:
                    self._parent_bus.subscribe(self._parent.for_device(device)[0])
                self._sessions[device] = message.session
            case Gone() if self._sessions.get(device) == message.session:
                del self._sessions[device]
                self._parent_bus.unsubscribe(self._parent.for_device(device)[0])
            case Need():
                self._want(message.sha256[:16])
        return True

    def _want(self, sha16: str) -> None:
        """Pass on the chunks of a blob, and forget the blob that was asked for longest ago."""
        if sha16 not in self._blobs:
            self._parent_bus.subscribe(self._parent.chunks_of(sha16))
        self._blobs[sha16] = None
        self._blobs.move_to_end(sha16)
        if len(self._blobs) > _BLOBS:
            oldest, _ = self._blobs.popitem(last=False)
            self._parent_bus.unsubscribe(self._parent.chunks_of(oldest))

    def _say(self, bus: Bus, topics: Topics, address: Address, payload: bytes) -> None:
        fanned_out = isinstance(address, Chunk) and not address.device
        try:
            sent = bus.publish(topics.build(address), payload, qos=0 if fanned_out else 1)
        except BusError as error:
            log.error("not passed on: %s", error)  # noqa: TRY400  no fault of ours to trace
            return
        if not sent and not isinstance(address, Chunk) and self._calling is None:  # chunks are asked for again
            self._calling = asyncio.get_running_loop().call_later(_AGAIN, self._call)

    def _call(self) -> None:
        self._calling = None
        self._say(self._bus, self._own, ToAll(RollCall.KIND), wire.encode(RollCall(secrets.randbits(32))))


def _read(topic: str, payload: bytes) -> Message | None:
    try:
        return wire.decode(payload, where=topic)
    except WireError as error:
        log.warning("ignored: %s", error)
        return None
