"""What this machine measures of itself: psutil, and files below ``/sys`` and ``/proc``.

Every source may be missing, unreadable or odd: then a reading is None, and :mod:`edgepfl.eligibility` says what that
means.  Nothing here raises.

=============  ======================================================================================================
reading        source
=============  ======================================================================================================
powered        ``/sys/class/power_supply``: any battery that discharges, else any that charges or is full, else any
               mains, USB or wireless supply that is online; a machine that has none of all that has no battery
battery        there, the mean over its batteries; those of a mouse or headset do not count
temperature    the hottest of the thermal zones of a processor, else of its hardware monitors, else of all zones
throttled      the Raspberry Pi's ``get_throttled`` (bits 0 to 3: what is so now), and every cooling device that slows a
               processor down (ARM's cpufreq and devfreq, ACPI's Processor, the Jetson's throttle alerts)
link           of the default route's interface (``/proc/net/route``, ``ipv6_route``): ``/sys/class/net/X``
metered        the owner's word in agent.toml, else whether the link is a mobile radio
load           the average over a minute, without what this process itself adds to it
=============  ======================================================================================================
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

from device_agent.config import ConditionSettings
from edgepfl.eligibility import Link, Readings

BUILD_YEAR = 2026
"""A clock that shows an earlier year was never set."""

_MIB = 1 << 20
_COLDEST, _HOTTEST = -60.0, 150.0  # degrees Celsius: what a sensor outside says is no temperature
_PROCESSOR_ZONES = ("cpu", "gpu", "soc", "pkg", "tj", "tsens", "core")
_PROCESSOR_MONITORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")
_PROCESSOR_COOLERS = ("cpufreq", "devfreq", "cpu-throttle", "gpu-throttle", "cv-throttle", "soc-throttle", "processor")
_THROTTLED_NOW = 0xF  # of the Raspberry Pi: under-voltage, frequency capped, throttled, soft temperature limit
_MOBILE = ("wwan", "rmnet", "ccmni", "ppp")
_UP = 1  # of a route's flags
_ETHERNET = 1  # ARPHRD_ETHER


class Sensors:
    """This machine's sensors; call it to read them all, which takes a millisecond or a few.

    Args:
        state: a directory on the disk whose free space matters.
        settings: the owner's word, which goes before what is measured.
        sys: root of sysfs.
        proc: root of procfs.
        now: the local time.
    """

    def __init__(
        self,
        state: Path,
        settings: ConditionSettings,
        *,
        sys: Path = Path("/sys"),
        proc: Path = Path("/proc"),
        now: Callable[[], time.struct_time] = time.localtime,
    ) -> None:
        self._state = state
        self._settings = settings
        self._sys = sys
        self._proc = proc
        self._now = now
        self._own = OwnLoad()

    def __call__(self) -> Readings:
        """Read them."""
        powered, battery = power(self._sys)
        over = link(self._sys, self._proc)
        settings = self._settings
        if settings.wifi is not None:
            over = "wifi" if settings.wifi else "other"
        metered = None if over is None else over == "cellular"
        return Readings(
            powered=powered if settings.powered is None else settings.powered,
            battery=battery,
            temperature=temperature(self._sys),
            throttled=throttled(self._sys),
            link=over,
            metered=metered if settings.metered is None else settings.metered,
            free_memory_mib=_measured(lambda: psutil.virtual_memory().available / _MIB),
            free_disk_mib=_measured(lambda: psutil.disk_usage(str(self._state)).free / _MIB),
            load=_measured(lambda: self._own.others(psutil.getloadavg()[0], psutil.cpu_count() or 1)),
            minute=minute(self._now()),
        )


class OwnLoad:
    """The load average of everything but this process.

    The kernel's average over a minute forgets with ``exp(-t / 60 s)``; this process's own processor time is averaged in
    the same way and taken off, so that training does not count as a reason against training.

    Args:
        clock: seconds that never go back.
        spent: processor seconds of this process.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, spent: Callable[[], float] = time.process_time
    ) -> None:
        self._clock = clock
        self._spending = spent
        self._at = clock()
        self._spent = spent()
        self._own = 0.0

    def others(self, average: float, cores: int) -> float:
        """The load for each of the ``cores``, of an average over a minute for all."""
        at, spent = self._clock(), self._spending()
        passed = at - self._at
        if passed > 0:
            running = (spent - self._spent) / passed
            self._own += (1 - math.exp(-passed / 60.0)) * (running - self._own)
            self._at, self._spent = at, spent
        return max(average - self._own, 0.0) / cores


def power(sys: Path) -> tuple[bool | None, float | None]:
    """Whether the machine is on external power, and the charge of its battery, 0 to 1."""
    supplies = sys / "class" / "power_supply"
    if not (sys / "class").is_dir():
        return None, None
    statuses: list[str] = []
    charges: list[float] = []
    online: list[bool] = []
    for supply in _folders(supplies):
        kind = _text(supply / "type")
        if _text(supply / "scope") == "Device":  # of a mouse or a headset
            continue
        if kind == "Battery" and _text(supply / "present") != "0":
            statuses.append(_text(supply / "status"))
            charges.extend(_charge(supply))
        elif kind in {"Mains", "Wireless"} or kind.startswith("USB"):
            online.append((_number(supply / "online") or 0) > 0)
    charge = sum(charges) / len(charges) if charges else None
    return _powered(statuses, online), charge


