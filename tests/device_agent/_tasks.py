"""Tasks, as a coordinator would send them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from edgepfl.bus.chunks import digests
from edgepfl.wire import BlobRef, Member, Task

DEVICE, OTHER = "pi-07", "pi-08"
DEADLINE, HEARTBEAT = 10.0, 2.0


def blob(name: str) -> BlobRef:
    """A reference to the bytes of ``name``."""
    data = name.encode()
    return BlobRef(hashlib.sha256(data).hexdigest(), len(data), chunks=digests(data))


def task(
    run: str = "run",
    round_: int = 1,
    attempt: int = 0,
    *,
    accepted: int = -1,
    cohort: Mapping[str, int] | None = None,
    heartbeat: float = HEARTBEAT,
) -> Task:
    """A task for the device, or for ``cohort`` (device to accepted round)."""
    members = {DEVICE: accepted} if cohort is None else cohort
    return Task(
        run=run,
        round=round_,
        attempt=attempt,
        cohort=tuple(Member(name, last) for name, last in members.items()),
        bundle=blob(f"bundle of {run}"),
        download=blob(f"download of {run} {round_}"),
        hyper={},
        steps=3,
        seed=1,
        evaluate=False,
        tune_steps=0,
        final=False,
        deadline=DEADLINE,
        heartbeat=heartbeat,
    )
