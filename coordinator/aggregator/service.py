"""What feeds the ranks: rank 0 takes orders from the bus and tells them to the others.

An order comes again until it is done, so nothing is kept here that a restart could lose: whoever dies, all ranks are
started again, say that they are here, and get the order again.  The last outcome is remembered, for an order that comes
twice because an answer was lost; of several that wait, only the newest is done, because the coordinator waits for one
at a time.
"""

from __future__ import annotations

import asyncio
import logging
import os
from concurrent.futures import Executor, ThreadPoolExecutor

from coordinator.aggregator.crew import Crew, Scattered
from coordinator.aggregator.job import read_outcome
from coordinator.aggregator.member import Member
from coordinator.storage.depot import Depot
from edgepfl import wire
from edgepfl.bus import Arrived, Bus, Connected, Disconnected
from edgepfl.errors import BusError, CodecError, StoreError, WireError
from edgepfl.topics import FromAggregator, ToAggregator, Topics
from edgepfl.wire import Done, Here, Message, Order

log = logging.getLogger(__name__)
BEAT = 5.0
"""Seconds after which ranks with nothing to do hear from rank 0, and look whether whoever started them still lives."""

_DIGEST = 64  # characters before the job's own bytes


def follow(crew: Crew, member: Member) -> None:
    """The life of every rank but the first: do what rank 0 says.

    Raises:
        Scattered: another rank is gone.
    """
    parent = os.getppid()
    while True:
        said = crew.share()
        if said:
            member.do(said[:_DIGEST].decode(), said[_DIGEST:])
        elif os.getppid() != parent:
            raise Scattered("whoever started this rank is gone")


class Leader:
    """The life of rank 0.

    Args:
        fleet: its name.
        bus: not yet started.
        crew: all ranks.
        member: the work of this one.
        depot: the store that all ranks and the coordinator share.
        beat: see :data:`BEAT`.
    """

    def __init__(self, fleet: str, bus: Bus, crew: Crew, member: Member, depot: Depot, *, beat: float = BEAT) -> None:
        self._topics = Topics(fleet)
        self._bus = bus
        self._crew = crew
        self._member = member
        self._depot = depot
        self._beat = beat
        self._wanted = ""
        self._doing = ""
        self._last = Done("", "")
        self._ordered = asyncio.Event()

    async def run(self) -> None:
        """Serve until cancelled.

        Raises:
            BusError: the bus can never work with its settings.
            Scattered: another rank is gone.
        """
        self._bus.subscribe(self._topics.for_aggregator())
        await self._bus.start()
        try:
            with ThreadPoolExecutor(1, thread_name_prefix="rank") as worker:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._listen(), name="listen")
                    group.create_task(self._work(worker), name="work")
        except* Scattered as lost:
            raise Scattered(str(lost.exceptions[0])) from lost
        finally:
            await self._bus.stop()

    async def _listen(self) -> None:
        while True:
            match await self._bus.receive():
                case Connected():
                    log.info("connected; %d ranks are here", self._crew.ranks)
                    self._say(Here(self._crew.ranks))
                case Disconnected(reason):
                    log.warning("disconnected (%s)", reason)
                case Arrived(topic, payload):
                    self._arrived(topic, payload)

    def _arrived(self, topic: str, payload: bytes) -> None:
        if not isinstance(self._topics.parse(topic), ToAggregator):
            return
        try:
            message = wire.decode(payload, where=topic)
        except WireError as error:
            log.warning("ignored: %s", error)
            return
        if not isinstance(message, Order) or message.job == self._doing:
            return
        self._wanted = message.job
        self._ordered.set()

    async def _work(self, worker: Executor) -> None:
        loop, parent = asyncio.get_running_loop(), os.getppid()
        while True:
            try:
                async with asyncio.timeout(self._beat):
                    await self._ordered.wait()
            except TimeoutError:
                await loop.run_in_executor(worker, self._crew.share)
                if os.getppid() != parent:
                    raise Scattered("whoever started this rank is gone") from None
                continue
            self._ordered.clear()
            self._doing, self._wanted = self._wanted, ""
            outcome = await loop.run_in_executor(worker, self._do, self._doing)
            if outcome:
                self._last = Done(self._doing, outcome)
                self._say(self._last)
            self._doing = ""

    def _do(self, digest: str) -> str:
        """Do a job, unless what came of it the last time is still in the store: nothing may need it yet."""
        try:
            if digest == self._last.job and self._stands():
                return self._last.outcome
            data = bytes(self._depot.read(digest))
        except (StoreError, CodecError) as error:
            log.warning("job %s cannot be read: %s", digest[:16], error)
            return ""
        log.info("job %s begins", digest[:16])
        self._crew.share(digest.encode() + data)
        return self._member.do(digest, data)

    def _stands(self) -> bool:
        if not self._depot.has(self._last.outcome):
            return False
        made = read_outcome(self._depot.read(self._last.outcome), self._last.job).blobs
        return all(self._depot.has(sha256) for sha256 in made)

    def _say(self, message: Message) -> None:
        try:
            self._bus.publish(self._topics.build(FromAggregator(message.KIND)), wire.encode(message))
        except BusError as error:
            log.error("a %s was not sent: %s", message.KIND, error)  # noqa: TRY400  no fault of ours to trace
