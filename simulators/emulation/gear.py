"""What the devices of a scenario have: profiles, workshops, pools and links, most of it shared."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path

from device_agent.config import RuntimeSettings
from device_agent.runners.choice import choose
from device_agent.work import Workshop
from simulators.emulation.scenario import FleetTable
from simulators.emulation.stretching import Slowed
from simulators.faults import CALM, Faults
from simulators.profiles import (
    DAY,
    HOST,
    DeviceProfile,
    Life,
    churn_of,
    fleet_lives,
    load_profiles,
    network,
    slowdown,
)

MOST_DAYS = 7
"""For which lives are made: each costs a phone about a millisecond and 15 KiB."""


def horizon_of(speedup: float) -> float:
    """Seconds of the emulation for which lives are made: a day of the wall's, but a week at most.

    What holds at their end holds on.  A longer horizon only adds to a life.
    """
    return DAY * min(max(speedup, 1.0), MOST_DAYS)


def lives_of(fleet: FleetTable, devices: tuple[str, ...], seed: int, horizon: float = DAY) -> dict[str, Life]:
    """The life of each device, with its profile.

    Args:
        fleet: who takes part.
        devices: their names.
        seed: of the emulation.
        horizon: seconds of the emulation for which lives are made.

    Raises:
        ConfigError: there is no such profile, trace or setting, or a file of them cannot be used.
    """
    own = load_profiles(Path(fleet.profile_file)) if fleet.profile_file else {}
    return fleet_lives(
        fleet.trace,
        devices,
        seed,
        horizon,
        shares=fleet.profiles or {HOST: 1.0},
        own=own,
        churn=churn_of(fleet.churn),
    )


def runtimes_of(lives: Mapping[str, Life]) -> tuple[str, ...]:
    """The runtimes that the devices have, in the order in which they are exported."""
    return tuple(sorted({each.profile.runtime for each in lives.values()}, reverse=True)) or ("onnx",)


def faster(faults: Faults, speedup: float) -> Faults:
    """The faults of a network whose time goes so many times faster."""
    if speedup == 1.0:
        return faults
    low, high = faults.up.delay
    up = replace(faults.up, delay=(low / speedup, high / speedup), rate=faults.up.rate * speedup)
    low, high = faults.down.delay
    down = replace(faults.down, delay=(low / speedup, high / speedup), rate=faults.down.rate * speedup)
    return replace(faults, up=up, down=down)


class Gear:
    """Workshops by runtime, pools by speed, links by profile.

    Args:
        pool: does all arithmetic.
        speedup: by how much the emulation's time is faster than the wall's.
    """

    def __init__(self, pool: Executor, speedup: float = 1.0) -> None:
        self._speedup = speedup
        self._slowed = Slowed(pool, speedup)
        self._workshops: dict[str, Workshop] = {}

    def pool(self, profile: DeviceProfile) -> Executor:
        """What a device of this profile works with."""
        return self._slowed.by(slowdown(profile))

    def workshop(self, profile: DeviceProfile) -> Workshop:
        """What does its tasks: one for all devices with the same runtime.

        Raises:
            ConfigError: the runtime is not installed, or not built.
        """
        if profile.runtime not in self._workshops:
            choice = choose(RuntimeSettings(kind=profile.runtime))
            self._workshops[profile.runtime] = Workshop(
                choice.runner, shared=True, runtime=choice.runtime, version=choice.version
            )
        return self._workshops[profile.runtime]

    def link(self, profile: DeviceProfile) -> Faults:
        """How its connection is."""
        return CALM if profile.kind == "host" else faster(network(profile), self._speedup)
