"""The lives of a whole fleet, from what a command line or scenario says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from types import MappingProxyType

from edgepfl.errors import ConfigError
from simulators.profiles.life import CALM, Churn, Life
from simulators.profiles.mix import dealt
from simulators.profiles.registry import HOST, Profiles, profile
from simulators.profiles.trace import MONDAY, Trace

EVERYONE: Mapping[str, float] = MappingProxyType({HOST: 1.0})
"""Shares of a fleet without profiles: all are this machine."""
NONE: Profiles = MappingProxyType({})
"""No profiles of the user's."""


def lives(
    devices: Sequence[str],
    traces: Mapping[str, Trace],
    seed: int,
    *,
    shares: Mapping[str, float] = EVERYONE,
    own: Profiles = NONE,
    churn: Churn = CALM,
    epoch: float = MONDAY,
) -> dict[str, Life]:
    """Each device's life.

    Args:
        devices: their names.
        traces: of each.
        seed: of the emulation.
        shares: of profiles, by name; exact counts are dealt out.
        own: profiles of the user's.
        churn: what befalls every device.
        epoch: Unix time of the emulation's start.

    Raises:
        ConfigError: there is no such profile, or the shares are none.
    """
    kinds = {name: profile(name, own) for name in shares}
    names = dealt(shares, devices, seed)
    return {device: Life(kinds[names[device]], traces[device], churn, seed, device, epoch) for device in devices}


def churn_of(settings: Mapping[str, float | Sequence[float]]) -> Churn:
    """A :class:`Churn` from a table of a scenario file.

    A span of seconds is two numbers; one number is that many seconds exactly, but for ``joins``, where it is the
    latest.

    Raises:
        ConfigError: there is no such setting, or a value is impossible.
    """
    known = {each.name: each.default for each in fields(Churn)}
    found: dict[str, float | tuple[float, ...]] = {}
    for name, value in settings.items():
        if name not in known:
            raise ConfigError(
                f"there is no setting {name!r}", where="churn", remedy=f"The settings are {', '.join(known)}"
            )
        numbers = (value,) if isinstance(value, int | float) else tuple(value)
        pair = isinstance(known[name], tuple)
        if len(numbers) not in ({1, 2} if pair else {1}):
            raise ConfigError(
                f"{value} is impossible", where=f"churn, {name}", remedy="Give two numbers" if pair else "Give a number"
            )
        first = 0.0 if name == "joins" and len(numbers) == 1 else numbers[0]
        found[name] = (float(first), float(numbers[-1])) if pair else float(numbers[0])
    return Churn(**found)  # type: ignore[arg-type]  # each value has its field's kind by now
