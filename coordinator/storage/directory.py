"""A shared store in a directory, of one machine or mounted on several.

::

    DIRECTORY/SHA256   a blob
    DIRECTORY/owner    the name of the fleet whose it is
    DIRECTORY/*.tmp    a write that goes on, or that a crash cut short: removed when it is old
    DIRECTORY/.lock    between those who put a blob that is here already and those who clean up
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import file_digest
from pathlib import Path

from coordinator.storage.depot import (
    GRACE,
    OWNER,
    Clock,
    Span,
    check_digest,
    check_owner,
    check_spans,
    cut_short,
    damaged,
    digest,
    is_digest,
    missing,
)
from edgepfl.bus._files import make_directory, storing, sync, write_durably

_TEMPORARY = ".tmp"


class DirectoryDepot:
    """Blobs in a directory, which is made if it is missing, for this user only.

    Args:
        directory: of this store alone; what is not a blob's name in it is left as it is.
        grace: seconds that a blob without a reference stays.
        clock: for :meth:`keep_only`; that of the disk, more or less.

    Raises:
        StoreError: the directory cannot be made.
    """

    def __init__(self, directory: Path, *, grace: float = GRACE, clock: Clock = time.time) -> None:
        self._directory = directory
        self._grace = grace
        self._clock = clock
        with storing(directory):
            make_directory(directory, 0o700)

    @property
    def where(self) -> str:
        """See :class:`~coordinator.storage.depot.Depot`."""
        return str(self._directory)

    def keep(self, data: bytes | bytearray | memoryview) -> str:
        """See :class:`~coordinator.storage.depot.Depot`."""
        view = memoryview(data).cast("B")
        sha256 = digest(view)
        path = self._path(sha256)
        with storing(path):
            if not self._renewed(path) or not _is_whole(path):
                write_durably(path, view)
        return sha256

    def read(self, sha256: str) -> bytearray:
        """See :class:`~coordinator.storage.depot.Depot`."""
        path = self._path(sha256)
        with _reading(path), path.open("rb") as file:
            data = bytearray(os.fstat(file.fileno()).st_size)
            file.readinto(data)
        if digest(data) != sha256:
            self.delete(sha256)
            raise damaged(str(path))
        return data

    def read_range(self, sha256: str, start: int, length: int) -> memoryview:
        """See :class:`~coordinator.storage.depot.Depot`."""
        return self.read_ranges(sha256, [(start, length)])[0]

    def read_ranges(self, sha256: str, spans: Sequence[Span]) -> list[memoryview]:
        """See :class:`~coordinator.storage.depot.Depot`."""
        path = self._path(sha256)
        check_spans(spans, str(path))
        found = []
        with _reading(path), path.open("rb") as file:
            for start, length in spans:
                file.seek(start)
                data = file.read(length)
                if len(data) != length:
                    raise cut_short((start, length), len(data), str(path))
                found.append(memoryview(data))
        return found

    def has(self, sha256: str) -> bool:
        """See :class:`~coordinator.storage.depot.Depot`."""
        with storing(self._directory):
            return self._path(sha256).is_file()

    def size(self, sha256: str) -> int:
        """See :class:`~coordinator.storage.depot.Depot`."""
        path = self._path(sha256)
        with _reading(path):
            return path.stat().st_size

    def delete(self, sha256: str) -> None:
        """See :class:`~coordinator.storage.depot.Depot`."""
        path = self._path(sha256)
        with storing(path):
            path.unlink(missing_ok=True)

    def digests(self) -> set[str]:
        """See :class:`~coordinator.storage.depot.Depot`."""
        with storing(self._directory):
            return {path.name for path in self._directory.iterdir() if is_digest(path.name)}

    def keep_only(self, shas: Collection[str]) -> None:
        """See :class:`~coordinator.storage.depot.Depot`; it also removes what crashes left."""
        kept = frozenset(shas)
        oldest = self._clock() - self._grace
        with storing(self._directory):
            for path in tuple(self._directory.iterdir()):
                if path.suffix == _TEMPORARY or (is_digest(path.name) and path.name not in kept):
                    self._delete_if_older(path, oldest)

    def claim(self, fleet: str) -> None:
        """See :class:`~coordinator.storage.depot.Depot`."""
        path = self._directory / OWNER
        with storing(path), self._locked(fcntl.LOCK_EX):
            if not path.exists():
                write_durably(path, fleet.encode())
            owner = path.read_bytes()
        check_owner(owner, fleet, self.where)

    def _path(self, sha256: str) -> Path:
        return self._directory / check_digest(sha256, self.where)

    def _renewed(self, path: Path) -> bool:
        """Begin the grace period of a blob anew; False if it is not here.

        The lock keeps whoever cleans up from deleting it between looking at its age and acting on it.
        """
        with self._locked(fcntl.LOCK_SH):
            try:
                os.utime(path)
            except FileNotFoundError:
                return False
        sync(path.parent)  # whoever wrote it may not have come so far
        return True

    def _delete_if_older(self, path: Path, oldest: float) -> None:
        with self._locked(fcntl.LOCK_EX), suppress(FileNotFoundError):
            if path.stat().st_mtime < oldest:
                path.unlink()

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        """Hold the directory's lock, shared or alone; the kernel opens it when the process dies."""
        handle = os.open(self._directory / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, how)
            yield
        finally:
            os.close(handle)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Tell a missing blob from a disk that fails."""
    try:
        with storing(path):
            yield
    except Exception as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise missing(str(path)) from error.__cause__
        raise


def _is_whole(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file_digest(file, "sha256").hexdigest() == path.name
    except FileNotFoundError:  # somebody found it damaged meanwhile, and deleted it
        return False