def _powered(statuses: Sequence[str], online: Sequence[bool]) -> bool | None:
    if not statuses:  # a board without a battery runs, so it has power
        return True
    if "Discharging" in statuses:
        return False
    if "Charging" in statuses or "Full" in statuses:
        return True
    return any(online) if online else None


def _charge(battery: Path) -> Iterator[float]:
    percent = _number(battery / "capacity")
    if percent is not None:
        yield min(max(percent / 100, 0.0), 1.0)
        return
    for what in ("energy", "charge"):
        now, full = _number(battery / f"{what}_now"), _number(battery / f"{what}_full")
        if now is not None and full is not None and full > 0:
            yield min(max(now / full, 0.0), 1.0)
            return


def temperature(sys: Path) -> float | None:
    """The processor's, in degrees Celsius."""
    zones = [
        (_text(zone / "type").lower(), zone / "temp") for zone in _folders(sys / "class" / "thermal", "thermal_zone*")
    ]
    processors = [file for kind, file in zones if any(word in kind for word in _PROCESSOR_ZONES)]
    monitors = [
        file
        for monitor in _folders(sys / "class" / "hwmon")
        if _text(monitor / "name") in _PROCESSOR_MONITORS
        for file in sorted(monitor.glob("temp*_input"))
    ]
    for files in (processors, monitors, [file for _, file in zones]):
        if (found := _hottest(files)) is not None:
            return found
    return None


def _hottest(files: Sequence[Path]) -> float | None:
    degrees = [value / 1000 for file in files if (value := _number(file)) is not None]
    return max((each for each in degrees if _COLDEST < each < _HOTTEST), default=None)


def throttled(sys: Path) -> bool | None:
    """Whether the processor is slowed down; None where nothing would say so."""
    known: list[bool] = []
    platform = sys / "devices" / "platform"
    for pattern in ("*firmware/get_throttled", "*/*firmware/get_throttled"):
        for file in _matches(platform, pattern):
            bits = _number(file, base=16)
            if bits is not None:
                known.append(bool(int(bits) & _THROTTLED_NOW))
    for cooler in _folders(sys / "class" / "thermal", "cooling_device*"):
        kind = _text(cooler / "type").lower()
        state = _number(cooler / "cur_state")
        if state is not None and any(word in kind for word in _PROCESSOR_COOLERS):
            known.append(state > 0)
    return any(known) if known else None


def link(sys: Path, proc: Path) -> Link | None:
    """What the default route goes over; None where there is no route."""
    interface = _default_interface(proc)
    if interface is None or not interface.replace("-", "").replace("_", "").replace(".", "").isalnum():
        return None
    folder = sys / "class" / "net" / interface
    kind = _text(folder / "uevent")
    if "DEVTYPE=wwan" in kind or interface.startswith(_MOBILE):
        return "cellular"
    if (folder / "wireless").is_dir() or (folder / "phy80211").exists() or "DEVTYPE=wlan" in kind:
        return "wifi"
    return "ethernet" if _number(folder / "type") == _ETHERNET else "other"


def _default_interface(proc: Path) -> str | None:
    """The interface of the default route of least metric, IPv4 before IPv6."""
    found: list[tuple[int, str]] = []
    for line in _text(proc / "net" / "route").splitlines()[1:]:
        match line.split():
            case [interface, "00000000", _, flags, _, _, metric, "00000000", *_] if _integer(flags, 16) & _UP:
                found.append((_integer(metric), interface))
    if not found:
        for line in _text(proc / "net" / "ipv6_route").splitlines():
            match line.split():
                case ["00000000000000000000000000000000", "00", _, _, _, metric, _, _, _, interface] if (
                    interface != "lo"
                ):
                    found.append((_integer(metric, 16), interface))
    return min(found)[1] if found else None


def minute(now: time.struct_time) -> int | None:
    """Minute of the day, 0 to 1439; None where the clock was never set."""
    return 60 * now.tm_hour + now.tm_min if now.tm_year >= BUILD_YEAR else None


def _measured(measure: Callable[[], float]) -> float | None:
    try:
        return measure()
    except (OSError, ValueError, psutil.Error):
        return None


def _folders(root: Path, pattern: str = "*") -> list[Path]:
    return _matches(root, pattern)


def _matches(root: Path, pattern: str) -> list[Path]:
    try:
        return sorted(root.glob(pattern))
    except OSError:
        return []


def _text(file: Path) -> str:
    """What a file says, without the white space around it; empty where it says nothing."""
    try:
        return file.read_bytes()[:65536].decode("ascii", "replace").strip()
    except OSError:  # missing, forbidden, or a sensor that is switched off
        return ""


def _number(file: Path, base: int = 10) -> float | None:
    try:
        return float(int(_text(file), base))
    except (ValueError, OverflowError):
        return None


def _integer(word: str, base: int = 10) -> int:
    try:
        return int(word, base)
    except ValueError:
        return 0
