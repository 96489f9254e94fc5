"""Shared stores of every kind."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from _s3 import S3
from obstore.store import MemoryStore

from coordinator.storage.depot import GRACE, Depot
from coordinator.storage.directory import DirectoryDepot
from coordinator.storage.location import open_depot
from coordinator.storage.objects import ObjectDepot

KINDS = ["directory", "memory", "s3"]


@dataclass
class Watch:
    """Seconds since 1970, and those that a test lets pass."""

    passed: float = 0.0

    def __call__(self) -> float:
        return time.time() + self.passed

    @contextmanager
    def later(self, seconds: float = GRACE + 60) -> Iterator[None]:
        """What happens in here happens so much later."""
        self.passed = seconds
        yield
        self.passed = 0.0


def made(kind: str, name: str, folder: Path, watch: Watch, s3: Callable[[], S3]) -> Depot:
    """An empty store.

    Args:
        kind: one of :data:`KINDS`.
        name: that no other store of this session has.
        folder: for directories.
        watch: its clock.
        s3: gives the server, with a bucket called "blobs".
    """
    match kind:
        case "directory":
            return DirectoryDepot(folder / name, clock=watch)
        case "memory":
            return ObjectDepot(MemoryStore(), "memory", clock=watch)
        case _:
            depot = open_depot(s3().url("blobs", name), clock=watch)
            depot.delete(depot.keep(b""))  # with which the store was tried
            return depot
