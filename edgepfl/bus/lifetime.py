"""Running a service from the command line until a signal ends it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
from collections.abc import Coroutine, Sequence
from pathlib import Path


def settings_file(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> Path:
    """The file of settings that a service was started with; from here on it logs to standard error.

    Args:
        parser: with the service's own texts; it gets the options that every service has.
        arguments: of the command line.
    """
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="settings, TOML")
    parser.add_argument("--verbose", action="store_true", help="log more")
    words = parser.parse_args(arguments)
    logging.basicConfig(
        level=logging.DEBUG if words.verbose else logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    config: Path = words.config
    return config


async def until_signal(service: Coroutine[None, None, None]) -> None:
    """Run a service; SIGINT and SIGTERM end it in order."""
    serving = asyncio.ensure_future(service)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, serving.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await serving
    logging.getLogger(__name__).info("stopped; started again it goes on where it was")
