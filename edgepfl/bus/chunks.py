"""The chunk protocol: a receiver asks for what it lacks, a sender publishes each chunk once for all who asked.

A blob goes in chunks of 16 to 256 KiB, each with its own digest in the :class:`~edgepfl.wire.BlobRef`.  Chunks may be
lost, repeated, reordered or forged on the way: the receiver takes what fits, in any order, and asks again for the rest.

What came is written at once into a file as long as the blob, and reaches the disk every 4 MB.  After a restart it is
verified by its digests: no record of what came is kept, which could be newer than the bytes, or older, or lost.
Hashing is faster than any disk of a board reads, and what a power cut damaged is found as well.
"""

from __future__ import annotations

import hashlib

from edgepfl.bus._files import resize, storing, sync, write_at
from edgepfl.bus._pace import Answers, Pace
from edgepfl.bus._reuse import Stock
from edgepfl.bus._window import (
    BLOB_LIMIT,
    DIGEST,
    MOST_PATIENCE,
    MOST_QUIET,
    PATIENCE,
    QUIET,
    START,
    WINDOW,
    Fetch,
    Offer,
    check_ref,
    chunk_count,
    chunk_fitting,
    digest,
    digests,
    window_of,
)
from edgepfl.bus.blobs import BlobStore
from edgepfl.errors import StoreError, TransferError
from edgepfl.wire import CHUNK, CHUNK_SIZES, BlobRef, Need

__all__ = [
    "BLOB_LIMIT",
    "CHUNK",
    "CHUNK_SIZES",
    "DIGEST",
    "MOST_PATIENCE",
    "MOST_QUIET",
    "PATIENCE",
    "QUIET",
    "START",
    "UNDER_WAY",
    "WINDOW",
    "Fetch",
    "Offer",
    "Receiver",
    "Sender",
    "check_ref",
    "chunk_count",
    "chunk_fitting",
    "digest",
    "digests",
    "window_of",
]
UNDER_WAY = 16 << 20  # bytes that a receiver asks for at once
SYNC = 4 << 20  # bytes of a blob that a power cut may cost


