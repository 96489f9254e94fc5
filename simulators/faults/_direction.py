"""One direction of one connection: reads packets, gives each its fate, writes them at their time."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from typing import Protocol

from simulators.faults.acknowledgements import Acknowledgements
from simulators.faults.fate import Fate, Fates, PublishFate
from simulators.faults.packets import CONNECT, PUBACK, PUBLISH, Framer, Packet, Published, flipped, published, repeated
from simulators.faults.settings import Way
from simulators.faults.tally import Tally

READ = 64 << 10  # bytes
BACKLOG = 1 << 20  # bytes that wait for their time; more are left in the sender's socket
_PIECES = 20.0  # a second, in which a slow line dribbles


class Line(Protocol):
    """What both directions of a connection share."""

    version: int

    def way(self, name: str) -> Way:
        """The faults of a direction just now."""
        ...

    def introduce(self, packet: Packet) -> None:
        """Take note of a CONNECT."""
        ...


class Direction:
    """From one side to the other.

    Args:
        name: "up" or "down".
        line: the connection.
        reader: where packets come from.
        writer: where they go.
        fates: gives the fates of the direction, once its client is known.
        own: what is acknowledged against this direction.
        others: what this direction acknowledges.
        tally: where to count.
    """

    def __init__(
        self,
        name: str,
        line: Line,
        *,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        fates: Callable[[], Fates],
        own: Acknowledgements,
        others: Acknowledgements,
        tally: Tally,
    ) -> None:
        self._name, self._line = name, line
        self._reader, self._writer = reader, writer
        self._make_fates = fates
        self._fates: Fates | None = None
        self._own, self._others = own, others
        self._tally = tally
        self._loop = asyncio.get_running_loop()
        self._queue: list[tuple[float, int, bytes]] = []
        self._order = itertools.count()
        self._waiting = 0  # bytes in the queue
        self._last = 0.0  # when the packet before goes on
        self._changed = asyncio.Event()
        self._over = False

    async def run(self) -> None:
        """Pass on what comes until a side closes, then what is left."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read())
            group.create_task(self._write())

    async def _read(self) -> None:
        framer = Framer()
        while data := await self._reader.read(READ):
            if self._line.way(self._name).swallow:
                self._tally.swallowed += len(framer.feed(data))
                continue
            for packet in framer.feed(data):
                self._take(packet)
            while self._waiting > BACKLOG:
                self._changed.clear()
                await self._changed.wait()
        self._over = True
        self._changed.set()

    def _take(self, packet: Packet) -> None:
        if packet.kind == CONNECT:
            self._line.introduce(packet)
        if self._fates is None:
            self._fates = self._make_fates()
        way = self._line.way(self._name)
        fate = self._fates.next(way)
        if packet.kind == PUBLISH:
            self._publish(packet, fate, self._fates.next_publish(way))
        elif packet.kind == PUBACK:
            for each in self._others.take(packet):
                self._pass(each.data, fate)
        else:
            self._pass(packet.data, fate)

    def _publish(self, packet: Packet, fate: Fate, more: PublishFate) -> None:
        parts = published(packet, version=self._line.version)
        if parts is None:
            self._own.loosen()
            self._pass(packet.data, fate)
            return
        if more.dropped and not packet.qos:
            self._tally.dropped += 1
            return
        if packet.qos == 1:
            self._own.expect(parts.number)
        packet = self._corrupted(packet, parts, more)
        self._pass(packet.data, fate, held=more.held)
        if more.duplicated:
            self._tally.duplicated += 1
            self._pass(repeated(packet), fate, held=more.held)

    def _corrupted(self, packet: Packet, parts: Published, more: PublishFate) -> Packet:
        length = len(packet.data) - parts.payload
        if more.corrupt is None or not length:
            return packet
        self._tally.corrupted += 1
        return Packet(flipped(packet.data, 8 * parts.payload + int(8 * length * more.corrupt)), packet.body)

    def _pass(self, data: bytes, fate: Fate, *, held: float = 0.0) -> None:
        """Queue bytes for their time; what is held back does not keep back what comes after it."""
        if fate.garble is not None:
            self._tally.garbled += 1
            self._own.loosen()
            self._others.loosen()
            data = flipped(data, int(8 * len(data) * fate.garble))
        now = self._loop.time()
        due = max(self._last, now + fate.delay)
        self._last = due
        self._tally.delayed += fate.delay > 0
        self._tally.reordered += held > 0
        heapq.heappush(self._queue, (due + held, next(self._order), data))
        self._waiting += len(data)
        self._changed.set()

    async def _write(self) -> None:
        while self._queue or not self._over:
            if not self._queue:
                await self._change(None)
                continue
            wait = self._queue[0][0] - self._loop.time()
            if wait > 0:
                await self._change(wait)
                continue
            _, _, data = heapq.heappop(self._queue)
            self._waiting -= len(data)
            self._changed.set()  # whoever waits for room
            await self._send(data)
        self._writer.close()
        await self._writer.wait_closed()  # a client's goodbye must reach the broker, or it publishes its will

    async def _change(self, patience: float | None) -> None:
        """Until something changes, or the time is over."""
        self._changed.clear()
        try:
            async with asyncio.timeout(patience):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _send(self, data: bytes) -> None:
        way = self._line.way(self._name)
        if way.swallow:
            self._tally.swallowed += 1
            return
        self._tally.packets += 1
        self._tally.bytes += len(data)
        if not way.rate:
            self._writer.write(data)
            await self._writer.drain()
            return
        size = max(1, int(way.rate / _PIECES))
        for at in range(0, len(data), size):
            piece = data[at : at + size]
            self._writer.write(piece)
            await self._writer.drain()
            await asyncio.sleep(len(piece) / way.rate)
