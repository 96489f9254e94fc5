"""The server's state after a round: where it is stored, and what the devices get of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import msgspec

from coordinator import pieces, updater
from coordinator.journal import Checkpoint
from coordinator.pieces import Blobs, Manifest, Shard
from coordinator.storage.depot import Depot, collect
from coordinator.storage.mirrored import Mirrored
from edgepfl import codec
from edgepfl.algorithms import Algorithm
from edgepfl.bus.blobs import BlobStore, Room
from edgepfl.bus.chunks import BLOB_LIMIT
from edgepfl.errors import CodecError, RunError
from edgepfl.tree import Trees
from edgepfl.wire import BlobRef


@dataclass(frozen=True)
class Saved:
    """A state that is stored.

    Attributes:
        checkpoint: how the journal refers to it.
        state: its slots, torch, where the coordinator calculates; empty where aggregators hold it.
        download: the DOWN slots of every device, as it goes into a task; None where each gets its own.
        shard: where the tensors of ``state`` are.
    """

    checkpoint: Checkpoint
    state: Trees
    download: BlobRef | None
    shard: Shard = field(default_factory=dict)

    def after(self, number: int) -> Saved:
        """The same state after a round that only evaluates."""
        return replace(self, checkpoint=msgspec.structs.replace(self.checkpoint, round=number))


@dataclass(frozen=True)
class Vault:
    """Where states go.

    Attributes:
        offered: blobs that any device may have: bundles and downloads.
        private: blobs that none may: states and uploads.
    """

    offered: Mirrored
    private: Mirrored

    @classmethod
    def at(cls, directory: Path, shared: Depot | None = None, room: Room = Room()) -> Self:  # noqa: B008  it is frozen
        """The stores under a directory, which are made if they are missing.

        Args:
            directory: of the coordinator's state.
            shared: a store with a copy of every blob, if there is one.
            room: how much of the disk uploads may use.

        Raises:
            StoreError: they cannot be made, read or written.
        """
        offered, private = directory / "offered", directory / "private"
        return cls(Mirrored(BlobStore(offered), shared), Mirrored(BlobStore(private, room), shared))

    def save(self, algorithm: Algorithm, number: int, state: Trees, before: Saved | None = None) -> Saved:
        """Store the state after round ``number``; the same state gives the same digests.

        Args:
            algorithm: of the run.
            number: of the round.
            state: after it, torch.
            before: the state that it came from, if that is stored.

        Raises:
            StoreError: the disk failed.
            RunError: a download is too big for a blob.
        """
        shard = pieces.put(self.private, state, (before.state, before.shard) if before is not None else None)
        manifest = Manifest((shard,))
        checkpoint = Checkpoint(number, self.private.keep(pieces.encode(manifest)), manifest.parts)
        return Saved(checkpoint, state, self._shared(algorithm, state), shard)

    def load(self, algorithm: Algorithm, checkpoint: Checkpoint, device: str = "cpu") -> Saved:
        """A stored state, on a device, and its download.

        Raises:
            StoreError: it is missing or damaged.
            CodecError: it is not what the checkpoint says.
        """
        shard = shard_in(self.private, checkpoint)
        state = pieces.take(self.private, shard, device)
        return Saved(checkpoint, state, self._shared(algorithm, state), shard)

    def download(self, algorithm: Algorithm, state: Trees, device: str) -> BlobRef:
        """The DOWN slots of one device, stored for it to fetch: :meth:`downloads`."""
        return self.downloads(algorithm, state, (device,))[device]

    def downloads(self, algorithm: Algorithm, state: Trees, devices: Sequence[str]) -> Mapping[str, BlobRef]:
        """The DOWN slots of each device, stored for it to fetch.

        Raises:
            StoreError: the disk failed.
            RunError: they are too big for a blob.
        """
        made = updater.each_downloads(algorithm, state, devices)
        return {device: self.offer(codec.encode(trees)) for device, trees in made.items()}

    def offer(self, data: bytes) -> BlobRef:
        """Store a download.

        Raises:
            StoreError: the disk failed.
            RunError: it is too big for a blob, which is no fault of the disk: that would end the service.
        """
        return self.offered.ref_inline(self.offered.put(offerable(data)))

    def keep_only(self, used: set[str], offered: set[str]) -> None:
        """Delete every other blob here.

        Args:
            used: digests of whatever the journal needs.
            offered: of the downloads that a device may still fetch.
        """
        self.private.local.keep_only(used)
        self.offered.local.keep_only(used | offered)

    def collect(self, needed: set[str]) -> None:
        """Delete every other blob in the shared store, if there is one; it may block on the network."""
        if self.private.shared is not None:
            collect(self.private.shared, needed)

    def _shared(self, algorithm: Algorithm, state: Trees) -> BlobRef | None:
        """The download of every device, if they get the same."""
        return None if updater.addressed(algorithm) else self.download(algorithm, state, "")


def shard_in(blobs: Blobs, checkpoint: Checkpoint) -> Shard:
    """Where a whole state's tensors are.

    Raises:
        StoreError: its manifest is missing or damaged.
        CodecError: it is none of a whole state.
    """
    found = pieces.decode(blobs.read(checkpoint.state), Manifest, "a checkpoint").shards
    if len(found) != 1 or not checkpoint.whole:
        raise CodecError(f"the state is in {len(found)} shards of aggregators", where="checkpoint")
    return found[0]


def state_in(blobs: Blobs, checkpoint: Checkpoint, device: str = "cpu") -> Trees:
    """A whole state, torch.

    Raises:
        StoreError: it is missing or damaged.
        CodecError: it is not what its manifest says, or aggregators hold it.
    """
    return pieces.take(blobs, shard_in(blobs, checkpoint), device)


def offerable(data: bytes) -> bytes:
    """A download, if it can be offered.

    Raises:
        RunError: it is too big for a blob.
    """
    if len(data) > BLOB_LIMIT:
        raise RunError(
            f"a download of {len(data)} bytes, at most {BLOB_LIMIT} are possible",
            where="checkpoint",
            remedy="Train a smaller model",
        )
    return data