class Receiver:
    """Fetches blobs into a store: a service tells it of references, chunks and time, and publishes what it asks.

    The service owns the topics: it subscribes to ``topics.chunks_of(ref.sha256[:16])`` before the first Need (down),
    or sends the Need to the device that announced the blob (up).

    Args:
        blobs: where they go.
        limit: bytes of one blob, at most.
        under_way: bytes asked for at once, over all blobs; those whose turn it is not wait, and a stalled one goes to
            the end of the queue.
        reuse: copy chunks that other blobs of the store have.  Not where strangers fill the store: whoever has only
            the digest of a chunk would get the chunk counted as theirs.
    """

    def __init__(
        self, blobs: BlobStore, *, limit: int = BLOB_LIMIT, under_way: int = UNDER_WAY, reuse: bool = False
    ) -> None:
        self._blobs = blobs
        self._limit = limit
        self._under_way = under_way
        self._stock = Stock(blobs) if reuse else None
        self._fetches: dict[str, Fetch] = {}  # by the first 16 digits, in the order of their turns
        self._unsynced: dict[str, int] = {}  # bytes written and perhaps not on the disk, likewise
        self._owed = 0  # bytes of the disk for what is missing
        self._reused = 0
        self._wrong = 0
        self._pace = Pace()
        self._answers = Answers()
        self._mark: float | None = None  # since when something is under way and nothing came

    @property
    def wanted(self) -> frozenset[str]:
        """The SHA-256 of each blob that is still coming."""
        return frozenset(fetch.ref.sha256 for fetch in self._fetches.values())

    @property
    def waiting(self) -> frozenset[str]:
        """Of these, the blobs whose turn it is not yet."""
        turns = frozenset(self._turns())
        return frozenset(fetch.ref.sha256 for sha16, fetch in self._fetches.items() if sha16 not in turns)

    @property
    def rate(self) -> float | None:
        """Bytes per second while something was under way; None until enough came to tell."""
        return self._pace.rate

    @property
    def patience(self) -> float:
        """Seconds until what is asked for first counts as lost: longer where senders have been slow to answer."""
        return self._answers.patience(PATIENCE, MOST_PATIENCE)

    @property
    def reused(self) -> int:
        """Bytes that did not cross the bus because other blobs had them."""
        return self._reused

    @property
    def wrong(self) -> int:
        """Chunks that came for a wanted blob and are not what its reference says."""
        return self._wrong

    def here(self, sha256: str) -> int:
        """How many chunks of a wanted blob have come; 0 if it is not wanted."""
        fetch = self._fetches.get(sha256[:16])
        return fetch.have.bit_count() if fetch is not None and fetch.ref.sha256 == sha256 else 0

    def want(self, ref: BlobRef, now: float) -> bool:
        """True if the blob is here (or inline: it is verified and stored), else False and it will be asked for.

        Asking twice for the same blob is harmless.  What came before a restart is verified and kept, also if it came
        in chunks of another size.

        Raises:
            TransferError: the reference contradicts itself, is too big, or there is no room for the blob.
            StoreError: the store failed.
        """
        check_ref(ref, self._limit)
        sha16 = ref.sha256[:16]
        if ref.inline or not ref.size:
            return self._keep(ref)
        if self._blobs.has(ref.sha256):
            self.cancel(ref.sha256)
            return True
        at_hand = self._fetches.get(sha16)
        if at_hand is not None and at_hand.ref == ref:
            return False
        if at_hand is not None and (at_hand.ref.sha256 != ref.sha256 or at_hand.ref.chunk == ref.chunk):
            raise TransferError("another reference has the same first 16 digits", where=f"blob {sha16}")
        self.cancel(ref.sha256)
        fetch = self._begin(ref).forget(now, self.patience)
        self._fetches[sha16] = fetch
        self._owed += _lacking(fetch)
        return not fetch.missing and self._finish(fetch)

    def chunk(self, sha16: str, index: int, data: bytes, now: float) -> str | None:
        """Take a chunk that arrived; the SHA-256 of the blob if it was the last one.  A wrong chunk is ignored.

        Raises:
            TransferError: every chunk is right and the whole is not: its reference lied.  It is forgotten.
            StoreError: the store failed.
        """
        fetch = self._fetches.get(sha16)
        if fetch is None:
            return None
        if fetch.have >> index & 1:
            self._measure(len(data), now)
            self._fetches[sha16] = fetch.heard(now)
            return None
        if not fetch.accepts(index, data):
            self._wrong += 1
            return None
        self._write(fetch, index, data)
        self._measure(len(data), now)
        if fetch.began is not None:
            self._answers = self._answers.took(now - fetch.began)
        fetch = fetch.took(index, now)
        self._fetches[sha16] = fetch
        self._owed -= len(data)
        if not any(each.asked for each in self._fetches.values()):
            self._mark = None
        if fetch.missing:
            return None
        self._finish(fetch)
        return fetch.ref.sha256

    def due(self, now: float) -> list[Need]:
        """What to ask for now.  Call it after ``want`` and ``chunk``, and at ``next_due``."""
        for sha16 in self._turns():
            if self._fetches[sha16].stalled(now):  # its sender may be gone: others first
                self._fetches[sha16] = self._fetches.pop(sha16).lapse(now)
        needs = []
        for sha16 in self._turns():
            self._fetches[sha16], need = self._fetches[sha16].ask(now)
            if need is not None:
                needs.append(need)
        if needs and self._mark is None:
            self._mark = now
        return needs

    @property
    def next_due(self) -> float | None:
        """When to call ``due`` at the latest, on the clock of ``now``; None if nothing is wanted."""
        return min((self._fetches[sha16].due for sha16 in self._turns()), default=None)

    def ask_again(self, now: float, sha256: str = "") -> None:
        """Forget what was asked: the connection was lost, and the answers with it.  Call it after Connected.

        Args:
            now: the time.
            sha256: of one blob, if only its sender's connection was lost.
        """
        for sha16, fetch in self._fetches.items():
            if fetch.ref.sha256 == sha256 or not sha256:
                self._fetches[sha16] = fetch.forget(now, self.patience)
        self._mark = None

    def cancel(self, sha256: str) -> None:
        """Want it no longer; the chunks that came stay for another time (``BlobStore.delete`` removes them)."""
        fetch = self._fetches.get(sha256[:16])
        if fetch is not None and fetch.ref.sha256 == sha256:
            self._forget(fetch)

    def _turns(self) -> list[str]:
        """Whose windows together are no more than may be under way; the first in any case."""
        turns: list[str] = []
        rest = self._under_way
        for sha16, fetch in self._fetches.items():
            rest -= min(window_of(fetch.ref.chunk) * fetch.ref.chunk, fetch.ref.size)
            if rest < 0 and turns:
                break
            turns.append(sha16)
        return turns

    def _keep(self, ref: BlobRef) -> bool:
        if hashlib.sha256(ref.inline).hexdigest() != ref.sha256:
            raise TransferError("the inline bytes have another digest", where=f"blob {ref.sha256[:16]}")
        if not self._blobs.has(ref.sha256):
            self._blobs.keep_checked(ref.sha256, ref.inline)
        return True

    def _begin(self, ref: BlobRef) -> Fetch:
        """What is here of a blob, in a part as long as it will be."""
        try:
            self._blobs.check_room(ref.sha256, ref.size, self._owed)
        except StoreError as error:
            raise TransferError(error.what, where=error.where, remedy=error.remedy) from error
        part = self._blobs.part(ref.sha256)
        with storing(part):
            resumed = part.exists()
            resize(part, ref.size)
        fetch = self._verified(ref) if resumed else Fetch(ref)
        if self._stock is not None and fetch.missing:
            before = _lacking(fetch)
            fetch = self._stock.fill(fetch)
            self._reused += before - _lacking(fetch)
        return fetch

    def _verified(self, ref: BlobRef) -> Fetch:
        part = self._blobs.part(ref.sha256)
        fetch = Fetch(ref)
        with storing(part), part.open("rb") as file:
            for index in range(chunk_count(ref.size, ref.chunk)):
                if fetch.accepts(index, file.read(ref.chunk)):
                    fetch = fetch.found(index)
        return fetch

    def _measure(self, amount: int, now: float) -> None:
        if self._mark is not None:
            self._pace = self._pace.took(amount, now - self._mark)
            self._mark = now

    def _write(self, fetch: Fetch, index: int, data: bytes) -> None:
        part, sha16 = self._blobs.part(fetch.ref.sha256), fetch.ref.sha256[:16]
        unsynced = self._unsynced.get(sha16, 0) + len(data)
        with storing(part):
            write_at(part, index * fetch.ref.chunk, data)
            if unsynced >= SYNC:
                sync(part)
                unsynced = 0
        self._unsynced[sha16] = unsynced

    def _finish(self, fetch: Fetch) -> bool:
        self._forget(fetch)
        if not self._blobs.adopt(fetch.ref.sha256):
            raise TransferError(
                "each chunk has the digest it was announced with, and the whole has not",
                where=f"blob {fetch.ref.sha256[:16]}",
                remedy="Whoever announced it must make its reference anew",
            )
        if self._stock is not None:
            self._stock.learn(fetch.ref)
        return True

    def _forget(self, fetch: Fetch) -> None:
        sha16 = fetch.ref.sha256[:16]
        del self._fetches[sha16]
        self._unsynced.pop(sha16, None)
        self._owed -= _lacking(fetch)


