"""Handing out a round's task where each device gets a download of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from coordinator.arithmetic import Arithmetic, Sitting
from edgepfl.errors import StoreError
from edgepfl.wire import BlobRef

log = logging.getLogger(__name__)
TOGETHER = 16  # downloads to make at a time


@dataclass(frozen=True)
class Handout:
    """What handing out needs of a run.

    Attributes:
        run: its id, for the log.
        arithmetic: makes the downloads.
        goes_on: whether an attempt is still the run's.
        send: gives a member its task with its own download, if it is still wanted.
        failed: notes that there is none for a member, in which attempt, and why.
    """

    run: str
    arithmetic: Arithmetic
    goes_on: Callable[[Sitting], bool]
    send: Callable[[str, BlobRef], None]
    failed: Callable[[str, Sitting, str], None]

    async def to(self, devices: tuple[str, ...], sitting: Sitting) -> None:
        """Make the members' own downloads and tell them the task, some at a time: the first need not wait.

        Raises:
            StoreError: the storage failed.
        """
        for start in range(0, len(devices), TOGETHER):
            made = await self._downloads(devices[start : start + TOGETHER], sitting)
            if not self.goes_on(sitting):
                return
            for device, ref in made.items():
                self.send(device, ref)

    async def _downloads(self, devices: tuple[str, ...], sitting: Sitting) -> dict[str, BlobRef]:
        """What can be made; whoever gets none has failed."""
        try:
            return dict(await self.arithmetic.downloads(devices))
        except StoreError:
            raise
        except Exception as error:  # an algorithm's fault must not end the service
            if len(devices) > 1:  # it may be the fault of one
                parts = [await self._downloads((device,), sitting) for device in devices]
                return {device: ref for part in parts for device, ref in part.items()}
            log.exception("%s: no download for %s", self.run, devices[0])
            self.failed(devices[0], sitting, f"{type(error).__name__}: {error}")
            return {}
