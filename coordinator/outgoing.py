"""All that the coordinator says: messages in order, and the chunks of the blobs that it offers."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from msgspec import UNSET

from coordinator.config import TransferTable
from coordinator.describing import Describer
from coordinator.devices import Fleet
from coordinator.outbox import Outbox
from edgepfl import wire
from edgepfl.bus import Bus
from edgepfl.bus.blobs import BlobStore
from edgepfl.bus.chunks import Sender
from edgepfl.bus.outflow import AGAIN, Outflow
from edgepfl.errors import BusError, WireError
from edgepfl.topics import Address, Chunk, Topics
from edgepfl.wire import CHUNK, Message, Need, Task

log = logging.getLogger(__name__)
AHEAD = 64  # chunks with the bus: whole fleets wait for them


class Outgoing:
    """What waits for the bus, and how it is sent.

    Args:
        topics: of the fleet.
        bus: where it goes.
        offered: blobs that any device may have.
        transfer: how blobs are transferred.
        fleet: who is here, and which chunks they wish for.
    """

    def __init__(
        self, topics: Topics, bus: Bus, offered: BlobStore, transfer: TransferTable, fleet: Callable[[], Fleet]
    ) -> None:
        self._topics = topics
        self._bus = bus
        self._transfer = transfer
        self._fleet = fleet
        self._describer = Describer(offered)
        self._outbox = Outbox(self._publish)
        self._outflow = Outflow(Sender(offered), bus, self._chunk_topic, qos=0, ahead=AHEAD)

    def send(self, address: Address, message: Message) -> None:
        """Send a message as soon as the bus has room."""
        self._outbox.send(address, message)

    def needed(self, need: Need, now: float) -> None:
        """Send the chunks that somebody asks for.

        Raises:
            StoreError: the store failed.
        """
        self._outflow.needed(need, now)

    def pump(self, now: float) -> None:
        """Send what waits, as far as the bus has room."""
        self._outbox.pump()
        self._outflow.pump(now)

    def due(self, now: float) -> float:
        """When to pump again; infinite where nothing waits."""
        return now + AGAIN if self._outbox.waiting or self._outflow.waiting else math.inf

    def forget(self) -> None:
        """The connection was lost: everyone will be asked for a Hello and told anew, or asks anew."""
        self._outbox.forget()
        self._outflow.forget()

    def _publish(self, address: Address, message: Message) -> bool:
        if isinstance(message, Task):
            message = self._describer.fitted(message, self._chunk_for(message))
        try:
            return self._bus.publish(self._topics.build(address), wire.encode(message))
        except (BusError, WireError) as error:  # whatever a device said, repeating it must not end the service
            log.error("a %s was not sent: %s", message.KIND, error)  # noqa: TRY400  no fault of ours to trace
            return True  # it need not be tried again

    def _chunk_for(self, task: Task) -> int:
        """Bytes of the chunks of a task's blobs: as the slowest link of its cohort wishes."""
        devices = self._fleet().devices
        hellos = [known.hello for member in task.cohort if (known := devices.get(member.device))]
        wishes = [CHUNK if hello.chunk is UNSET else hello.chunk for hello in hellos]
        return self._transfer.chunk(None, known=min(wishes, default=CHUNK), most=self._bus.largest)

    def _chunk_topic(self, sha16: str, index: int) -> str:
        return self._topics.build(Chunk(sha16, index))
