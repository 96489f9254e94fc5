"""How the C library keeps large blocks of memory.

glibc hands a block above a threshold back to the system when it is freed; but each such block that is freed raises the
threshold to its size, so models of some MB soon lie in the heap, which only grows: after the same run an agent with a
model of 4 MB held 76 MiB in place of 60, a coordinator 213 MiB in place of 190.  A fixed threshold ends that.
"""

from __future__ import annotations

import ctypes

_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of malloc.h
_TRIM_THRESHOLD = -1  # M_TRIM_THRESHOLD of malloc.h
LARGE = 256 << 10  # bytes
KEPT = 64 << 20  # bytes at the top of a heap that stay with the process
_LARGEST = 32 << 20  # bytes: the greatest threshold that glibc takes


def give_back_large_blocks(threshold: int = LARGE) -> bool:
    """Let freed blocks of this many bytes and more go back to the system at once, for as long as the process lives.

    A large block then costs the system's zeroing of its pages each time, some 0.2 ms a MB.

    Returns:
        False where the C library cannot do it: only glibc can.
    """
    try:
        return bool(ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, threshold))
    except (OSError, AttributeError):
        return False


def keep_freed_blocks(kept: int = KEPT) -> bool:
    """Let freed memory stay with the process, for as long as it lives: for one that trains all the time.

    By default glibc hands the top of a heap back to the system as soon as 128 KiB of it are free, and large blocks at
    once.  A training step frees its intermediate results again and again, so each step then pays for having the same
    pages zeroed: 2,400 page faults and a third of the processor time of five steps of Ditto on the 1-D CNN.

    Args:
        kept: bytes that may lie idle at the top of each thread's heap.

    Returns:
        False where the C library cannot do it: only glibc can.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST)) and bool(mallopt(_TRIM_THRESHOLD, kept))
