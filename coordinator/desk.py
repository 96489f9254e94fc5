"""What a run borrows from the service."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass

from coordinator.checkpoint import Vault
from coordinator.devices import Fleet
from coordinator.journal import Journal
from edgepfl.bus import Traffic
from edgepfl.topics import Address
from edgepfl.wire import Message


@dataclass(frozen=True)
class Desk:
    """What a run works with; all of it belongs to the service.

    Attributes:
        journal: the truth.
        vault: the blob stores.
        send: publishes a message.
        fleet: who is here.
        suspect: takes devices for absent and asks them for a Hello.
        forget: gives up every upload that is not expected any more.
        traffic: what crossed the bus so far.
        worker: one thread for arithmetic.
        clock: seconds that never go back.
        device: where uploads are folded.
        spawn: runs a job, by a name; an error that the job did not expect ends the service.
        changed: called after every change that a watcher may want to see.
    """

    journal: Journal
    vault: Vault
    send: Callable[[Address, Message], None]
    fleet: Callable[[], Fleet]
    suspect: Callable[[tuple[str, ...]], None]
    forget: Callable[[], None]
    traffic: Callable[[], Traffic]
    worker: Executor
    clock: Callable[[], float]
    device: str
    spawn: Callable[[Coroutine[None, None, None], str], None]
    changed: Callable[[], None]
