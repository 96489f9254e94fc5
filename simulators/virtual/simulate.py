"""A whole fleet in virtual time: its devices' lives, incidents, and one run from its start to its end."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from coordinator.config import RunConfig
from edgepfl.bundle import Bundle
from edgepfl.errors import ConfigError
from edgepfl.seeds import SEED_BITS
from edgepfl.validation import convert
from simulators import clock
from simulators.profiles import DAY
from simulators.virtual.records import Incident, Settings, Simulated, VirtualDevice
from simulators.virtual.scene import Scene

MOST = 60 * DAY
"""Virtual seconds: later, a timer's resolution of a nanosecond is lost in the clock's rounding."""

_MEMORY = Path("/dev/shm")  # noqa: S108  a directory of its own is made in it


def simulate(
    bundle: Bundle,
    config: RunConfig,
    devices: Mapping[str, VirtualDevice],
    *,
    seed: int = 0,
    until: float = DAY,
    incidents: Sequence[Incident] = (),
    settings: Settings = Settings(),  # noqa: B008  it is frozen
    log: Path | None = None,
    folder: Path | None = None,
    see: Callable[[float, int], None] | None = None,
) -> Simulated:
    """A run of a fleet in virtual time, from 0 until it ends or time is up.

    The same arguments give the same log, byte for byte, on every machine; and where no fault happens, the same state
    as any other way to run the same fleet.

    Args:
        bundle: what is trained, with graphs for every device's runtime.
        config: of the run.
        devices: by name.
        seed: of links, identities and waits; lives have their own.
        until: virtual seconds at which it ends at the latest.
        incidents: what goes wrong beside what lives bring, in any order.
        settings: how it is simulated.
        log: a file that gets one JSON line for each event.
        folder: keeps the state directories; None: they are deleted, and lie in memory where the system has a
            directory there.
        see: told of each committed round: virtual seconds, and its number.

    Raises:
        ConfigError: a value is impossible, or an incident is of a device that is none.
        EdgepflError: the run cannot start, or a service failed for a reason that is not of the simulated world.
    """
    _check(devices, seed, until, incidents)
    config = convert(msgspec.to_builtins(config), RunConfig, lambda key: f"the run's {key}")
    with tempfile.TemporaryDirectory(prefix="edgepfl-", dir=_MEMORY if _MEMORY.is_dir() else None) as own:
        scene = Scene(devices, seed, until, settings, folder or Path(own), see)
        return clock.run(scene.play(bundle, config, incidents, log))


def _check(devices: Mapping[str, VirtualDevice], seed: int, until: float, incidents: Sequence[Incident]) -> None:
    if not 0 < until <= MOST:
        what = f"{until:g} s cannot be simulated"
        raise ConfigError(what, where="simulate, until", remedy=f"Give more than 0 and at most {MOST:g} s (60 days)")
    if not 0 <= seed < 1 << SEED_BITS:
        raise ConfigError(f"{seed} is no seed", where="simulate, seed", remedy=f"Give 0 to 2^{SEED_BITS} - 1")
    for each in incidents:
        if (each.kind in {"broker", "coordinator"}) == bool(each.device):
            raise ConfigError(
                f"{each.kind} with device {each.device!r}",
                where="simulate, incidents",
                remedy="Name a device for cut, silence, kill and full, and none for broker and coordinator",
            )
        if each.device and each.device not in devices:
            raise ConfigError(f"there is no device {each.device!r}", where="simulate, incidents")
