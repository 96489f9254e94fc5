"""When the agent looks at its sensors, and what it adds to them: its examples, and how long it has rested.

The time of the last participation must outlive the agent's process and a reboot, without a clock that anybody set.  So
it is kept as seconds since the machine's boot, with the boot's own id.  After a reboot nobody knows how long the
machine was off: then it counts from the boot, and a device waits longer than it must, never shorter.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from device_agent.store import Store
from edgepfl.eligibility import Conditions, Readings
from edgepfl.seeds import derive

EVERY = 5.0
"""Seconds between two looks at the sensors."""

_BOOT, _AT = "took part, boot", "took part, milliseconds since it"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Uptime:
    """A moment that survives the process but not the machine.

    Attributes:
        boot: a number of this boot, below 2^63.
        seconds: since it, also those that the machine slept.
    """

    boot: int
    seconds: float

    @classmethod
    def now(cls) -> Uptime:
        """This moment; a system that has no id of its boot counts each start of a process as one."""
        boot = _this_boot()
        return cls(_PROCESS, time.monotonic()) if boot is None else cls(boot, time.clock_gettime(time.CLOCK_BOOTTIME))

    def since(self, before: Uptime) -> float:
        """Seconds that have passed since then, at least."""
        return self.seconds - before.seconds if self.boot == before.boot else self.seconds


_PROCESS = time.monotonic_ns()


@functools.cache
def _this_boot() -> int | None:
    """The number of this boot, which no process outlives; None where the system has none."""
    try:
        return derive(0, "boot", _BOOT_ID.read_text("ascii").strip())
    except OSError:
        return None


class Watch:
    """The senses of one agent.

    Args:
        sensors: reads them; called in the event loop, so it must answer at once; None: nothing can be measured.
        store: remembers the last participation.
        examples: that the device trains on.
        every: seconds between two looks.
        uptime: this moment.
    """

    def __init__(
        self,
        sensors: Callable[[], Readings] | None,
        store: Store,
        examples: int,
        *,
        every: float = EVERY,
        uptime: Callable[[], Uptime] = Uptime.now,
    ) -> None:
        self._sensors = sensors or Readings
        self._store = store
        self._examples = examples
        self._uptime = uptime
        self.every = every
        self._next = 0.0
        self._took: tuple[Uptime | None] | None = None  # when it last took part, if the store was asked already

    def look(self, policy: Conditions | None, at: float) -> Readings:
        """The readings; ``policy`` is what they are needed for, and without one nothing is read."""
        self._next = at + self.every
        if policy is None:
            return Readings()
        rested = self._rested() if policy.min_interval is not None else None
        return msgspec.structs.replace(self._sensors(), examples=self._examples, rested=rested)

    def due(self, policy: Conditions | None) -> tuple[float, ...]:
        """When to look again."""
        return () if policy is None else (self._next,)

    def took_part(self) -> Mapping[str, int]:
        """That it takes part now, as facts for the store to keep beside the result."""
        now, self._took = self._uptime(), None  # the store will have it, or will not
        return {_BOOT: now.boot, _AT: int(1000 * now.seconds)}

    def _rested(self) -> float | None:
        if self._took is None:
            boot, at = self._store.fact(_BOOT), self._store.fact(_AT)
            self._took = (None if boot is None or at is None else Uptime(boot, at / 1000),)
        (before,) = self._took
        return None if before is None else self._uptime().since(before)