class Sender:
    """Answers Needs from a store.  It offers every blob of the store: keep what must not leave in another one."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._offers: dict[tuple[str, int], Offer] = {}  # of what was lately sent, by digest and size of chunk

    def granted(self, need: Need, now: float) -> dict[int, float]:
        """When to send each chunk for this Need, without those that are on their way already.

        At most 16; an unknown blob, a size of chunk that is none of ours or a range outside of it gives nothing.

        Raises:
            StoreError: the store failed.
        """
        if need.chunk not in CHUNK_SIZES or not self._blobs.has(need.sha256):
            return {}
        self._offers = {key: offer for key, offer in self._offers.items() if not offer.rests(now)}
        key = (need.sha256, need.chunk)
        path = self._blobs.path(need.sha256)
        with storing(path):
            offer = self._offers.get(key) or Offer(path.stat().st_size, need.chunk)
        self._offers[key] = offer
        return offer.grant(need, now)

    def sent(self, sha256: str, chunk: int, index: int, now: float) -> None:
        """Remember that a granted chunk was sent."""
        if (offer := self._offers.get((sha256, chunk))) is not None:
            self._offers[sha256, chunk] = offer.marked((index,), now)

    def read(self, sha256: str, chunk: int, index: int) -> bytes:
        """A granted chunk.

        Raises:
            StoreError: the blob is not here any more, or cannot be read.
        """
        path = self._blobs.path(sha256)
        with storing(path), path.open("rb") as file:
            file.seek(index * chunk)
            return file.read(chunk)

    def forget(self) -> None:
        """Our connection was lost, and what was on its way with it: all of it may be asked for again."""
        self._offers.clear()

    def requested(self, need: Need, now: float) -> list[tuple[int, bytes]]:
        """(index, chunk) to publish at once for this Need, and now sent.

        Raises:
            StoreError: the store failed.
        """
        granted = [index for index, when in self.granted(need, now).items() if when <= now]
        for index in granted:
            self.sent(need.sha256, need.chunk, index, now)
        return [(index, self.read(need.sha256, need.chunk, index)) for index in granted]


def _lacking(fetch: Fetch) -> int:
    """Bytes of the chunks that are not here."""
    count, chunk = chunk_count(fetch.ref.size, fetch.ref.chunk), fetch.ref.chunk
    last = fetch.missing >> (count - 1) & 1
    return fetch.missing.bit_count() * chunk - last * (count * chunk - fetch.ref.size)
