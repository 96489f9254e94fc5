"""What the devices of one round are to fetch: one download for all, or one for each."""

from __future__ import annotations

from coordinator.checkpoint import Saved, Vault
from edgepfl.algorithms import Algorithm
from edgepfl.wire import BlobRef


class Offers:
    """The downloads of one attempt at a round.  Each is stored when it is first asked for.

    Args:
        vault: where they go.
        algorithm: that of the round.
        saved: the state that the round starts from.
    """

    def __init__(self, vault: Vault, algorithm: Algorithm, saved: Saved) -> None:
        self._vault = vault
        self._algorithm = algorithm
        self._saved = saved
        self._own: dict[str, BlobRef] = {}

    @property
    def broadcast(self) -> bool:
        """Whether all devices get the same."""
        return self._saved.download is not None

    @property
    def digests(self) -> set[str]:
        """Of every download that was asked for and that a device may still fetch."""
        shared = self._saved.download
        return {ref.sha256 for ref in self._own.values()} | ({shared.sha256} if shared else set())

    def to(self, device: str) -> BlobRef:
        """The download of one device.

        Raises:
            StoreError: the disk failed.
            RunError: it is too big for a blob.
        """
        if self._saved.download is not None:
            return self._saved.download
        if device not in self._own:
            self._own[device] = self._vault.download(self._algorithm, self._saved.state, device)
        return self._own[device]
