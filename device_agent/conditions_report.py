"""What ``edgepfl doctor`` says without a bundle: what this machine measures, and what a run asks and it lacks."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from device_agent import sources
from device_agent.conditions import Sensors
from device_agent.config import AgentConfig, ConditionSettings, load
from edgepfl.bus.conditions import conditions_of
from edgepfl.eligibility import Conditions, Readings, Unmet, judge

_SHOWN: dict[str, tuple[str, Callable[[Any], str]]] = {
    "powered": ("external power", lambda value: "yes" if value else "no, or its battery runs down"),
    "battery": ("battery", lambda value: f"{100 * value:.0f} %"),
    "temperature": ("temperature", lambda value: f"{value:.1f} C"),
    "throttled": ("throttled", lambda value: "yes" if value else "no"),
    "link": ("default route over", str),
    "metered": ("metered", lambda value: "yes" if value else "no"),
    "free_memory_mib": ("free memory", lambda value: f"{value:.0f} MiB"),
    "free_disk_mib": ("free disk", lambda value: f"{value:.0f} MiB"),
    "load": ("load for each core", lambda value: f"{value:.2f}"),
    "minute": ("local time", lambda value: f"{value // 60:02}:{value % 60:02}"),
}
_LEFT_OUT = ("min_interval",)
"""What only the agent itself knows."""


@dataclass(frozen=True)
class Checkup:
    """A device and a policy.

    Attributes:
        readings: of the device.
        asked: the policy; the empty one asks nothing.
        unmet: what of it does not hold.
    """

    readings: Readings
    asked: Conditions
    unmet: tuple[Unmet, ...]

    @property
    def plain(self) -> dict[str, object]:
        """As JSON has it."""
        readings = {name: getattr(self.readings, name) for name in _SHOWN}
        return {"ok": not self.unmet, "readings": readings, "unmet": {each.name: each.why for each in self.unmet}}

    @property
    def lines(self) -> list[str]:
        """For people."""
        lines = [f"{title:<20} {self._told(name)}" for name, (title, _) in _SHOWN.items()]
        if self.asked == Conditions():
            return lines
        lines += [f"unmet: {each.why}" for each in self.unmet] or ["this device meets the conditions"]
        left_out = [name for name in _LEFT_OUT if getattr(self.asked, name) is not None]
        return lines + [f"not judged: {name}, of which the agent alone knows" for name in left_out]

    def _told(self, name: str) -> str:
        value = getattr(self.readings, name)
        if value is not None:
            return _SHOWN[name][1](value)
        return "none" if name == "battery" and self.readings.powered else "cannot be measured"


def checkup(words: argparse.Namespace) -> Checkup:
    """Read the sensors, and compare.

    Args:
        words: ``config`` (a path or None), and the options of :mod:`edgepfl.bus.conditions`.

    Raises:
        ConfigError: a file cannot be read or has what may not be there.
    """
    asked = conditions_of(words) or Conditions()
    readings = _readings(None if words.config is None else load(words.config), asked)
    judged = msgspec.structs.replace(asked, **dict.fromkeys(_LEFT_OUT))
    return Checkup(readings, asked, judge(judged, readings))


def _readings(config: AgentConfig | None, asked: Conditions) -> Readings:
    if config is None:
        return Sensors(Path.cwd(), ConditionSettings())()
    state = Path(config.state)
    readings = Sensors(state if state.exists() else Path.cwd(), config.conditions)()
    if asked.min_examples is None:
        return readings
    return msgspec.structs.replace(readings, examples=sources.load(config.data).count)
