"""The memory of a process: how much it is, and giving some of it back between tasks."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

_FIELD = {name: re.compile(rf"^{name}: +(\d+) kB$", re.MULTILINE) for name in ("Pss", "Anonymous")}


def trim() -> None:
    """Return what the C library keeps of freed memory: some MiB after a task, and a task is rare.

    Only glibc can; elsewhere nothing happens.
    """
    found = _malloc_trim()
    if found is not None:
        found(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None


def pss(process: int | str = "self") -> int | None:
    """The proportional set size of a process in bytes: its own pages, and its share of those it has in common.

    Args:
        process: its number; this process unless given.

    Returns:
        None where the process is over, or the kernel does not tell.
    """
    return _rolled_up("Pss", process)


def own(process: int | str = "self") -> int | None:
    """What a process has written, in bytes: memory that no other process shares and that cannot be paged out to a file.

    Unlike :func:`pss` it does not depend on who else maps the same libraries.

    Args:
        process: its number; this process unless given.

    Returns:
        None where the process is over, or the kernel does not tell.
    """
    return _rolled_up("Anonymous", process)


def _rolled_up(name: str, process: int | str) -> int | None:
    try:
        found = _FIELD[name].search(Path(f"/proc/{process}/smaps_rollup").read_text("ascii"))
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
