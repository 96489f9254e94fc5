"""A device's energy: what it draws, what its charger gives, and what its battery holds, exactly.

Power is constant between two changes of activity or presence, so charge is a broken line and its corners are solved
for, not stepped over.  Of one joule from the charger the device takes what it draws and the battery the rest.  What is
drawn beyond the charger comes from the battery.  Always, to rounding::

    in the battery at first + from the mains = in the battery at last + spent

A battery at 0 turns the device off, and then it draws nothing; it turns itself on again once the charger has brought
its battery to :data:`REVIVED`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from edgepfl.errors import ConfigError
from simulators.profiles.profile import DeviceProfile
from simulators.profiles.trace import Presence, Trace

JOULES_PER_WATT_HOUR = 3600.0
REVIVED = 0.05
"""Of its charge: below this a phone that has run flat does not start.  An estimate."""


class Activity(StrEnum):
    """What the agent does, as far as power goes."""

    IDLE = "idle"
    TRAINING = "training"
    TRANSMITTING = "transmitting"


@dataclass(frozen=True, slots=True)
class Spent:
    """Joules that a device has drawn, by what it did meanwhile.

    Attributes:
        idle: waiting.
        training: the whole device's, while it trained.
        transmitting: likewise, while it sent or received.
        owner: what its owner's use drew on top.
    """

    idle: float = 0.0
    training: float = 0.0
    transmitting: float = 0.0
    owner: float = 0.0

    @property
    def total(self) -> float:
        """All of it."""
        return self.idle + self.training + self.transmitting + self.owner

    def __add__(self, other: Spent) -> Spent:
        """Both together."""
        return Spent(
            self.idle + other.idle,
            self.training + other.training,
            self.transmitting + other.transmitting,
            self.owner + other.owner,
        )

    def __sub__(self, before: Spent) -> Spent:
        """What was spent since ``before``, such as the start of a round."""
        return self + Spent(-before.idle, -before.training, -before.transmitting, -before.owner)


@dataclass(frozen=True, slots=True)
class Battery:
    """A device's energy at one time.  One on mains has a battery of capacity 0 that never runs flat.

    Attributes:
        now: seconds from the start of the emulation.
        charge: joules in the battery, 0 to ``capacity``.
        capacity: joules of a full one; 0: it has none.
        dead: it ran flat, and is off until it has charged.
        spent: since the start.
        mains: joules from the charger since the start.
    """

    now: float
    charge: float
    capacity: float
    dead: bool = False
    spent: Spent = Spent()
    mains: float = 0.0

    @property
    def level(self) -> float | None:
        """Of its charge, 0 to 1; None without a battery."""
        return self.charge / self.capacity if self.capacity else None


def full(profile: DeviceProfile, now: float = 0.0, level: float = 1.0) -> Battery:
    """A device's battery, full unless told otherwise.

    Args:
        profile: the device's.
        now: seconds from the start of the emulation.
        level: of its charge, 0 to 1; at 0 the device is off.

    Raises:
        ConfigError: the level is not 0 to 1.
    """
    if not 0 <= level <= 1:
        raise ConfigError(f"{level:g} is no level of charge", where="battery", remedy="Give 0 to 1")
    capacity = (profile.battery_wh or 0.0) * JOULES_PER_WATT_HOUR
    return Battery(now, capacity * level, capacity, dead=capacity > 0 and level <= 0)


def watts(profile: DeviceProfile, activity: Activity) -> float:
    """What the whole device draws while nobody uses it."""
    match activity:
        case Activity.IDLE:
            return profile.watts_idle
        case Activity.TRAINING:
            return profile.watts_training
        case Activity.TRANSMITTING:
            return profile.watts_transmitting


def lived(
    battery: Battery, profile: DeviceProfile, trace: Trace, until: float, activity: Activity = Activity.IDLE
) -> Battery:
    """The battery at ``until``, where the agent did one thing all along; while the device is off, it does nothing.

    A time before ``battery.now`` gives the battery as it is: time does not run backwards.
    """
    last = battery
    for corner in _corners(battery, profile, trace, until, activity):
        last = corner
    return last


def turns(
    battery: Battery, profile: DeviceProfile, trace: Trace, until: float, activity: Activity = Activity.IDLE
) -> Iterator[Battery]:
    """The battery each time it runs flat, and each time the device comes back, up to ``until``."""
    dead = battery.dead
    for corner in _corners(battery, profile, trace, until, activity):
        if corner.dead != dead:
            dead = corner.dead
            yield corner


def empties(
    battery: Battery, profile: DeviceProfile, trace: Trace, until: float, activity: Activity = Activity.IDLE
) -> float | None:
    """When it runs flat next, if the agent goes on doing one thing; None: not before ``until``."""
    return next((each.now for each in turns(battery, profile, trace, until, activity) if each.dead), None)


@dataclass(frozen=True)
class _Flow:
    """Power, in watts: of the agent's device, of its owner's use, and from the charger."""

    agent: float
    owner: float
    charger: float

    @property
    def rate(self) -> float:
        """Into the battery; negative: out of it."""
        return self.charger - (self.agent + self.owner)  # exactly 0 where the charger gives just that


def _corners(
    battery: Battery, profile: DeviceProfile, trace: Trace, until: float, activity: Activity
) -> Iterator[Battery]:
    """The battery at each corner of the line of its charge, the last one at ``until``."""
    for interval in trace.between(battery.now, until):
        while battery.now < interval.end:
            flow = _flow(battery, profile, interval.presence, activity)
            corner = _straight(battery, flow, interval.end, activity)
            if corner == battery:
                raise AssertionError(f"no time passes, and nothing else: {battery}")  # rather than for ever
            battery = corner
            yield battery


def _flow(battery: Battery, profile: DeviceProfile, presence: Presence, activity: Activity) -> _Flow:
    off = battery.dead
    agent = 0.0 if off else watts(profile, activity)
    owner = 0.0 if off or presence.idle else profile.watts_use
    if not battery.capacity:
        return _Flow(agent, owner, agent + owner)
    charger = (profile.watts_charger or 0.0) if presence.charging else 0.0
    if battery.charge >= battery.capacity:
        charger = min(charger, agent + owner)  # a full battery takes no more
    return _Flow(agent, owner, charger)


def _straight(battery: Battery, flow: _Flow, end: float, activity: Activity) -> Battery:
    """One straight piece of the line: up to ``end``, or to where the battery is flat, revived or full."""
    goal = 0.0
    if flow.rate > 0:
        goal = battery.capacity * (REVIVED if battery.dead else 1.0)
    needed = max((goal - battery.charge) / flow.rate, 0.0) if flow.rate else math.inf
    arrives = battery.now + needed <= end
    seconds = needed if arrives else end - battery.now
    charge = goal if arrives else battery.charge + flow.rate * seconds
    spent = Spent(owner=flow.owner * seconds) + Spent(**{activity.value: flow.agent * seconds})
    return replace(
        battery,
        now=battery.now + needed if arrives else end,
        charge=min(max(charge, 0.0), battery.capacity),
        dead=flow.rate < 0 if arrives else battery.dead,
        spent=battery.spent + spent,
        mains=battery.mains + flow.charger * seconds,
    )
