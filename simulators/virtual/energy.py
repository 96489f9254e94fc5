"""A machine's battery while it lives and works: what its sensors show, and when it runs flat."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from simulators.profiles import Activity, Battery, DeviceProfile, Spent, Trace, full, lived
from simulators.profiles.energy import turns


class Supply:
    """The energy of one machine; on mains alone it never ends.

    Args:
        profile: the machine's.
        trace: when it is plugged in.
        loop: whose time it is.
        changed: called when its battery is flat, and when it has charged enough to start again.
    """

    def __init__(
        self,
        profile: DeviceProfile,
        trace: Trace,
        loop: asyncio.AbstractEventLoop,
        changed: Callable[[], None],
    ) -> None:
        self._profile = profile
        self._trace = trace
        self._loop = loop
        self._changed = changed
        self._battery = full(profile)
        self._activity = Activity.IDLE
        self._timer: asyncio.TimerHandle | None = None
        self._watch()

    @property
    def dead(self) -> bool:
        """Whether the battery ran flat and has not charged enough."""
        return self._battery.dead

    @property
    def spent(self) -> Spent:
        """Joules until now."""
        return self.battery().spent

    def battery(self) -> Battery:
        """How it is now."""
        self._battery = lived(self._battery, self._profile, self._trace, self._loop.time(), self._activity)
        return self._battery

    def work(self, activity: Activity) -> None:
        """The machine does something else from now on."""
        if activity is not self._activity:
            self.battery()
            self._activity = activity
            self._watch()

    def close(self) -> None:
        """Nothing changes any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _watch(self) -> None:
        """Be there when it next runs flat, or comes back."""
        self.close()
        if not self._battery.capacity:
            return
        until = max(self._trace.horizon, self._loop.time()) + 1.0
        turn = next(turns(self._battery, self._profile, self._trace, until, self._activity), None)
        if turn is not None:
            self._timer = self._loop.call_at(turn.now, self._turned, turn)

    def _turned(self, turn: Battery) -> None:
        self._battery = turn if turn.now <= math.nextafter(self._loop.time(), math.inf) else self.battery()
        self._changed()
        self._watch()
