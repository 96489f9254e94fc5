"""Content-addressed files: a blob's name is the SHA-256 of its bytes.

::

    DIRECTORY/SHA256         a whole blob, verified before it got this name
    DIRECTORY/SHA256.part    chunks of a blob that is still coming, see edgepfl.bus.chunks
    DIRECTORY/*.tmp          a write that a crash cut short: removed at start

A file gets its final name only after its bytes are on the disk, so a power cut leaves the old state or the new.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Collection
from pathlib import Path

from edgepfl import wire
from edgepfl.bus._files import settle, storing, write_durably
from edgepfl.bus._window import BLOB_LIMIT, digests
from edgepfl.errors import StoreError
from edgepfl.wire import BlobRef

_SHA256 = re.compile(r"[0-9a-f]{64}")
_PART = ".part"


class BlobStore:
    """Blobs in a directory, which is made if it is missing.

    Args:
        directory: of this store alone; what is not a blob's name in it is left as it is.

    Raises:
        StoreError: the directory cannot be made, read or written.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        with storing(directory):
            directory.mkdir(parents=True, exist_ok=True)
            for leftover in directory.glob("*.tmp"):
                leftover.unlink(missing_ok=True)

    @property
    def directory(self) -> Path:
        """Where the blobs are."""
        return self._directory

    def put(self, data: bytes) -> BlobRef:
        """Store ``data``; its reference always carries the digests of its chunks, never the bytes.

        Raises:
            StoreError: disk full, no permission, or longer than a reference can describe.
        """
        if len(data) > BLOB_LIMIT:
            raise StoreError(
                f"a blob of {len(data)} bytes, at most {BLOB_LIMIT} are possible", where=str(self._directory)
            )
        return BlobRef(self.keep(data), len(data), chunks=digests(data))

    def keep(self, data: bytes | memoryview) -> str:
        """Store ``data`` of any length, which never crosses the bus; its digest.

        Raises:
            StoreError: disk full, or no permission.
        """
        sha256 = hashlib.sha256(data).hexdigest()
        path = self.path(sha256)
        with storing(path):
            if not path.exists() or self._digest(path) != sha256:
                write_durably(path, data)
        return sha256

    def ref_inline(self, ref: BlobRef) -> BlobRef:
        """``ref`` as it goes into a message: with the bytes inline if they are few, else as it is.

        Raises:
            StoreError: the blob is not here.
        """
        if not 0 < ref.size <= wire.INLINE_LIMIT:
            return ref
        return BlobRef(ref.sha256, ref.size, inline=self.read(ref.sha256))

    def path(self, sha256: str) -> Path:
        """Where the blob lies, if it is here.

        Raises:
            StoreError: ``sha256`` is no digest.
        """
        if not _SHA256.fullmatch(sha256):
            raise StoreError(f"{sha256[:80]!r} is no SHA-256", where=str(self._directory))
        return self._directory / sha256

    def part(self, sha256: str) -> Path:
        """Where its chunks are gathered until all are here."""
        return self.path(sha256).with_suffix(_PART)

    def has(self, sha256: str) -> bool:
        """Whether the whole blob is here."""
        with storing(self._directory):
            return self.path(sha256).is_file()

    def read(self, sha256: str) -> bytes:
        """The blob, its digest verified.  A damaged file is deleted, so that it is fetched again.

        Raises:
            StoreError: missing, unreadable or damaged.
        """
        path = self.path(sha256)
        with storing(path):
            data = path.read_bytes()
        self._verify(sha256, data)
        return data

    def read_into(self, sha256: str, room: Callable[[int], bytearray | memoryview] = bytearray) -> memoryview:
        """Likewise, into memory that can be written to: what decodes it needs no copy of its own.

        Args:
            sha256: of the blob.
            room: gives memory of so many bytes, such as memory that a GPU reads directly.

        Raises:
            StoreError: missing, unreadable or damaged.
        """
        path = self.path(sha256)
        with storing(path), path.open("rb", buffering=0) as file:
            data = memoryview(room(os.fstat(file.fileno()).st_size))
            filled = 0
            while filled < len(data) and (count := file.readinto(data[filled:])):
                filled += count
        self._verify(sha256, data[:filled])
        return data

    def _verify(self, sha256: str, data: bytes | memoryview) -> None:
        if hashlib.sha256(data).hexdigest() != sha256:
            self.delete(sha256)
            raise StoreError(
                "the blob was damaged and is deleted",
                where=str(self.path(sha256)),
                remedy="Fetch it again; check the disk",
            )

    def adopt(self, sha256: str) -> bool:
        """Make a gathered blob a whole one, or delete it and say False if its digest is wrong."""
        part = self.part(sha256)
        with storing(part):
            if self._digest(part) != sha256:
                part.unlink()
                return False
            settle(part, self.path(sha256))
        return True

    def delete(self, sha256: str) -> None:
        """Forget the blob and what came of it so far; nothing happens if it is not here."""
        with storing(self._directory):
            self.path(sha256).unlink(missing_ok=True)
            self.part(sha256).unlink(missing_ok=True)

    def keep_only(self, shas: Collection[str]) -> None:
        """Delete every other blob, whole or partial."""
        kept = frozenset(shas)
        with storing(self._directory):
            for path in tuple(self._directory.iterdir()):
                sha256 = path.name.removesuffix(_PART)
                if _SHA256.fullmatch(sha256) and sha256 not in kept:
                    path.unlink(missing_ok=True)

    @staticmethod
    def _digest(path: Path) -> str:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
