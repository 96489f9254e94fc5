"""Running a service until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Coroutine


async def until_signal(service: Coroutine[None, None, None]) -> None:
    """Run a service; SIGINT and SIGTERM end it in order."""
    serving = asyncio.ensure_future(service)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, serving.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await serving
    logging.getLogger(__name__).info("stopped; started again it goes on where it was")
