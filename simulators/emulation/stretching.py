"""A slow device on a fast machine: a task takes longer by waiting, and no processor works for it meanwhile."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

import msgspec

from device_agent.interpreter import Stopped
from device_agent.work import Materials, Product
from edgepfl.wire import Task

LOOK = 0.2  # seconds between two looks at whether a task that is waited for is still wanted
Given = TypeVar("Given")


class Stretching(Executor):
    """Gives what another executor gives, later: as if its thread were ``factor`` times slower.

    It takes what an agent hands to its pool, :meth:`Workshop.perform` and its arguments.  What a task cost is measured
    as its thread's own processor time, so that a machine with many devices at work does not make them slower still.

    Args:
        pool: does the arithmetic.
        factor: how many times longer the device takes, at least 1.
        speedup: by how much the emulation's time is faster than the wall's.
    """

    def __init__(self, pool: Executor, factor: float, speedup: float = 1.0) -> None:
        self._pool = pool
        self._factor = factor
        self._speedup = speedup
        self._loop = asyncio.get_running_loop()

    def submit(self, function: Callable[..., Given], /, *args: Any, **_: Any) -> Future[Given]:  # noqa: ANN401  as Executor has it
        """Do a task; its result comes when a slow device would have it."""
        task, materials, on_step = args
        later: Future[Given] = Future()
        later.set_running_or_notify_cancel()  # from here on nobody can cancel it
        inner = self._pool.submit(self._measured, function, task, materials, on_step)
        inner.add_done_callback(lambda done: self._loop.call_soon_threadsafe(self._arrived, done, later, on_step))
        return later

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002  as Executor has it
        """Nothing: the pool is somebody else's."""

    def _measured(
        self, function: Callable[..., Any], task: Task, materials: Materials, on_step: Callable[[int], None]
    ) -> tuple[Any, float]:
        """What a task gives, and the seconds that it cost here."""
        patience = task.patience * self._speedup / self._factor
        began = time.thread_time()
        found = function(msgspec.structs.replace(task, patience=patience), materials, on_step)
        return found, time.thread_time() - began

    def _arrived(self, done: Future[tuple[Any, float]], later: Future[Any], on_step: Callable[[int], None]) -> None:
        if (error := done.exception()) is not None:
            later.set_exception(error)
            return
        product, cost = done.result()
        if isinstance(product, Product):
            seconds = {phase: value * self._factor for phase, value in product.seconds.items()}
            product = dataclasses.replace(product, seconds=seconds)
        wait = max(0.0, cost * (self._factor / self._speedup - 1.0))
        self._wait(self._loop.time() + wait, later, product, on_step)

    def _wait(self, until: float, later: Future[Any], product: object, on_step: Callable[[int], None]) -> None:
        """Give a result at its time, or the end of the task if it is stopped before."""
        left = until - self._loop.time()
        if left <= 0:
            later.set_result(product)
            return
        try:
            on_step(0)
        except Stopped as stopped:
            later.set_exception(stopped)
            return
        self._loop.call_later(min(LOOK, left), self._wait, until, later, product, on_step)


class Slowed:
    """Pools by how slow a device is: devices of the same profile share one.

    Args:
        pool: does the arithmetic.
        speedup: by how much the emulation's time is faster than the wall's.
    """

    def __init__(self, pool: Executor, speedup: float = 1.0) -> None:
        self._pool = pool
        self._speedup = speedup
        self._found: dict[float, Executor] = {}

    def by(self, factor: float) -> Executor:
        """The pool of devices that are so many times slower than this machine."""
        if factor / self._speedup <= 1.0:
            return self._pool
        if factor not in self._found:
            self._found[factor] = Stretching(self._pool, factor, self._speedup)
        return self._found[factor]
