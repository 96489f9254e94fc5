"""An event loop beside the test: agents go on while the test looks at them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from edgepfl.errors import RunError

Result = TypeVar("Result")


class Background:
    """An event loop in a thread of its own, for as long as the context lasts.

    Args:
        patience: seconds that :meth:`run` waits.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="edgepfl-fleet", daemon=True)

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do something in the loop, and wait for what it gives.

        Raises:
            RunError: it took too long; it was cancelled.
        """
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(self._patience)
        except concurrent.futures.TimeoutError:
            if future.done():  # the work's own error
                raise
            raise RunError(
                f"not done within {self._patience:g} s",
                where="edgepfl's fixtures",
                remedy="Look at the story for what it waits for, or give --edgepfl-patience SECONDS",
            ) from None
        finally:
            future.cancel()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(_ended(asyncio.all_tasks(self._loop)))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


async def _ended(tasks: set[asyncio.Task[Any]]) -> None:
    """End what a test left behind."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
