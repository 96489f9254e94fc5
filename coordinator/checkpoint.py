"""The server's state after a round: where it is stored, and what the devices get of it."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator import updater
from coordinator.journal import Checkpoint, specs_of
from edgepfl import codec
from edgepfl.algorithms import Algorithm
from edgepfl.bus.blobs import BlobStore
from edgepfl.bus.chunks import BLOB_LIMIT
from edgepfl.errors import RunError
from edgepfl.tree import Trees
from edgepfl.wire import BlobRef


@dataclass(frozen=True)
class Saved:
    """A state that is on the disk.

    Attributes:
        checkpoint: how the journal refers to it.
        state: its slots, NumPy.
        download: the DOWN slots of every device, as it goes into a task; None where each gets its own.
    """

    checkpoint: Checkpoint
    state: Trees
    download: BlobRef | None


@dataclass(frozen=True)
class Vault:
    """Where states go.

    Attributes:
        offered: blobs that any device may have: bundles and downloads.
        private: blobs that none may: states and uploads.
    """

    offered: BlobStore
    private: BlobStore

    def save(self, algorithm: Algorithm, number: int, state: Trees) -> Saved:
        """Store the state after round ``number``; the same state gives the same digests.

        Raises:
            StoreError: the disk failed.
            RunError: the state is too big for a blob.
        """
        ref = self.private.put(_fitting(codec.encode(state), "the server's state"))
        return self._with_download(algorithm, Checkpoint(number, ref.sha256, specs_of(state)), state)

    def load(self, algorithm: Algorithm, checkpoint: Checkpoint) -> Saved:
        """A stored state.

        Raises:
            StoreError: it is missing or damaged.
            CodecError: it is not what the checkpoint says.
        """
        state = codec.decode(self.private.read(checkpoint.state), checkpoint.specs, where="checkpoint")
        return self._with_download(algorithm, checkpoint, state)

    def _with_download(self, algorithm: Algorithm, checkpoint: Checkpoint, state: Trees) -> Saved:
        shared = None if updater.addressed(algorithm) else self.download(algorithm, state, "")
        return Saved(checkpoint, state, shared)

    def download(self, algorithm: Algorithm, state: Trees, device: str) -> BlobRef:
        """The DOWN slots of one device, stored for it to fetch.

        Raises:
            StoreError: the disk failed.
            RunError: they are too big for a blob.
        """
        data = codec.encode(updater.downloads(algorithm, state, device))
        return self.offered.ref_inline(self.offered.put(_fitting(data, "a download")))


def _fitting(data: bytes, what: str) -> bytes:
    """The bytes.

    Raises:
        RunError: no blob can hold them; it is no fault of the disk, which would end the service.
    """
    if len(data) > BLOB_LIMIT:
        raise RunError(
            f"{what} of {len(data)} bytes, at most {BLOB_LIMIT} are possible",
            where="checkpoint",
            remedy="Train a smaller model, or fewer devices where the state grows with them",
        )
    return data
