"""A hub's connection to its parent, where it is a device like any other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from edgepfl import wire
from edgepfl.bus import Arrived, Bus, Connected, Disconnected, Will
from edgepfl.bus.blobs import BlobStore
from edgepfl.bus.chunks import Receiver, Sender
from edgepfl.bus.outflow import AGAIN, Outflow
from edgepfl.errors import BusError, TransferError, WireError
from edgepfl.topics import Chunk, FromDevice, ToAll, ToDevice, Topics
from edgepfl.wire import BlobRef, Cancel, Commit, Gone, Message, Need, RollCall, Task

log = logging.getLogger(__name__)


class Ear(Protocol):
    """Whoever acts on what the parent says."""

    def linked(self) -> None:
        """The parent's broker is reached (again), or the parent asks who is here."""
        ...

    def heard(self, message: Task | Commit | Cancel) -> None:
        """The parent said something."""
        ...

    def fetched(self) -> None:
        """Every wanted blob is here."""
        ...

    def unfetchable(self, why: str) -> None:
        """A wanted blob cannot be had."""
        ...


def will(fleet: str, device: str, session: int) -> Will:
    """What the parent's broker says of a hub that vanishes in this session."""
    return Will(Topics(fleet).build(FromDevice(device, Gone.KIND)), wire.encode(Gone(device, session)))


class Link:
    """The connection.

    Args:
        device: the hub's name in its parent's fleet.
        fleet: the parent's.
        session: number of this start of the hub.
        bus: not yet started, with :func:`will`.
        fetched: where blobs of the parent go.
        offered: what the parent may fetch, and nothing else.
        clock: seconds that never go back.
        ear: acts on what comes.
    """

    def __init__(
        self,
        device: str,
        fleet: str,
        session: int,
        *,
        bus: Bus,
        fetched: BlobStore,
        offered: BlobStore,
        clock: Callable[[], float],
        ear: Ear,
    ) -> None:
        self.device = device
        self.session = session
        self._topics = Topics(fleet)
        self._bus = bus
        self._receiver = Receiver(fetched)
        self._outflow = Outflow(Sender(offered), bus, self._chunk_topic)
        self._clock = clock
        self._ear = ear
        self._missing: set[str] = set()
        self._sending: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Serve until cancelled.

        Raises:
            BusError: the bus can never work with its settings.
            StoreError: the storage failed.
        """
        for topic_filter in self._topics.for_device(self.device):
            self._bus.subscribe(topic_filter)
        try:
            await self._bus.start()
            while True:
                self._take(await self._bus.receive())
        finally:
            self._outflow.forget()
            self.say(Gone(self.device, self.session))
            await asyncio.shield(self._bus.stop())

    def say(self, message: Message) -> bool:
        """Send a message; False if it could not go, and then it is said again once the parent is reached."""
        topic = self._topics.build(FromDevice(self.device, message.KIND))
        try:
            return self._bus.publish(topic, wire.encode(message))
        except BusError as error:
            log.error("a %s for the parent was not sent: %s", message.KIND, error)  # noqa: TRY400  no fault of ours
            return False

    def fetch(self, *refs: BlobRef) -> None:
        """Get blobs, and no others from now on; the ear hears of it, at once where all are here."""
        self.fetch_no_more()
        self._missing = {ref.sha256 for ref in refs}
        try:
            for ref in refs:
                if self._receiver.want(ref, self._clock()):
                    self._missing.discard(ref.sha256)
                else:
                    self._bus.subscribe(self._topics.chunks_of(ref.sha256[:16]))
        except TransferError as error:
            self.fetch_no_more()
            self._ear.unfetchable(str(error))
            return
        self._look()

    def fetch_no_more(self) -> None:
        """Want nothing."""
        for sha256 in self._receiver.wanted:
            self._receiver.cancel(sha256)
            self._bus.unsubscribe(self._topics.chunks_of(sha256[:16]))
        self._missing = set()

    def pump(self) -> None:
        """Ask for the chunks that are due."""
        for need in self._receiver.due(self._clock()):
            self.say(need)

    def _chunk_topic(self, sha16: str, index: int) -> str:
        return self._topics.build(Chunk(sha16, index, self.device))

    def _send_on(self) -> None:
        """Send what waits, as the bus has room."""
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None
        self._outflow.pump(self._clock())
        if self._outflow.waiting:
            self._sending = asyncio.get_running_loop().call_later(AGAIN, self._send_on)

    def _look(self) -> None:
        if self._missing:
            self.pump()
        else:
            self._ear.fetched()

    def _take(self, event: Arrived | Connected | Disconnected) -> None:
        match event:
            case Connected():
                log.info("connected to the parent")
                self._receiver.ask_again(self._clock())
                self._ear.linked()
                self.pump()
            case Disconnected(reason):
                self._outflow.forget()
                log.warning("disconnected from the parent (%s)", reason)
            case Arrived(topic, payload):
                self._arrived(topic, payload)

    def _arrived(self, topic: str, payload: bytes) -> None:
        try:
            match self._topics.parse(topic):
                case Chunk(sha16, index, ""):
                    self._chunk(sha16, index, payload)
                case ToAll() | ToDevice():
                    self._message(wire.decode(payload, where=topic))
                case _:
                    log.warning("nothing to do with topic %r of the parent", topic)
        except WireError as error:
            log.warning("ignored: %s", error)

    def _message(self, message: Message) -> None:
        match message:
            case Task() | Commit() | Cancel():
                self._ear.heard(message)
            case RollCall():
                self._ear.linked()
            case Need():
                self._outflow.needed(message, self._clock())
                self._send_on()
            case _:
                log.warning("a %s is nothing for a hub", message.KIND)

    def _chunk(self, sha16: str, index: int, data: bytes) -> None:
        try:
            complete = self._receiver.chunk(sha16, index, data, self._clock())
        except TransferError as error:
            self.fetch_no_more()
            self._ear.unfetchable(str(error))
            return
        if complete is None:
            self.pump()
            return
        self._bus.unsubscribe(self._topics.chunks_of(sha16))
        if complete in self._missing:
            self._missing.discard(complete)
            self._look()
