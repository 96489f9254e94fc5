"""Files that survive a power cut, and their errors."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edgepfl.errors import StoreError

_REMEDIES = {
    errno.ENOSPC: "Free some space on that disk",
    errno.EDQUOT: "Free some space, or raise the quota",
    errno.EFBIG: "Raise the limit on the size of a file",
    errno.EACCES: "Let this user write there",
    errno.EPERM: "Let this user write there",
    errno.EROFS: "Remount that disk for writing; a card that fails often turns read-only",
    errno.EIO: "Check the disk: it fails",
}
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What the operating system says when there is no room."""


@contextmanager
def storing(where: Path) -> Iterator[None]:
    """Turn the operating system's errors into StoreError."""
    try:
        yield
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "")
        what = f"the store failed ({error.strerror or error})"
        raise StoreError(what, where=str(where), remedy=remedy, full=error.errno in FULL) from error


def write_durably(path: Path, data: bytes | memoryview) -> None:
    """Give ``path`` this content: after a power cut it holds either the old content or all of the new."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name[:16]}-", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        settle(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_at(path: Path, offset: int, data: bytes) -> None:
    """Write into a file, which is made if it is missing; nothing is promised about a power cut."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
        file.seek(offset)
        file.write(data)


def resize(path: Path, size: int) -> None:
    """Make a file so long; it is made, for its owner alone, if it is missing, and what it gains is zeros."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
        file.truncate(size)


def free_bytes(directory: Path) -> int:
    """What this user may still write on the disk of a directory."""
    disk = os.statvfs(directory)
    return disk.f_bavail * disk.f_frsize


def make_directory(path: Path, mode: int = 0o777) -> None:
    """Make a directory, and those above it that are missing; their names are on the disk when this returns."""
    for missing in reversed([each for each in (path, *path.parents) if not each.exists()]):
        missing.mkdir(mode=mode, exist_ok=True)
        sync(missing.parent)


def settle(temporary: Path, path: Path) -> None:
    """Rename a file that is fully written; both steps are on the disk when this returns."""
    sync(temporary)
    temporary.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file, or a directory's list of names, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
