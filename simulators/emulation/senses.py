"""What an emulated device measures of itself: its life, its battery as its work leaves it, and what is wrong."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from device_agent.conditions import minute
from edgepfl.eligibility import Readings
from simulators.profiles import Activity, Battery, Life, full, lived


class Senses:
    """One device's.

    Args:
        life: how it lives.
        now: seconds from the start of the emulation.
    """

    __slots__ = ("_activity", "_battery", "_life", "_now", "disk_mib", "skew", "stuck")

    def __init__(self, life: Life, now: Callable[[], float]) -> None:
        self._life = life
        self._now = now
        self._activity = Activity.IDLE
        self._battery = full(life.profile)
        self.skew = 0.0
        """Seconds that its clock is wrong by."""
        self.stuck: float | None = None
        """Unix time at which its clock stands."""
        self.disk_mib: float | None = None
        """Room on its disk, where that is less than it should be."""

    @property
    def battery(self) -> Battery:
        """As its work has left it just now."""
        self._battery = lived(self._battery, self._life.profile, self._life.trace, self._now(), self._activity)
        return self._battery

    @property
    def joules(self) -> float | None:
        """That it has spent; None: nobody knows what it draws."""
        return self.battery.spent.total if self._life.profile.watts_training else None

    def does(self, activity: Activity) -> None:
        """From now on it does something else."""
        if self._life.profile.watts_training and activity != self._activity:
            _ = self.battery  # up to here it did what it did
            self._activity = activity

    def __call__(self) -> Readings:
        """What it measures."""
        found = self._life.readings(self._now(), self.battery)
        disk = found.free_disk_mib if self.disk_mib is None else self.disk_mib
        return msgspec.structs.replace(found, minute=self._minute(found.minute), free_disk_mib=disk)

    def _minute(self, usual: int | None) -> int | None:
        """The minute of the day by its own clock; None: that cannot be right, and counts as not set."""
        if self.stuck is None and not self.skew:
            return usual
        return minute(time.gmtime(self._life.wall(self._now()) + self.skew if self.stuck is None else self.stuck))
