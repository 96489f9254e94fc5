"""How ranks that were started together find each other, and nobody who was there before.

torchrun keeps one store of keys for all its restarts.  Ranks that look there for each other's addresses may find those
of ranks that are dead, so the ranks of each start agree on a name of their own first, and look under it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Protocol

from coordinator.aggregator.crew import Scattered

PAUSE = 0.02  # seconds between looks


class Keys(Protocol):
    """The store: what torch calls one."""

    def set(self, key: str, value: str, /) -> None:
        """Write a key."""
        ...

    def get(self, key: str, /) -> bytes:
        """A key's value; it waits for one that is not there."""
        ...

    def check(self, keys: list[str], /) -> bool:
        """Whether all keys are there."""
        ...


def agreed(
    keys: Keys,
    rank: int,
    ranks: int,
    *,
    nonce: str,
    patience: float,
    clock: Callable[[], float],
    pause: Callable[[], None],
) -> str:
    """A name that all ranks of this start have, and none of another.

    Every rank says its nonce.  Rank 0 lists them, again and again until each has seen itself in the same list; a nonce
    that a dead rank left is replaced by that of the one who lives.

    Args:
        keys: which may hold what ranks of earlier starts wrote.
        rank: this one.
        ranks: how many there are.
        nonce: new at each start.
        patience: seconds to wait for the others.
        clock: seconds that never go back.
        pause: waits a moment.

    Raises:
        Scattered: some did not come.
    """
    keys.set(f"meeting/{rank}", nonce)
    until = clock() + patience
    while clock() < until:
        listed = _led(keys, ranks) if rank == 0 else _followed(keys, rank, ranks, nonce)
        if listed:
            return hashlib.sha256(listed.encode()).hexdigest()
        pause()
    raise Scattered(f"not all of the {ranks} ranks came within {patience:g} s")


def _led(keys: Keys, ranks: int) -> str:
    """The list once everybody has seen it."""
    nonces = [_read(keys, f"meeting/{rank}") for rank in range(ranks)]
    listed = ",".join(nonces)
    if not all(nonces):
        return ""
    keys.set("meeting/list", listed)
    if any(_read(keys, f"meeting/seen/{rank}") != listed for rank in range(1, ranks)):
        return ""
    keys.set("meeting/over", listed)
    return listed


def _followed(keys: Keys, rank: int, ranks: int, nonce: str) -> str:
    """The list once rank 0 says that everybody has seen it."""
    listed = _read(keys, "meeting/list")
    if listed.split(",")[rank:][:1] != [nonce] or listed.count(",") != ranks - 1:
        return ""
    keys.set(f"meeting/seen/{rank}", listed)
    return listed if _read(keys, "meeting/over") == listed else ""


def _read(keys: Keys, key: str) -> str:
    return keys.get(key).decode() if keys.check([key]) else ""
