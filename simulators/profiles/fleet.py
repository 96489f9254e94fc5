"""A whole fleet's lives from the words of a command line or scenario."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulators.profiles.life import CALM, Churn, Life
from simulators.profiles.lives import EVERYONE, NONE, lives
from simulators.profiles.mix import dealt
from simulators.profiles.registry import Profiles, profile
from simulators.profiles.trace import MONDAY
from simulators.profiles.trace_file import traces_of
from simulators.profiles.traces import fleet_traces

STILL = "board"
"""The kind of device that follows nobody's days and nights: it is on mains, and stays where it is."""


def fleet_lives(
    source: str,
    devices: Sequence[str],
    seed: int,
    horizon: float,
    *,
    shares: Mapping[str, float] = EVERYONE,
    own: Profiles = NONE,
    churn: Churn = CALM,
    epoch: float = MONDAY,
) -> dict[str, Life]:
    """Each device's life.

    Args:
        source: of traces: ``"always"``; ``"diurnal"``, which all but boards follow, which are always there; or the
            path of a CSV file, which holds for all.
        devices: their names.
        seed: of the emulation.
        horizon: seconds that traces cover.
        shares: of profiles, by name; exact counts are dealt out.
        own: profiles of the user's.
        churn: what befalls every device.
        epoch: Unix time of the emulation's start.

    Raises:
        ConfigError: there is no such profile, the shares are none, or the file cannot be read or is wrong.
    """
    names = dealt(shares, devices, seed)
    still = [device for device in devices if source == "diurnal" and profile(names[device], own).kind == STILL]
    resting = set(still)
    moving = [device for device in devices if device not in resting]
    traces = traces_of(source, moving, seed, horizon, epoch=epoch) | fleet_traces(still, seed, horizon)
    return lives(devices, traces, seed, shares=shares, own=own, churn=churn, epoch=epoch)
