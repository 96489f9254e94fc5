"""What a shared store of blobs does.

Every implementation keeps four promises.  A blob's name is the SHA-256 of its bytes, so putting it twice is putting it
once.  It has its name only when it is whole, whatever dies meanwhile.  Many processes may use the store at once.
Whoever puts a blob has :data:`GRACE` seconds to tell the one who cleans up that it is needed.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Collection, Sequence
from typing import Protocol, TypeAlias

from edgepfl.errors import StoreError

GRACE = 900.0
"""Seconds that a blob stays although nobody refers to it: somebody may be about to.

A state is put long before it is committed where many ranks of an aggregator put their parts.  Clocks may differ by a
good part of it.
"""

Clock: TypeAlias = Callable[[], float]
"""Seconds since 1970."""

Span: TypeAlias = tuple[int, int]
"""Where bytes lie in a blob: the first, and how many."""

OWNER = "owner"
"""What the mark of the fleet that a store belongs to is called in it."""

log = logging.getLogger(__name__)
_OWNER_SHOWN = 80  # bytes of a stranger's mark in an error
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Depot(Protocol):
    """A shared store of blobs.  It blocks, on the network perhaps: call it from a worker thread.

    Each method raises StoreError where the store fails or ``sha256`` is no digest.
    """

    @property
    def where(self) -> str:
        """Which store it is, for people; without credentials."""
        ...

    def keep(self, data: bytes | bytearray | memoryview) -> str:
        """Store ``data``; its digest.  It is on the disk, or in the bucket, when this returns."""
        ...

    def read(self, sha256: str) -> bytearray:
        """The blob, its digest verified, in memory of the caller's own; a damaged one is deleted, to be put again.

        Raises:
            StoreError: it is missing or damaged.
        """
        ...

    def read_range(self, sha256: str, start: int, length: int) -> memoryview:
        """``length`` bytes of the blob from ``start`` on; nothing can be verified.

        Raises:
            StoreError: it is missing, or ends before.
        """
        ...

    def read_ranges(self, sha256: str, spans: Sequence[Span]) -> list[memoryview]:
        """Several ranges of the blob, in few requests."""
        ...

    def has(self, sha256: str) -> bool:
        """Whether the blob is here."""
        ...

    def size(self, sha256: str) -> int:
        """How many bytes the blob has.

        Raises:
            StoreError: it is missing.
        """
        ...

    def delete(self, sha256: str) -> None:
        """Forget the blob; nothing happens if it is not here."""
        ...

    def digests(self) -> set[str]:
        """The names of all blobs."""
        ...

    def keep_only(self, shas: Collection[str]) -> None:
        """Delete every other blob that was put more than the grace period ago."""
        ...

    def claim(self, fleet: str) -> None:
        """Mark the store as a fleet's own: the coordinator of another one would delete what it needs.

        Raises:
            StoreError: it is another fleet's.
        """
        ...


def collect(depot: Depot, needed: Collection[str]) -> None:
    """Delete every other blob that is old enough; where the store fails there will be another time."""
    try:
        depot.keep_only(needed)
    except StoreError as error:
        log.warning("nothing was deleted in the shared store: %s", error)


def digest(data: bytes | bytearray | memoryview) -> str:
    """The name of a blob."""
    return hashlib.sha256(data).hexdigest()


def is_digest(name: str) -> bool:
    """Whether this can be the name of a blob."""
    return _SHA256.fullmatch(name) is not None


def check_digest(sha256: str, where: str) -> str:
    """The digest.

    Raises:
        StoreError: it is none.
    """
    if not is_digest(sha256):
        raise StoreError(f"{sha256[:80]!r} is no SHA-256", where=where)
    return sha256


def check_owner(owner: bytes, fleet: str, where: str) -> None:
    """Refuse a store that is marked as another fleet's.

    Raises:
        StoreError: it is.
    """
    if owner != fleet.encode():
        whose = owner[:_OWNER_SHOWN].decode(errors="replace")
        raise StoreError(
            f"it is the store of fleet {whose!r}, and not of {fleet!r}",
            where=where,
            remedy=f"Give each fleet a directory or a prefix of its own, or delete {OWNER} in it if that is no more",
        )


def check_spans(spans: Sequence[Span], where: str) -> None:
    """Refuse ranges that no blob can have.

    Raises:
        StoreError: a start or a length is negative.
    """
    for start, length in spans:
        if start < 0 or length < 0:
            raise StoreError(f"{length} bytes from {start} on are no part of a blob", where=where)


def missing(where: str) -> StoreError:
    """The blob is not in the store."""
    return StoreError(
        "the blob is missing",
        where=where,
        remedy="Give all processes the same store, and clean it up by no other means",
    )


def damaged(where: str) -> StoreError:
    """The blob's bytes have another digest."""
    return StoreError("the blob was damaged and is deleted", where=where, remedy="Put it again; check the disk")


def cut_short(span: Span, found: int, where: str) -> StoreError:
    """The blob ends within a range."""
    start, length = span
    return StoreError(f"{found} of {length} bytes from {start} on: the blob ends there", where=where)
