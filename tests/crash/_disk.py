"""What a power cut leaves of a directory, from the log of everything that was done to it.

The model is more pessimistic than ext4, xfs or f2fs are:

* What a file holds is on the disk when ``fsync`` or ``fdatasync`` of that file returned, and not a moment before; the
  writes since then are there all, none, or any of them in part, whatever their order was.
* A name (made, removed or renamed) is on the disk when ``fsync`` of its directory returned.  The fsync of a file does
  not store its name, as POSIX allows and ext4 does not do; and a rename says nothing about the data of the file.
* Whatever was not synced is either lost or there, each for itself: :data:`LEFT` has the extremes, and torn files.
* SQLite's ``-shm`` is shared memory, which the log does not see: a cut leaves zeros.

What SQLite itself assumes of disks ("powersafe overwrite") holds: a torn write changes only bytes that it was to write.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from random import Random
from typing import TypeAlias

SECTOR = 512  # bytes that a disk writes whole
HEAD = struct.Struct("=IIQQ")


@dataclass(frozen=True)
class Change:
    """One record of interposer.c.

    Attributes:
        kind: C create, W write, T truncate, F fsync, R rename, U unlink, M mkdir, K killed, S sent; X is unknown.
        inode: of the file.
        offset: of W; of T the length; of F and K the number of the fsync.
        payload: of W and S the bytes, else a path, or two.
    """

    kind: str
    inode: int
    offset: int
    payload: bytes

    @property
    def path(self) -> str:
        """Of all but W, T and S."""
        return os.fsdecode(self.payload)


def changes(log: bytes) -> list[Change]:
    """The records of a log; one that the process died in the middle of is left out."""
    found, place = [], 0
    while place + HEAD.size <= len(log):
        kind, length, inode, offset = HEAD.unpack_from(log, place)
        place += HEAD.size + length
        if place <= len(log):
            found.append(Change(chr(kind), inode, offset, log[place - length : place]))
    return found


@dataclass
class File:
    """A file, as everybody sees it and as the disk has it.

    Attributes:
        current: with everything that was done.
        durable: as of the last fsync; empty before the first.
        pending: what was done since, in order: (offset, bytes), or (length, None) for a truncation.
    """

    current: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)

    def do(self, offset: int, data: bytes | None) -> None:
        self.pending.append((offset, data))
        _apply(self.current, offset, data)

    def sync(self) -> None:
        self.durable = bytes(self.current)
        self.pending.clear()

    def torn(self, chance: Random) -> bytes:
        """The durable bytes, and some of what was done since, at least one of it in part."""
        content = bytearray(self.durable)
        for offset, data in self.pending:
            if chance.random() < 0.5:
                sectors = len(data) // SECTOR if data else 0
                whole = data is None or chance.random() < 0.5
                _apply(content, offset, data if whole or data is None else data[: SECTOR * chance.randint(0, sectors)])
        return bytes(content)


Entry: TypeAlias = File | None
"""What a name stands for: a file, or None for a directory."""

Tree: TypeAlias = Mapping[str, bytes | None]
"""A directory's files by their path, None for a directory in it."""


class Disk:
    """A directory, as everybody sees it and as the disk has it.

    Args:
        folder: what was there before the log begins, all of it durable.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._current: dict[str, Entry] = {"": None}
        self._files: dict[int, File] = {}  # by inode
        if folder is not None and folder.exists():
            self._take(folder)
        self._durable: dict[str, Entry] = dict(self._current)

    def _take(self, folder: Path) -> None:
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            if path.is_dir():
                self._current[name] = None
            elif path.is_file():  # a socket is made anew at every start
                data = path.read_bytes()
                self._current[name] = self._files[path.stat().st_ino] = File(bytearray(data), data)

    def do(self, change: Change) -> None:
        """Follow one record.

        Raises:
            AssertionError: it is of a kind that this model does not know.
        """
        match change.kind:
            case "C":
                self._current[change.path] = self._files[change.inode] = File()
            case "W":
                self._files[change.inode].do(change.offset, change.payload)
            case "T":
                self._files[change.inode].do(change.offset, None)
            case "F":
                self._sync(change)
            case "R":
                self._rename(*change.path.split("\0"))
            case "U":
                self._current.pop(change.path, None)
            case "M":
                self._current[change.path] = None
            case "K" | "S":
                pass
            case _:
                raise AssertionError(f"the log cannot follow {change.path}")

    def _sync(self, change: Change) -> None:
        if change.inode in self._files and self._current.get(change.path, File()) is not None:
            self._files[change.inode].sync()
            return
        inside = {name: entry for name, entry in self._current.items() if _parent(name) == change.path}
        gone = [name for name in self._durable if _parent(name) == change.path and name not in inside]
        for name in gone:
            del self._durable[name]
        self._durable |= inside

    def _rename(self, old: str, new: str) -> None:
        entry = self._current.pop(old)
        assert entry is not None, "the model has no renamed directories"
        self._current[new] = entry

    # What is left.

    def everything(self) -> Tree:
        """All that was done, as after a kill -9."""
        return _tree(self._current, lambda file: bytes(file.current))

    def nothing(self) -> Tree:
        """Nothing but what was synced."""
        return _tree(self._durable, lambda file: file.durable)

    def names(self) -> Tree:
        """All names, and of the files' contents what was synced."""
        return _tree(self._current, lambda file: file.durable)

    def contents(self) -> Tree:
        """All contents, under the names that were synced."""
        return _tree(self._durable, lambda file: bytes(file.current))

    def torn(self, seed: int) -> Tree:
        """All names; one file's unsynced writes survived in part, the others' did not."""
        chance = Random(seed)
        unsynced = [file for _, file in sorted(self._current.items()) if file is not None and file.pending]
        victim = chance.choice(unsynced) if unsynced else None
        return _tree(self._current, lambda file: file.torn(chance) if file is victim else file.durable)


LEFT: Mapping[str, Callable[[Disk, int], Tree]] = {
    "everything": lambda disk, _: disk.everything(),
    "nothing": lambda disk, _: disk.nothing(),
    "names": lambda disk, _: disk.names(),
    "contents": lambda disk, _: disk.contents(),
    "torn": lambda disk, seed: disk.torn(seed),
}
"""What a cut may leave of what was not synced; the number chooses among torn files."""


def replayed(log: Iterable[Change], before: Disk) -> Disk:
    """A disk after everything in a log."""
    for change in log:
        before.do(change)
    return before


def restore(tree: Tree, folder: Path) -> None:
    """Make a folder with these files; it must not exist."""
    folder.mkdir(mode=0o700, parents=True)
    for name, data in sorted(tree.items()):
        if name and data is None:
            (folder / name).mkdir(mode=0o700)
        elif data is not None:
            (folder / name).write_bytes(data)
            (folder / name).chmod(0o600)


def _tree(names: Mapping[str, Entry], content: Callable[[File], bytes]) -> Tree:
    """The files of a list of names whose directories are in it, too."""
    found: dict[str, bytes | None] = {"": None}
    for name, entry in sorted(names.items()):  # a directory before what is in it
        if name and found.get(_parent(name), b"") is None:
            found[name] = None if entry is None else content(entry)
    return found


def _parent(name: str) -> str:
    parent = PurePosixPath(name).parent.as_posix() if name else "/"
    return "" if parent == "." else parent


def _apply(content: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del content[offset:]
        content.extend(bytes(offset - len(content)))
        return
    content.extend(bytes(max(0, offset - len(content))))
    content[offset : offset + len(data)] = data
