"""A lock that keeps a second process out of a directory or a file."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from edgepfl.bus._files import storing
from edgepfl.errors import StoreError

_OWNER_ONLY = 0o600


class ProcessLock:
    """Held from its making until :meth:`close`, or until the process ends, however it ends.

    Args:
        path: the lock's own file, which is made if it is missing and stays.
        subject: what is locked, for the error.
        holder: who else would hold it, for the error ("agent").

    Raises:
        StoreError: somebody holds it, or the file cannot be made.
    """

    def __init__(self, path: Path, *, subject: Path, holder: str) -> None:
        self._handle: int | None = None
        with storing(path):
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT, _OWNER_ONLY)
            try:
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.close()
                raise StoreError(
                    f"another {holder} is using it",
                    where=str(subject),
                    remedy=f"Stop that {holder}, or give this one a state directory of its own",
                ) from None

    def close(self) -> None:
        """Let go of it; once more does nothing."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
