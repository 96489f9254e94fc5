"""Processes that are watched at every fsync, and end at the one that a test chooses."""

from __future__ import annotations

import atexit
import mmap
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from copy import deepcopy
from functools import cache
from pathlib import Path

from _components import absent
from _disk import Change, Disk, Tree, changes, replayed, restore

SOURCE = Path(__file__).with_name("interposer.c")
_CONTROL = struct.Struct("=QQQ")  # interposer.c's struct control


@cache
def library() -> Path:
    """interposer.c as a library, compiled once for all tests."""
    if sys.platform != "linux" or sys.maxsize < 1 << 32:
        absent("a 64-bit Linux", "another machine")
    compiler = shutil.which(os.environ.get("CC") or "cc")
    if compiler is None:
        absent("a C compiler", "apt install gcc")
    folder = Path(tempfile.mkdtemp(prefix="edgepfl-crash-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    target = folder / "interposer.so"
    words = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", str(target), str(SOURCE)]
    subprocess.run([*words, "-pthread"], check=True)
    return target


class Watch:
    """The changes that one process after another makes in a directory.

    Args:
        root: the directory; it need not exist yet.
        folder: for log and control page, outside of it.
        sends: whether to log what the processes send on sockets.
    """

    def __init__(self, root: Path, folder: Path, *, sends: bool = False) -> None:
        self.root = root.resolve()
        self._log = folder / f"{root.name}.changes"
        self._sends = sends
        control = folder / f"{root.name}.control"
        control.write_bytes(bytes(mmap.PAGESIZE))
        self._control_path = control
        with control.open("r+b") as file:
            self._control = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        self._before = Disk()

    def environment(self) -> dict[str, str]:
        """For the next process; what is in the directory now counts as durable, and its log begins anew."""
        self._before = Disk(self.root)
        self._log.unlink(missing_ok=True)
        self._control[: _CONTROL.size] = bytes(_CONTROL.size)
        named = {"ROOT": self.root, "LOG": self._log, "CONTROL": self._control_path}
        watching = {f"EDGEPFL_CRASH_{name}": str(path) for name, path in named.items()}
        sends = {"EDGEPFL_CRASH_SENDS": "1"} if self._sends else {}
        return {**os.environ, **watching, **sends, "LD_PRELOAD": str(library()), "OMP_NUM_THREADS": "1"}

    @property
    def syncs(self) -> int:
        """How many fsyncs the process has made, or is about to."""
        return int(_CONTROL.unpack_from(self._control)[0])

    def arm(self, number: int, *, after: bool) -> None:
        """End the process at its fsync of this number, just before or just after it."""
        struct.pack_into("=QQ", self._control, 8, number, after)

    def disarm(self) -> None:
        """Let it live."""
        self.arm(0, after=False)

    def log(self) -> list[Change]:
        """What the last process did."""
        return changes(self._log.read_bytes()) if self._log.exists() else []

    def disk(self) -> Disk:
        """The directory after everything that it did."""
        return replayed(self.log(), self.begun())

    def begun(self) -> Disk:
        """The directory as it began."""
        return deepcopy(self._before)

    def killed_at(self) -> str:
        """The path of what it was syncing when it was ended; empty if it was not."""
        last = self.log()[-1:]
        return last[0].path if last and last[0].kind == "K" else ""

    def cut(self, tree: Tree) -> None:
        """Give the directory what a power cut left of it."""
        shutil.rmtree(self.root, ignore_errors=True)
        restore(tree, self.root)
