"""SIGTERM as Ctrl-C: whoever ends an emulation from outside does not leave its coordinator and folders behind."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def stopped_in_order() -> Iterator[None]:
    """SIGTERM, which a CI system sends that gives up, ends what goes on here as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():  # others may set no handler
        yield
        return
    before = signal.signal(signal.SIGTERM, _as_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _as_interrupt(_: int, frame: FrameType | None) -> None:
    handler = signal.getsignal(signal.SIGINT)  # of asyncio, while it runs
    if not callable(handler):  # in a shell's background SIGINT is ignored; a SIGTERM is meant
        raise KeyboardInterrupt
    handler(signal.SIGINT, frame)
