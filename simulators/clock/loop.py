"""An asyncio event loop in virtual time: where nothing is ready, its clock jumps to the next timer.

It never waits, and one thing happens at a time, so the same program gives the same order of events on every machine.
Whatever is not a timer, a callback or work (see :mod:`simulators.clock.work`), such as a socket, does not exist in it.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple, Unpack

from edgepfl.errors import EdgepflError
from simulators.clock.work import Processor

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Standstill(EdgepflError):
    """Everything waits for something that will never come: no callback is ready, and no timer is set."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module's text.

    ``run_in_executor`` runs a function at once, in the calling thread, and gives the result at the loop's next turn;
    on a :class:`~simulators.clock.work.Processor` it takes the virtual time that the work says.

    Args:
        start: what the clock shows first, in seconds.
    """

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        super().__init__(_Jump(self))

    def time(self) -> float:
        """Virtual seconds."""
        return self._now

    def jump(self, seconds: float | None) -> None:
        """Let time pass, because nothing is ready.

        Raises:
            Standstill: there is no timer either.
        """
        if seconds is None:
            raise Standstill(
                "nothing is ready and no timer is set", where="virtual time", remedy="Something waits for real I/O"
            )
        if seconds > 0:  # a step that is lost in rounding would never end
            self._now = max(self._now + seconds, math.nextafter(self._now, math.inf))

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Run a function; see the class."""
        future: asyncio.Future[T] = self.create_future()
        if isinstance(executor, Processor):
            executor.begin(self, lambda: func(*args), future)
            return future
        try:
            result = func(*args)
        except Exception as error:  # noqa: BLE001  it is the caller's, who gets it as from any executor
            self.call_soon(_fail, future, error)
        else:
            self.call_soon(_give, future, result)
        return future


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in virtual time, from 0, to its end; like :func:`asyncio.run`."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


class _Jump(selectors.BaseSelector):
    """What the loop takes for a selector: instead of waiting for sockets it lets virtual time pass."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:  # noqa: ANN401  its base's
        """Nothing ever happens on it."""
        key = selectors.SelectorKey(fileobj, fileobj if isinstance(fileobj, int) else fileobj.fileno(), events, data)
        self._keys[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:  # noqa: ANN401  its base's
        """Forget it."""
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Let time pass."""
        self._loop.jump(timeout)
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        """What is registered."""
        return self._keys


def _give(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[T], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
