"""Work that takes virtual time: ordinary blocking code, in which each piece says how long it takes.

A function given to a :class:`Processor` runs in a thread of its own, but never beside anything else: once what it
spent (:func:`spend`) comes to a quantum, it rests and the event loop goes on, until the loop's clock has come so far.
So a long training meets whatever happens meanwhile (a cancelled task, a lost condition, a power cut) at the same step
on every machine, and nothing that it touches needs a lock.

The thread is only a way to leave a function in its middle.  Generators would do it for code that is written for them;
this runs the code of real devices as it is.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

T = TypeVar("T")
_here = threading.local()


class PowerCut(BaseException):
    """Ends work where it is; no handler of errors may go on with it."""


def spend(seconds: float) -> None:
    """Let virtual time pass; to be called by work on a processor.

    Args:
        seconds: as a processor of factor 1 takes.

    Raises:
        PowerCut: there is no power any more.
        RuntimeError: this is no processor's work.
    """
    strand: _Strand | None = getattr(_here, "strand", None)
    if strand is None:
        raise RuntimeError("no processor works here, so no time can pass")
    strand.rest(seconds)


def ahead() -> float:
    """Virtual seconds by which the work that asks is ahead of the event loop's clock; 0 outside of work."""
    strand: _Strand | None = getattr(_here, "strand", None)
    return 0.0 if strand is None else strand.debt


class Inline(Executor):
    """Does everything at once, in the calling thread."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:  # noqa: ANN401  its base's
        """Do it; the future that is given is done."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001  it is the caller's, who gets it as from any executor
            future.set_exception(error)
        return future


class Processor(Executor):
    """One core of a simulated device: does one thing after the other, in virtual time.

    Args:
        factor: how many times longer than a processor of factor 1 it takes.
        quantum: virtual seconds that work may be ahead of the clock: so late it meets what happens meanwhile.  Each
            time costs two switches between threads, some 20 us, and on a busy machine milliseconds.
        on_end: called when a piece of work has ended, at its virtual end.
    """

    def __init__(self, factor: float = 1.0, quantum: float = 1.0, on_end: Callable[[], None] = lambda: None) -> None:
        self.factor = factor
        self.quantum = quantum
        self._on_end = on_end
        self._waiting: deque[_Strand] = deque()
        self._strand: _Strand | None = None

    @property
    def busy(self) -> bool:
        """Whether it works."""
        return self._strand is not None

    def begin(self, loop: asyncio.AbstractEventLoop, work: Callable[[], T], future: asyncio.Future[T]) -> None:
        """Do some work as soon as all that came before it is done, and give its result to a future."""
        self._waiting.append(_Strand(self, loop, work, future))
        loop.call_soon(self._next)

    def cut(self) -> None:
        """Cut its power: all work ends where it is, and whoever waits for it is cancelled."""
        for each in self._waiting:
            each.future.cancel()
        self._waiting.clear()
        if self._strand is not None:
            self._strand.end()

    def done(self) -> None:
        """The strand at work has ended."""
        self._strand = None
        self._on_end()
        self._next()

    def _next(self) -> None:
        while self._strand is None and self._waiting:
            strand = self._waiting.popleft()
            if not strand.future.done():
                self._strand = strand
                strand.start()


class _Strand:
    """A function in a thread; the event loop's thread and this one take turns.

    A turn is passed by releasing the other's semaphore and waiting for one's own.
    """

    def __init__(
        self,
        processor: Processor,
        loop: asyncio.AbstractEventLoop,
        work: Callable[[], Any],
        future: asyncio.Future[Any],
    ) -> None:
        self.future = future
        self._processor = processor
        self._loop = loop
        self._work = work
        self._thread = threading.Thread(target=self._run, name="strand", daemon=True)
        self._mine, self._loops = threading.Semaphore(0), threading.Semaphore(0)
        self._timer: asyncio.TimerHandle | None = None
        self.debt = 0.0  # virtual seconds that it spent and that have not passed
        self._ended = False
        self._cut = False
        self._result: Any = None
        self._error: BaseException | None = None

    # In the loop's thread.

    def start(self) -> None:
        """Begin."""
        self._thread.start()
        self._stand_still()

    def end(self) -> None:
        """End where it rests."""
        if self._timer is not None:
            self._timer.cancel()
            self._cut = True
            self.future.cancel()
            self._go_on()

    def _go_on(self) -> None:
        self._timer = None
        self.debt = 0.0
        if self._ended:
            self._tell()
        else:
            self._mine.release()
            self._stand_still()

    def _stand_still(self) -> None:
        """Wait until the strand rests or has ended, and then let pass what it has spent."""
        self._loops.acquire()
        if self._ended:
            self._thread.join()
        if self._cut:
            self._tell()
        else:
            self._timer = self._loop.call_later(self.debt, self._go_on)

    def _tell(self) -> None:
        if not self.future.done():
            if self._error is not None:
                self.future.set_exception(self._error)
            else:
                self.future.set_result(self._result)
        self._processor.done()

    # In its own.

    def rest(self, seconds: float) -> None:
        """Spend some time; if it is enough, let the loop go on for so long."""
        if self._cut:
            raise PowerCut
        self.debt += max(0.0, seconds) * self._processor.factor
        if self.debt < self._processor.quantum:
            return
        self._loops.release()
        self._mine.acquire()
        if self._cut:
            raise PowerCut

    def _run(self) -> None:
        _here.strand = self
        try:
            self._result = self._work()
        except BaseException as error:  # noqa: BLE001  it is the caller's, who gets it as from any executor
            self._error = error
        self._ended = True
        self._loops.release()
