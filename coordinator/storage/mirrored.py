"""A local store, which transfers need, and a shared one, which other processes need.

Chunks come into and go out of a :class:`~edgepfl.bus.blobs.BlobStore` on this machine's disk.  What aggregators are to
read, and what a coordinator must find again whose disk was lost, is in the shared store too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from coordinator.storage.depot import Depot
from edgepfl.bus.blobs import BlobStore
from edgepfl.errors import StoreError
from edgepfl.wire import BlobRef


@dataclass(frozen=True)
class Mirrored:
    """A local store with a shared one behind it, or without: then it is only the local one.

    Methods that may ask the shared store block on the network: call them from a worker thread.  None of them deletes in
    it, because one shared store is behind several local ones: its own ``keep_only`` does, given what all of them need.

    Attributes:
        local: what receivers fill and senders offer.
        shared: where everybody finds its blobs; None: nobody else needs them.
    """

    local: BlobStore
    shared: Depot | None = None

    def put(self, data: bytes) -> BlobRef:
        """Store ``data`` in both, and give its reference.

        Raises:
            StoreError: a store failed, or ``data`` is longer than a reference can describe.
        """
        ref = self.local.put(data)
        if self.shared is not None:
            self.shared.keep(data)
        return ref

    def keep(self, data: bytes | memoryview) -> str:
        """Store ``data`` of any length in both; its digest.

        Raises:
            StoreError: a store failed.
        """
        sha256 = self.local.keep(data)
        if self.shared is not None:
            self.shared.keep(data)
        return sha256

    def share(self, sha256: str) -> None:
        """Put a blob that came over the bus into the shared store, before anything says that it is there.

        Raises:
            StoreError: a store failed, or the blob is not here.
        """
        if self.shared is not None:
            self.shared.keep(self.local.read(sha256))

    def read(self, sha256: str) -> bytes:
        """The blob, its digest verified, from the local store or else from the shared one.

        Raises:
            StoreError: missing in both, unreadable or damaged.
        """
        if self.shared is None:
            return self.local.read(sha256)
        if self.local.has(sha256):
            try:
                return self.local.read(sha256)
            except StoreError:  # damaged, and deleted
                if self.local.has(sha256):
                    raise
        data = bytes(self.shared.read(sha256))
        self.local.keep(data)
        return data

    def read_into(self, sha256: str, room: Callable[[int], bytearray | memoryview] = bytearray) -> memoryview:
        """Likewise, into memory that can be written to: see :meth:`BlobStore.read_into`."""
        if self.shared is not None:
            self.read(sha256)  # so that it is here, and whole
        return self.local.read_into(sha256, room)

    def ref_inline(self, ref: BlobRef) -> BlobRef:
        """``ref`` as it goes into a message: see :meth:`BlobStore.ref_inline`."""
        return self.local.ref_inline(ref)
