"""An agent's blobs on their way: what it fetches, what it offers, and how large its chunks should be."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from device_agent.store import Store
from edgepfl import wire
from edgepfl.bus import Bus
from edgepfl.bus.blobs import BlobStore
from edgepfl.bus.chunks import Receiver, Sender
from edgepfl.bus.outflow import AGAIN, Outflow
from edgepfl.bus.transfer import Transfer
from edgepfl.errors import StoreError, TransferError
from edgepfl.topics import Chunk, FromDevice, Topics
from edgepfl.wire import CHUNK, CHUNK_SIZES, BlobRef, Need

log = logging.getLogger(__name__)
_LEAST = CHUNK_SIZES[0]
_FACT = "chunk"  # the size of chunk, in the store


class Transfers:
    """One device's.

    Args:
        device: its name.
        topics: of its fleet.
        bus: where chunks and Needs go.
        store: remembers the size of chunk over restarts.
        fetched: blobs that it got.
        offered: blobs that it offers to the coordinator.
        settings: the table ``[transfer]``.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        device: str,
        topics: Topics,
        bus: Bus,
        store: Store,
        fetched: BlobStore,
        offered: BlobStore,
        *,
        settings: Transfer,
        clock: Callable[[], float],
    ) -> None:
        self._device = device
        self._topics = topics
        self._bus = bus
        self._store = store
        self._fetched = fetched
        self._offered = offered
        self._settings = settings
        self._clock = clock
        self._receiver = Receiver(fetched, reuse=True)
        self._outflow = Outflow(Sender(offered), bus, self._topic)
        self._remembered = store.fact(_FACT) or CHUNK
        self._lasting: frozenset[str] = fetched.whole()  # what the last task used, for chunks that come again

    @property
    def chunk(self) -> int:
        """Bytes of the chunks that the device would like."""
        return self._settings.chunk(self._receiver.rate, known=self._remembered, most=self._bus.largest)

    @property
    def next_due(self) -> float | None:
        """When to call :meth:`pump` at the latest; None if nothing is on its way."""
        times = [] if self._receiver.next_due is None else [self._receiver.next_due]
        if self._outflow.waiting:
            times.append(self._clock() + AGAIN)
        return min(times, default=None)

    def connected(self) -> None:
        """The connection is new: what was under way is lost."""
        self._receiver.ask_again(self._clock())
        self._outflow.forget()

    # Down.

    def fetch(self, ref: BlobRef, needed: Collection[str]) -> bool:
        """True if a blob is here; else it is asked for, and :meth:`chunk_came` tells when it is.

        Args:
            ref: the blob.
            needed: digests of all blobs of the task: where there is no room, those of the last task go first.

        Raises:
            TransferError: the reference lies, or there is no room for the blob.
            StoreError: the store failed.
        """
        try:
            here = self._receiver.want(ref, self._clock())
        except TransferError:
            if not self._lasting - set(needed):
                raise
            self.keep_only(needed)
            here = self._receiver.want(ref, self._clock())
        if not here:
            self._bus.subscribe(self._topics.chunks_of(ref.sha256[:16]))
            self.pump()
        return here

    @property
    def wrong(self) -> int:
        """Chunks that came for a blob that is fetched, and are not what its reference says."""
        return self._receiver.wrong

    def chunk_came(self, sha16: str, index: int, data: bytes) -> str | None:
        """The digest of the blob if this was its last chunk.

        Raises:
            TransferError: each chunk is right and the whole is not.
            StoreError: the store failed.
        """
        try:
            complete = self._receiver.chunk(sha16, index, data, self._clock())
        except (TransferError, StoreError):
            self._bus.unsubscribe(self._topics.chunks_of(sha16))
            raise
        self.pump()
        if complete is not None:
            self._bus.unsubscribe(self._topics.chunks_of(sha16))
            self._remember()
        return complete

    def fetch_no_more(self) -> None:
        """Want nothing; what came stays for another time."""
        for sha256 in self._receiver.wanted:
            self._receiver.cancel(sha256)
            self._bus.unsubscribe(self._topics.chunks_of(sha256[:16]))

    def make_way(self, needed: Collection[str]) -> None:
        """Forget all but what a new task needs, and what the last one used: much of it may come again."""
        self._fetched.keep_only({*needed, *self._lasting})

    def keep_only(self, needed: Collection[str]) -> None:
        """Forget all but what a task uses."""
        self._lasting = frozenset(needed)
        self._fetched.keep_only(needed)

    # Up.

    def offer(self, data: bytes) -> BlobRef:
        """Offer a blob, in chunks as this link likes them.

        Raises:
            StoreError: there is no room for it, or the store failed.
            TransferError: the broker takes no chunk, however small.
        """
        largest = self._bus.largest
        if largest < _LEAST:
            raise TransferError(
                f"the broker takes messages of at most {largest} bytes, and a chunk has {_LEAST} at least",
                where=self._device,
                remedy="Raise the broker's limit on the size of a packet (max_packet_size of mosquitto)",
            )
        self._offered.check_room("", len(data))
        ref = self._offered.put(data, self.chunk)
        if ref.chunk > largest:
            raise TransferError(
                f"a blob of {len(data)} bytes needs chunks of {ref.chunk}, and the broker takes {largest} at most",
                where=self._device,
                remedy="Raise the broker's limit on the size of a packet (max_packet_size of mosquitto)",
            )
        return ref

    def needed(self, need: Need) -> None:
        """Send the chunks that are asked for, as the bus has room.

        Raises:
            StoreError: the store failed.
        """
        self._outflow.needed(need, self._clock())

    def pump(self) -> None:
        """Ask for what is due, and send what waits."""
        topic = self._topics.build(FromDevice(self._device, Need.KIND))
        for need in self._receiver.due(self._clock()):
            self._bus.publish(topic, wire.encode(need))
        self._outflow.pump(self._clock())

    def _topic(self, sha16: str, index: int) -> str:
        return self._topics.build(Chunk(sha16, index, self._device))

    def _remember(self) -> None:
        """Keep the size of chunk over restarts; it changes rarely, and a card wears out."""
        if self._settings.chunk_kib == 0 and self._receiver.rate is not None and self.chunk != self._remembered:
            self._remembered = self.chunk
            self._store.note(_FACT, self._remembered)
            log.info("%s: chunks of %d KiB from now on", self._device, self._remembered >> 10)
