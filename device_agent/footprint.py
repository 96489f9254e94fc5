"""Giving memory back to the system between tasks."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache


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
