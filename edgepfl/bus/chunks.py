"""The chunk protocol: a receiver asks for what it lacks, a sender publishes each chunk once for all who asked.

A blob goes in chunks of 64 KiB, each with its own digest in the :class:`~edgepfl.wire.BlobRef`.  Chunks may be lost,
repeated, reordered or forged on the way: the receiver takes what fits, in any order, and asks again for the rest.
After a restart it verifies what it had gathered instead of trusting a record of it.
"""

from __future__ import annotations

import hashlib
import os

from edgepfl.bus._files import storing, write_at
from edgepfl.bus._window import (
    BLOB_LIMIT,
    CHUNK,
    DIGEST,
    PATIENCE,
    QUIET,
    WINDOW,
    Fetch,
    Offer,
    check_ref,
    chunk_count,
    digest,
    digests,
)
from edgepfl.bus.blobs import BlobStore
from edgepfl.errors import TransferError
from edgepfl.wire import BlobRef, Need

__all__ = [
    "BLOB_LIMIT",
    "CHUNK",
    "DIGEST",
    "PATIENCE",
    "QUIET",
    "WINDOW",
    "Fetch",
    "Offer",
    "Receiver",
    "Sender",
    "check_ref",
    "chunk_count",
    "digest",
    "digests",
]


class Receiver:
    """Fetches blobs into a store: a service tells it of references, chunks and time, and publishes what it asks.

    The service owns the topics: it subscribes to ``topics.chunks_of(ref.sha256[:16])`` before the first Need (down),
    or sends the Need to the device that announced the blob (up).

    Args:
        blobs: where they go.
        limit: bytes of one blob, at most.
        parallel: how many blobs are asked for at once; the others wait, and a stalled one goes to the end of the queue.
    """

    def __init__(self, blobs: BlobStore, *, limit: int = BLOB_LIMIT, parallel: int = 16) -> None:
        self._blobs = blobs
        self._limit = limit
        self._parallel = parallel
        self._fetches: dict[str, Fetch] = {}  # by the first 16 digits, in the order of their turns

    @property
    def wanted(self) -> frozenset[str]:
        """The SHA-256 of each blob that is still coming."""
        return frozenset(fetch.ref.sha256 for fetch in self._fetches.values())

    def here(self, sha256: str) -> int:
        """How many chunks of a wanted blob have come; 0 if it is not wanted."""
        fetch = self._fetches.get(sha256[:16])
        return fetch.have.bit_count() if fetch is not None and fetch.ref.sha256 == sha256 else 0

    def want(self, ref: BlobRef, now: float) -> bool:
        """True if the blob is here (or inline: it is verified and stored), else False and it will be asked for.

        Asking twice for the same blob is harmless.  What came before a restart is verified and kept.

        Raises:
            TransferError: the reference contradicts itself or is too big.
            StoreError: the store failed.
        """
        check_ref(ref, self._limit)
        sha16 = ref.sha256[:16]
        if ref.inline or not ref.size:
            return self._keep(ref)
        if self._blobs.has(ref.sha256):
            self.cancel(ref.sha256)
            return True
        if sha16 in self._fetches:
            if self._fetches[sha16].ref != ref:
                raise TransferError("another reference has the same first 16 digits", where=f"blob {sha16}")
            return False
        fetch = Fetch(ref, have=self._verified(ref)).forget(now)
        self._fetches[sha16] = fetch
        return not fetch.missing and self._finish(fetch)

    def chunk(self, sha16: str, index: int, data: bytes, now: float) -> str | None:
        """Take a chunk that arrived; the SHA-256 of the blob if it was the last one.  A wrong chunk is ignored.

        Raises:
            TransferError: every chunk is right and the whole is not: its reference lied.  It is forgotten.
            StoreError: the store failed.
        """
        fetch = self._fetches.get(sha16)
        if fetch is None or not fetch.accepts(index, data):
            return None
        part = self._blobs.part(fetch.ref.sha256)
        with storing(part):
            write_at(part, index * CHUNK, data)
        fetch = fetch.took(index, now)
        self._fetches[sha16] = fetch
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
        return needs

    @property
    def next_due(self) -> float | None:
        """When to call ``due`` at the latest, on the clock of ``now``; None if nothing is wanted."""
        return min((self._fetches[sha16].due for sha16 in self._turns()), default=None)

    def ask_again(self, now: float) -> None:
        """Forget what was asked: the connection was lost, and the answers with it.  Call it after Connected."""
        self._fetches = {sha16: fetch.forget(now) for sha16, fetch in self._fetches.items()}

    def cancel(self, sha256: str) -> None:
        """Want it no longer; the chunks that came stay for another time (``BlobStore.delete`` removes them)."""
        fetch = self._fetches.get(sha256[:16])
        if fetch is not None and fetch.ref.sha256 == sha256:
            del self._fetches[sha256[:16]]

    def _turns(self) -> list[str]:
        return list(self._fetches)[: self._parallel]

    def _keep(self, ref: BlobRef) -> bool:
        if hashlib.sha256(ref.inline).hexdigest() != ref.sha256:
            raise TransferError("the inline bytes have another digest", where=f"blob {ref.sha256[:16]}")
        if not self._blobs.has(ref.sha256):
            self._blobs.put(ref.inline)
        return True

    def _verified(self, ref: BlobRef) -> int:
        part = self._blobs.part(ref.sha256)
        have = 0
        with storing(part):
            if not part.exists():
                return 0
            os.truncate(part, min(part.stat().st_size, ref.size))
            fetch = Fetch(ref)
            with part.open("rb") as file:
                for index in range(chunk_count(ref.size)):
                    if fetch.accepts(index, file.read(CHUNK)):
                        have |= 1 << index
        return have

    def _finish(self, fetch: Fetch) -> bool:
        del self._fetches[fetch.ref.sha256[:16]]
        if not self._blobs.adopt(fetch.ref.sha256):
            raise TransferError(
                "each chunk has the digest it was announced with, and the whole has not",
                where=f"blob {fetch.ref.sha256[:16]}",
                remedy="Whoever announced it must make its reference anew",
            )
        return True


class Sender:
    """Answers Needs from a store.  It offers every blob of the store: keep what must not leave in another one."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._offers: dict[str, Offer] = {}  # of what was lately sent

    def requested(self, need: Need, now: float) -> list[tuple[int, bytes]]:
        """(index, chunk) to publish for this Need, without those sent less than 150 ms ago.

        At most 16 chunks; an unknown blob or a range outside of it gives nothing.

        Raises:
            StoreError: the store failed.
        """
        if not self._blobs.has(need.sha256):
            return []
        path = self._blobs.path(need.sha256)
        self._offers = {sha256: offer for sha256, offer in self._offers.items() if not offer.rests(now)}
        with storing(path), path.open("rb") as file:
            offer = self._offers.get(need.sha256) or Offer(os.fstat(file.fileno()).st_size)
            self._offers[need.sha256], granted = offer.grant(need, now)
            chunks = []
            for index in granted:
                file.seek(index * CHUNK)
                chunks.append((index, file.read(CHUNK)))
        return chunks
