"""A shared store in a bucket, through obstore: whatever speaks S3.

An object gets its name when its upload is complete, in one step, however many parts it had.  Parts of an upload that a
crash cut short are invisible; a rule of the bucket's life cycle (AbortIncompleteMultipartUpload) removes them.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from coordinator.storage.depot import (
    GRACE,
    OWNER,
    Clock,
    Span,
    check_digest,
    check_owner,
    check_spans,
    cut_short,
    damaged,
    digest,
    is_digest,
    missing,
)
from edgepfl.errors import StoreError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

PIECE = 32 << 20
"""Bytes to ask for in one request: few enough to come within the library's 30 s on a slow line."""

PAGE = 1000  # names in one answer of S3


class ObjectDepot:
    """Blobs as objects, by their digests.

    Args:
        store: of obstore, with its prefix.
        where: which it is, for people.
        grace: seconds that a blob without a reference stays.
        clock: more or less that of the store, which says when each object was written.
    """

    def __init__(self, store: ObjectStore, where: str, *, grace: float = GRACE, clock: Clock = time.time) -> None:
        self._store = store
        self._where = where
        self._grace = grace
        self._clock = clock

    @property
    def where(self) -> str:
        """See :class:`~coordinator.storage.depot.Depot`."""
        return self._where

    def keep(self, data: bytes | bytearray | memoryview) -> str:
        """See :class:`~coordinator.storage.depot.Depot`."""
        view = memoryview(data).cast("B")
        sha256 = digest(view)
        with self._asking(sha256):
            if not self._is_safe(sha256, len(view)):
                self._store.put(sha256, view)
        return sha256

    def read(self, sha256: str) -> bytearray:
        """See :class:`~coordinator.storage.depot.Depot`."""
        data = self._whole(sha256)
        if digest(data) != sha256:
            data = self._whole(sha256)  # it may have been damaged on its way, and others need it
            if digest(data) != sha256:
                self.delete(sha256)
                raise damaged(self._place(sha256))
        return data

    def read_range(self, sha256: str, start: int, length: int) -> memoryview:
        """See :class:`~coordinator.storage.depot.Depot`."""
        return self.read_ranges(sha256, [(start, length)])[0]

    def read_ranges(self, sha256: str, spans: Sequence[Span]) -> list[memoryview]:
        """See :class:`~coordinator.storage.depot.Depot`; ranges less than 1 MiB apart come in one request."""
        check_spans(spans, self._place(sha256))
        asked = [(start, length) for start, length in spans if length]
        if not asked:
            self.size(sha256)  # it must be here
        try:
            with self._asking(sha256):
                starts, lengths = [start for start, _ in asked], [length for _, length in asked]
                found = iter(self._store.get_ranges(check_digest(sha256, self._where), starts=starts, lengths=lengths))
                parts = [memoryview(next(found) if length else b"") for _, length in spans]
        except StoreError:
            self._check_inside(sha256, asked)
            raise
        for span, part in zip(spans, parts, strict=True):
            if len(part) != span[1]:
                raise cut_short(span, len(part), self._place(sha256))
        return parts

    def has(self, sha256: str) -> bool:
        """See :class:`~coordinator.storage.depot.Depot`."""
        with self._asking(sha256):
            try:
                self._store.head(check_digest(sha256, self._where))
            except FileNotFoundError:
                return False
        return True

    def size(self, sha256: str) -> int:
        """See :class:`~coordinator.storage.depot.Depot`."""
        with self._asking(sha256):
            return self._store.head(check_digest(sha256, self._where))["size"]

    def delete(self, sha256: str) -> None:
        """See :class:`~coordinator.storage.depot.Depot`."""
        self._delete([check_digest(sha256, self._where)])

    def digests(self) -> set[str]:
        """See :class:`~coordinator.storage.depot.Depot`."""
        return {name for name, _ in self._written()}

    def keep_only(self, shas: Collection[str]) -> None:
        """See :class:`~coordinator.storage.depot.Depot`.

        A blob that nobody referred to for long, and that is put again within the moment between the listing and the
        deletion, is lost: whoever reads it is told that it is missing.  S3 has no way to delete only what is old.
        """
        kept = frozenset(shas)
        oldest = self._clock() - self._grace
        gone = [name for name, written in self._written() if written < oldest and name not in kept]
        for start in range(0, len(gone), PAGE):
            self._delete(gone[start : start + PAGE])

    def claim(self, fleet: str) -> None:
        """See :class:`~coordinator.storage.depot.Depot`; of two fleets that do it in the same moment, both may."""
        with self._asking(OWNER):
            try:
                owner = bytes(self._store.get(OWNER).bytes())
            except FileNotFoundError:
                self._store.put(OWNER, fleet.encode())
                owner = bytes(self._store.get(OWNER).bytes())
        check_owner(owner, fleet, self.where)

    def _is_safe(self, sha256: str, size: int) -> bool:
        """Whether the blob is here and stays for half the grace period at least; else it is to be written again."""
        try:
            found = self._store.head(sha256)
        except FileNotFoundError:
            return False
        age = self._clock() - found["last_modified"].timestamp()
        return found["size"] == size and age < self._grace / 2

    def _whole(self, sha256: str) -> bytearray:
        with self._asking(sha256):
            answer = self._store.get(check_digest(sha256, self._where))
            size = answer.meta["size"]
            data = bytearray(size)
            if size <= PIECE:
                data[:] = memoryview(answer.bytes())
            else:
                del answer  # a single request for all of it would run out of time
                for start in range(0, size, PIECE):
                    length = min(PIECE, size - start)
                    data[start : start + length] = memoryview(self._store.get_range(sha256, start=start, length=length))
        return data

    def _written(self) -> Iterator[tuple[str, float]]:
        """Each blob, and when it was written."""
        with self._asking():
            for page in self._store.list(chunk_size=PAGE):
                for found in page:
                    if is_digest(found["path"]):
                        yield found["path"], found["last_modified"].timestamp()

    def _delete(self, names: list[str]) -> None:
        with self._asking(), suppress(FileNotFoundError):
            self._store.delete(names)

    def _check_inside(self, sha256: str, spans: Sequence[Span]) -> None:
        size = self.size(sha256)
        for start, length in spans:
            if start + length > size:
                raise cut_short((start, length), max(0, size - start), self._place(sha256))

    def _place(self, sha256: str) -> str:
        return f"{self._where}/{sha256[:16]}" if sha256 else self._where

    @contextmanager
    def _asking(self, sha256: str = "") -> Iterator[None]:
        """Turn the library's errors into StoreError."""
        from obstore.exceptions import BaseError  # noqa: PLC0415  only those with such a store have it

        try:
            yield
        except (BaseError, FileNotFoundError) as error:
            raise _told(error, self._place(sha256)) from error


def _told(error: Exception, where: str) -> StoreError:
    """What the library says, with what to do about it."""
    from obstore.exceptions import PermissionDeniedError, UnauthenticatedError  # noqa: PLC0415  as above

    text = str(error)
    if "NoSuchBucket" in text:
        return StoreError("there is no such bucket", where=where, remedy="Create it, or correct the store's URL")
    if isinstance(error, FileNotFoundError):
        return missing(where)
    first = text.partition("\n")[0][:400]  # the rest is for those who debug the library
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or "Access Denied" in text:
        return StoreError(
            f"it is not allowed ({first})",
            where=where,
            remedy="Check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and that they may GetObject, PutObject, "
            "DeleteObject and ListBucket",
        )
    return StoreError(
        f"the store failed ({first})",
        where=where,
        remedy="Check the network, the endpoint, the region and AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY",
    )
