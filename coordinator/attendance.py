"""What a run hears of its devices beside the journalled events: whose old work ends, and how new work goes on."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from coordinator.busy import Busy
from edgepfl.topics import Address, ToDevice
from edgepfl.wire import Cancel, Message, Progress


@dataclass(frozen=True)
class Sign:
    """A member's last sign of life.

    Attributes:
        at: when it came, in seconds of the coordinator's clock.
        paused: what it waits for, in its words; empty where it goes on.
    """

    at: float
    paused: str = ""


class Attendance:
    """Who may still be at work on what is not wanted any more, and the last signs of life.

    Nothing here is journalled: after a restart a device's next message tells it.

    Args:
        run: its id.
        lease: seconds after which a device that was told to stop is taken for free.
        send: publishes a message.
        clock: seconds that never go back.
    """

    def __init__(
        self, run: str, lease: float, send: Callable[[Address, Message], None], clock: Callable[[], float]
    ) -> None:
        self._run = run
        self._lease = lease
        self._send = send
        self._clock = clock
        self.busy = Busy()
        self.signs: dict[str, Sign] = {}

    def begin(self) -> None:
        """Another attempt begins: the signs of life were of the last one."""
        self.signs.clear()

    def stop(self, devices: Collection[str], cancel: Cancel) -> None:
        """Tell devices that their work is not wanted, until they say that it has ended."""
        which = (cancel.round, cancel.attempt)
        self.busy = self.busy.told(devices, which, cancel.reason, self._clock(), self._lease)
        for device in devices:
            self._cancel(device)

    def again(self, device: str) -> None:
        """A device that may still work came (again): tell it once more."""
        if device in self.busy:
            self._cancel(device)

    def look(self) -> tuple[str, ...]:
        """Tell those again whose turn it is; who is taken for free now because a lease has passed."""
        before = self.busy
        self.busy, due = before.looked(self._clock(), self._lease)
        for device in due:
            self._cancel(device)
        return tuple(sorted(before.works.keys() - self.busy.works.keys()))

    def stopped(self, device: str, round_: int, attempt: int) -> bool:
        """A device says that its work has ended; whether it is free by that."""
        before = self.busy
        self.busy = before.stopped(device, (round_, attempt))
        return device in before and device not in self.busy

    def gone(self, device: str) -> None:
        """A device left; if it comes again at work, its Progress says so."""
        self.busy = self.busy.free(device)

    def reconnected(self) -> None:
        """The broker was away."""
        self.busy = self.busy.renewed(self._clock(), self._lease)

    def heard(self, progress: Progress) -> None:
        """A member is at work."""
        self.signs[progress.device] = Sign(self._clock(), progress.paused)

    def alive(self, device: str) -> None:
        """A member's upload goes on."""
        self.signs[device] = Sign(self._clock())

    def _cancel(self, device: str) -> None:
        work = self.busy.works[device]
        self._send(ToDevice(device, Cancel.KIND), Cancel(self._run, work.round, work.attempt, work.why))
