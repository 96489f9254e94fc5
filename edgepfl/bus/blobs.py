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
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edgepfl import wire
from edgepfl.bus._files import free_bytes, make_directory, settle, storing, write_durably
from edgepfl.bus._window import BLOB_LIMIT, chunk_fitting, digest, digests
from edgepfl.errors import StoreError
from edgepfl.wire import CHUNK, BlobRef

_SHA256 = re.compile(r"[0-9a-f]{64}")
_PART = ".part"


@dataclass(frozen=True)
class Room:
    """How much of a disk a store may use.

    Attributes:
        quota: bytes of all its blobs; 0 for no limit but the disk's.
        reserve: bytes of the disk that stay free for others.
        beside: directories of other stores, whose blobs count, too.
    """

    quota: int = 0
    reserve: int = 0
    beside: tuple[Path, ...] = ()


class BlobStore:
    """Blobs in a directory, which is made if it is missing.

    Args:
        directory: of this store alone; what is not a blob's name in it is left as it is.
        room: how much of the disk it may use.

    Raises:
        StoreError: the directory cannot be made, read or written.
    """

    def __init__(self, directory: Path, room: Room = Room()) -> None:
        self._directory = directory
        self._room = room
        with storing(directory):
            make_directory(directory, 0o700)
            for leftover in directory.glob("*.tmp"):
                leftover.unlink(missing_ok=True)

    def limit(self, room: Room) -> None:
        """Let it use so much of the disk from now on; what is there stays."""
        self._room = room

    @property
    def directory(self) -> Path:
        """Where the blobs are."""
        return self._directory

    def put(self, data: bytes, chunk: int = CHUNK) -> BlobRef:
        """Store ``data``; its reference always carries the digests of its chunks, never the bytes.

        Args:
            data: the blob.
            chunk: bytes of its chunks; more where the digests of so many chunks would not fit into a message.

        Raises:
            StoreError: disk full, no permission, or longer than a reference can describe.
        """
        if len(data) > BLOB_LIMIT:
            raise StoreError(
                f"a blob of {len(data)} bytes, at most {BLOB_LIMIT} are possible", where=str(self._directory)
            )
        chunk = chunk_fitting(len(data), chunk)
        return BlobRef(self.keep(data), len(data), chunks=digests(data, chunk), chunk_size=chunk)

    def ref(self, sha256: str, chunk: int = CHUNK) -> BlobRef:
        """The reference of a blob that is here, in chunks of ``chunk`` bytes or more, as :meth:`put` gives it.

        It reads the blob a chunk at a time, and does not verify the whole.

        Raises:
            StoreError: the blob is not here or cannot be read.
            TransferError: it is longer than a reference can describe.
        """
        path = self.path(sha256)
        with storing(path), path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            chunk = chunk_fitting(size, chunk)
            found = b"".join(digest(data) for data in iter(lambda: file.read(chunk), b""))
        return BlobRef(sha256, size, chunks=found, chunk_size=chunk)

    def check_room(self, sha256: str, size: int, owed: int = 0) -> None:
        """Refuse a blob for which there is no room.

        Args:
            sha256: of the blob; what is here of it already does not count.
            size: its bytes.
            owed: bytes of the disk that are promised to others and not written yet.

        Raises:
            StoreError: it is above the quota, or the disk has not so much to spare.
        """
        room = self._room
        if room.quota and (used := self._used(without=sha256)) + size > room.quota:
            raise StoreError(
                f"a blob of {size} bytes does not fit: {used} of {room.quota} bytes are used",
                where=str(self._directory),
                remedy="Raise quota_mib in the table [transfer]",
                full=True,
            )
        with storing(self._directory):
            free = free_bytes(self._directory) - owed - room.reserve
        if size > free:
            raise StoreError(
                f"a blob of {size} bytes does not fit: the disk has {max(free, 0)} bytes to spare",
                where=str(self._directory),
                remedy=f"Free some space: {room.reserve} bytes stay free for others (reserve_mib in [transfer])",
                full=True,
            )

    def _used(self, *, without: str) -> int:
        """Bytes of all other blobs; one that is still coming has a file as long as it will be."""
        used = 0
        for directory in (self._directory, *self._room.beside):
            with storing(directory), os.scandir(directory) as entries:
                for entry in entries:
                    sha256 = entry.name.removesuffix(_PART)
                    if _SHA256.fullmatch(sha256) and (sha256 != without or directory != self._directory):
                        with suppress(FileNotFoundError):  # it went meanwhile
                            used += entry.stat().st_size
        return used

    @property
    def occupied(self) -> bool:
        """Whether there is anything at all in the directory."""
        with storing(self._directory), os.scandir(self._directory) as entries:
            return next(entries, None) is not None

    def whole(self) -> frozenset[str]:
        """The digests of the blobs that are here, whole."""
        with storing(self._directory):
            return frozenset(path.name for path in self._directory.iterdir() if _SHA256.fullmatch(path.name))

    def keep(self, data: bytes | memoryview) -> str:
        """Store ``data`` of any length, which never crosses the bus; its digest.

        Raises:
            StoreError: disk full, or no permission.
        """
        sha256 = hashlib.sha256(data).hexdigest()
        self.keep_checked(sha256, data)
        return sha256

    def keep_checked(self, sha256: str, data: bytes | memoryview) -> None:
        """Store ``data`` whose digest was calculated just now.

        Raises:
            StoreError: disk full, or no permission.
        """
        path = self.path(sha256)
        with storing(path):
            if not path.exists() or self._digest(path) != sha256:
                write_durably(path, data)

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
            for name in os.listdir(self._directory):  # noqa: PTH208  a path object for each name costs a round's time
                sha256 = name.removesuffix(_PART)
                if sha256 not in kept and _SHA256.fullmatch(sha256):
                    (self._directory / name).unlink(missing_ok=True)

    @staticmethod
    def _digest(path: Path) -> str:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
