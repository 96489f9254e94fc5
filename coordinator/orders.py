"""The coordinator's orders to its aggregators: one at a time, repeated until it is done."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from coordinator.storage.depot import Depot
from edgepfl.topics import Address, ToAggregator
from edgepfl.wire import Done, Here, Message, Order

log = logging.getLogger(__name__)
MOST = 16  # answers that nobody has looked at yet


class Orders:
    """The order that is outstanding.

    Args:
        send: publishes a message, or not.
        clock: seconds that never go back.
        again: seconds after which an order is repeated.
        changed: called when there is something to do, or no more.
    """

    def __init__(
        self,
        send: Callable[[Address, Message], None],
        clock: Callable[[], float],
        again: float,
        changed: Callable[[], None],
    ) -> None:
        self._send = send
        self._clock = clock
        self._changed = changed
        self._again = again
        self._closed = False
        self._job = ""
        self._sent = 0.0
        self._answers: asyncio.Queue[str] = asyncio.Queue(MOST)
        self._waits: asyncio.Task[object] | None = None

    @property
    def waiting(self) -> bool:
        """Whether aggregators have something to do."""
        return bool(self._job)

    @asynccontextmanager
    async def placed(self, job: str) -> AsyncIterator[Callable[[], Awaitable[str]]]:
        """Have a job done: gives what waits for the digest of its outcome, as somebody says that it is.

        The order stays and is repeated until the context ends; one at a time.

        Args:
            job: its digest.
        """
        if self._closed:
            raise asyncio.CancelledError
        self._job, self._answers, self._waits = job, asyncio.Queue(MOST), asyncio.current_task()
        self.repeat()
        self._changed()
        try:
            yield self._answers.get
        finally:
            self._job, self._waits = "", None
            self._changed()

    def repeat(self) -> None:
        """Send what is outstanding: aggregators are here, or the broker is reached again."""
        if self._job:
            self._sent = self._clock()
            self._send(ToAggregator(Order.KIND), Order(self._job))

    def look(self) -> None:
        """Repeat it if it is time."""
        if self._job and self._clock() - self._sent >= self._again:
            log.warning("job %s is not done yet: are the aggregators at work?", self._job[:16])
            self.repeat()

    def done(self, message: Done) -> None:
        """Somebody says that aggregators are done; what is too much is dropped, and said again."""
        if message.job == self._job and not self._answers.full():
            self._answers.put_nowait(message.outcome)

    def close(self) -> None:
        """Give up what is outstanding, and whatever comes: whoever waits for it is cancelled."""
        self._closed = True
        if self._waits is not None:
            self._waits.cancel()


@dataclass(frozen=True)
class Aggregation:
    """That aggregators do a coordinator's mathematics.

    Attributes:
        depot: the store that they share with it, of this fleet alone.
        again: seconds after which an order is repeated.
    """

    depot: Depot
    again: float = 10.0


class Aggregators:
    """A coordinator's aggregators, if it has any.

    Args:
        aggregation: how; None: it has none, and nothing here does anything.
        send: publishes a message, or not.
        clock: seconds that never go back.
        changed: called when they have something to do, or no more.
    """

    def __init__(
        self,
        aggregation: Aggregation | None,
        send: Callable[[Address, Message], None],
        clock: Callable[[], float],
        changed: Callable[[], None],
    ) -> None:
        self.aggregation = aggregation
        self._send = send
        self._clock = clock
        self._changed = changed
        self._orders: Orders | None = None

    @property
    def waiting(self) -> bool:
        """Whether they have something to do."""
        return self._orders is not None and self._orders.waiting

    def hire(self) -> Orders:
        """Orders for one run, in place of those for another."""
        self.dismiss()
        again = self.aggregation.again if self.aggregation is not None else 0.0
        self._orders = Orders(self._send, self._clock, again, self._changed)
        return self._orders

    def dismiss(self) -> None:
        """The run is over, or the service is: whoever waits for an order is cancelled."""
        if self._orders is not None:
            self._orders.close()

    def repeat(self) -> None:
        """The broker was reached (again)."""
        if self._orders is not None:
            self._orders.repeat()

    def look(self) -> None:
        """See whether it is time to repeat an order."""
        if self._orders is not None:
            self._orders.look()

    def heard(self, message: Message) -> None:
        """They said something."""
        match message:
            case Here(ranks):
                log.info("aggregators are here, %d processes", ranks)
                self.repeat()
            case Done() if self._orders is not None:
                self._orders.done(message)
            case _:
                log.info("a %s of the aggregators came to nothing", message.KIND)
