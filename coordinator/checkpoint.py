"""The server's state after a round: where it is stored, and what the devices get of it."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator import updater
from coordinator.journal import Checkpoint, specs_of
from edgepfl import codec
from edgepfl.algorithms import Algorithm
from edgepfl.bus.blobs import BlobStore
from edgepfl.tree import Trees
from edgepfl.wire import BlobRef


@dataclass(frozen=True)
class Saved:
    """A state that is on the disk.

    Attributes:
        checkpoint: how the journal refers to it.
        state: its slots, NumPy.
        download: the DOWN slots of every device, as it goes into a task.
    """

    checkpoint: Checkpoint
    state: Trees
    download: BlobRef


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
            StoreError: the disk failed, or the state is too big for a blob.
        """
        ref = self.private.put(codec.encode(state))
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
        ref = self.offered.put(codec.encode(updater.downloads(algorithm, state, "")))
        return Saved(checkpoint, state, self.offered.ref_inline(ref))
