"""What a run borrows from the service."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass, field

from coordinator.arithmetic import Arithmetic
from coordinator.checkpoint import Vault
from coordinator.devices import Fleet
from coordinator.journal import Journal, RunRow
from coordinator.members import Hubs
from edgepfl.bus import Traffic
from edgepfl.plan import Plan
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
        forget: gives up every upload that is not expected any more, and gives the digests of those that still come.
        traffic: what crossed the bus so far.
        worker: one thread for arithmetic.
        clock: seconds that never go back.
        arithmetic: makes whoever does the mathematics of a run, from what the journal has of it and its plan.
        spawn: runs a job, by a name; an error that the job did not expect ends the service.
        changed: called after every change that a watcher may want to see.
        hubs: who may report for the devices behind it.
        draw: so many random bits, as a number.
    """

    journal: Journal
    vault: Vault
    send: Callable[[Address, Message], None]
    fleet: Callable[[], Fleet]
    suspect: Callable[[tuple[str, ...]], None]
    forget: Callable[[], frozenset[str]]
    traffic: Callable[[], Traffic]
    worker: Executor
    clock: Callable[[], float]
    arithmetic: Callable[[RunRow, Plan], Arithmetic]
    spawn: Callable[[Coroutine[None, None, None], str], None]
    changed: Callable[[], None]
    hubs: Hubs = field(default_factory=dict)
    draw: Callable[[int], int] = secrets.randbits
