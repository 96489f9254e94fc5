"""Receivers on slow links that share a blob's topic, in virtual time: no network, no waiting."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path

from edgepfl.bus.blobs import BlobStore
from edgepfl.bus.chunks import Receiver, Sender
from edgepfl.wire import BlobRef, Need

LATENCY = 0.02  # seconds of a Need


class Link:
    """A receiver behind a link: what is published for anybody crosses it, one chunk after the other."""

    def __init__(self, rate: float, blobs: BlobStore) -> None:
        self.rate = rate  # bytes per second
        self.receiver = Receiver(blobs)
        self.free_at = 0.0
        self.done_at: float | None = None
        self.carried = 0  # bytes


class Cohort:
    """A sender and its receivers; a chunk is published once for all."""

    def __init__(self, folder: Path, data: bytes, rates: list[float], *, chunk: int) -> None:
        source = BlobStore(folder / "source")
        self.ref: BlobRef = source.put(data, chunk)
        self._sender = Sender(source)
        self.links = [Link(rate, BlobStore(folder / str(number))) for number, rate in enumerate(rates)]
        self.published = 0
        self._now = 0.0
        self._order = itertools.count()
        self._queue: list[tuple[float, int, Callable[[], None]]] = []

    def run(self, starts: list[float], limit: float) -> None:
        """Until everyone has the blob."""
        for link, start in zip(self.links, starts, strict=True):
            self._at(start, partial(self._begin, link))
        while self._queue:
            self._now, _, what = heapq.heappop(self._queue)
            assert self._now < limit, "it never ends"
            what()
        assert all(link.done_at is not None for link in self.links)

    def _begin(self, link: Link) -> None:
        link.receiver.want(self.ref, self._now)
        self._pump(link)

    def _pump(self, link: Link) -> None:
        for need in link.receiver.due(self._now):
            self._at(self._now + LATENCY, partial(self._publish, need))
        if (due := link.receiver.next_due) is not None:
            self._at(max(due, self._now + 0.001), partial(self._wake, link, due))

    def _wake(self, link: Link, due: float) -> None:
        if link.receiver.next_due == due:  # else a later wake comes
            self._pump(link)

    def _publish(self, need: Need) -> None:
        for index, data in self._sender.requested(need, self._now):
            self.published += 1
            for link in self.links:
                if link.receiver.wanted:
                    link.carried += len(data)
                    link.free_at = max(link.free_at, self._now) + len(data) / link.rate
                    self._at(link.free_at, partial(self._arrive, link, index, data))

    def _arrive(self, link: Link, index: int, data: bytes) -> None:
        if link.receiver.chunk(self.ref.sha256[:16], index, data, self._now) is not None:
            link.done_at = self._now
        self._pump(link)

    def _at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (when, next(self._order), what))
