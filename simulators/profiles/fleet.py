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

CARRIED = frozenset({"phone", "wearable"})
"""The kinds of devices that follow their owner's days and nights; boards are on mains, and stay where they are."""


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
        source: of traces: ``"always"``; ``"diurnal"``, which only what people carry follows, boards being always
            there; or the path of a CSV file, which holds for all.
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
    still = [device for device in devices if profile(names[device], own).kind not in CARRIED]
    traces = traces_of(source, devices, seed, horizon, epoch=epoch)
    if source == "diurnal":
        traces |= fleet_traces(still, seed, horizon)
    return lives(devices, traces, seed, shares=shares, own=own, churn=churn, epoch=epoch)
