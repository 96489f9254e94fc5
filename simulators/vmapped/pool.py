"""Chunks of a cohort on several cores, one thread each: the operators of a small model are too short to share one.

Torch's own threads wait for each other after every operator.  Two of them took 20 times as long as one where other
processes kept the cores busy; chunks wait for nobody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

Given = TypeVar("Given")
Made = TypeVar("Made")


class Pool:
    """Threads in which torch uses one core each.

    Args:
        threads: how many.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "chunk", initializer=torch.set_num_threads, initargs=(1,))

    def map(self, work: Callable[[Given], Made], given: Iterable[Given]) -> Iterator[tuple[Given, Made]]:
        """What ``work`` makes of each, in order, a few of them ahead of who asks.

        The first is done alone: it writes graphs, and torch's tracing must not see what another thread does.
        """
        waiting: deque[tuple[Given, Future[Made]]] = deque()
        for number, each in enumerate(given):
            waiting.append((each, self._pool.submit(work, each)))
            if number == 0 or len(waiting) > self._threads:
                yield _done(waiting)
        while waiting:
            yield _done(waiting)

    def close(self) -> None:
        """End the threads, once they have done what they are at."""
        self._pool.shutdown(cancel_futures=True)


def _done(waiting: deque[tuple[Given, Future[Made]]]) -> tuple[Given, Made]:
    given, future = waiting.popleft()
    return given, future.result()
