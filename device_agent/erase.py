"""Removing what a device keeps, so that it can be shown to be gone.

Only what an agent writes is touched (see :mod:`device_agent.place`): whatever else lies in its state directory stays.

Each file is renamed, overwritten with zeros, read back from the operating system, and deleted.  The database is renamed
before anything is overwritten: an agent that starts after a power cut halfway finds no store and joins as a new device,
and never a store without its log, which would be an older state of itself.  Erasing again ends what was cut short.

What it cannot do: cards and SSDs write to new cells and keep the old ones for a while, so zeros that are read back say
nothing of the chips: no overwriting of single files was found to work on SSDs (Wei, Grupp, Spada and Swanson, "Reliably
Erasing Data From Flash-Based Solid State Drives", FAST 2011).  File systems that copy on write keep old blocks
likewise.  Against who reads the chips only an encrypted disk, whose key is destroyed, helps.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from device_agent.checkpoint import FILE
from device_agent.place import DATABASE, FETCHED, OFFERED
from edgepfl.bus._files import storing, sync
from edgepfl.bus.lock import ProcessLock
from edgepfl.errors import StoreError

_LOCK = f"{DATABASE}.lock"
_GOING = f"{DATABASE}.erasing"
_NAMES = (_GOING, DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", f"{DATABASE}-journal", FILE, f"{FILE}.tmp")
_BLOB = re.compile(r"[0-9a-f]{64}(\.part)?|.+\.tmp")  # see edgepfl.bus.blobs
_FOLDERS = (FETCHED, OFFERED)
_BLOCK = 1 << 20  # bytes at a time: memory is scarce on a board


@dataclass(frozen=True)
class Erased:
    """One file that was there.

    Attributes:
        path: where it was, relative to the state directory.
        size: bytes.
        sha256: of what it held; of a symbolic link, of its target's name.
    """

    path: str
    size: int
    sha256: str


def kept(state: Path) -> list[Path]:
    """Every file of an agent under its state directory, the database first; its lock, which is empty, is left out.

    Raises:
        StoreError: the directory cannot be read.
    """
    with storing(state):
        top = [state / name for name in _NAMES if os.path.lexists(state / name)]
        return top + [path for name in _FOLDERS for path in _blobs_in(state / name)]


def erase(state: Path) -> list[Erased]:
    """Overwrite and delete every file of an agent; its lock alone stays, which is empty.

    Args:
        state: the agent's state directory.

    Returns:
        what was there.

    Raises:
        StoreError: an agent is using it, it is no state directory, a file cannot be removed, or something is left.
    """
    if not state.is_dir():
        raise StoreError("there is no state", where=str(state), remedy="Look at state in the agent's settings")
    lock = ProcessLock(state / _LOCK, subject=state, holder="agent")
    try:
        erased = _finish(state)
        with storing(state):
            if os.path.lexists(state / DATABASE):
                (state / DATABASE).replace(state / _GOING)
                sync(state)
        erased += [_remove(path, state) for path in kept(state)]
        with storing(state):
            for folder in (state / name for name in _FOLDERS):
                if _is_folder(folder) and not any(folder.iterdir()):
                    folder.rmdir()
            sync(state)
        if left := kept(state):
            raise StoreError(f"{len(left)} files are left", where=str(left[0]), remedy="Erase it again")
        return erased
    finally:
        lock.close()


def _finish(state: Path) -> list[Erased]:
    """Remove the database that an erasing before this one has renamed: another must not take its name meanwhile."""
    return [_remove(state / _GOING, state)] if os.path.lexists(state / _GOING) else []


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _blobs_in(folder: Path) -> list[Path]:
    if not _is_folder(folder):
        return []
    return sorted(path for path in folder.iterdir() if _BLOB.fullmatch(path.name) and not _is_folder(path))


def _remove(path: Path, state: Path) -> Erased:
    where = DATABASE if path.name == _GOING else str(path.relative_to(state))
    with storing(path):
        if not stat.S_ISREG(path.lstat().st_mode):  # what a link points to is not ours
            name = os.fsencode(path.readlink()) if path.is_symlink() else b""
            path.unlink()
            return Erased(where, len(name), hashlib.sha256(name).hexdigest())
        size = path.stat().st_size
        before = hashlib.sha256()
        for block in _blocks(path):
            before.update(block)
        _overwrite(path, size)
        if any(any(block) for block in _blocks(path)):
            raise StoreError("it was overwritten and is still there", where=str(path), remedy="Look after the disk")
        path.unlink()
        sync(path.parent)
    return Erased(where, size, before.hexdigest())


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            yield block


def _overwrite(path: Path, size: int) -> None:
    """Put zeros where the file's bytes are; they are on the disk when this returns."""
    with path.open("r+b") as file:
        for start in range(0, size, _BLOCK):
            file.write(bytes(min(_BLOCK, size - start)))
        file.flush()
        os.fsync(file.fileno())
