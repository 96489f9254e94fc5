"""What a device must be before it may train, and what of it is unmet: a policy, readings and a pure comparison.

The policy (:class:`Conditions`) is the run's; the readings are the device's own, and only the device compares them.  It
says in words what is unmet, and nobody else ever sees what it measured.

What a missing sensor means is decided for each condition, so that a board without a battery on mains may train and a
board that cannot know its temperature may not, where a limit is set:

==================  ================================================================================================
condition           where the device cannot measure it
==================  ================================================================================================
charging            unmet; a machine that *has no* battery is on external power, and says so
min_battery         met on external power without a battery (nothing can run down), else unmet
max_temperature     unmet
not_throttled       met: throttling is only slow, and what it protects is ``max_temperature``
unmetered           met: without a default route nothing is paid for
wifi                unmet
min_free_*          unmet
max_load            unmet
windows             unmet, unless ``windows_without_clock``
==================  ================================================================================================

``min_examples`` and ``min_interval`` need no sensor.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import Annotated, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

DIGEST_CHARACTERS = 16
MOST_WINDOWS = 8

BATTERY_MARGIN = 0.03
TEMPERATURE_MARGIN = 3.0  # degrees Celsius
AMOUNT_MARGIN = 0.05  # of a limit of memory or disk
LOAD_MARGIN = 0.1

Fraction: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Celsius: TypeAlias = Annotated[float, Meta(ge=1, le=150)]
Mebibytes: TypeAlias = Annotated[int, Meta(ge=1, le=1 << 30)]
Load: TypeAlias = Annotated[float, Meta(ge=0.01, le=1000)]
Examples: TypeAlias = Annotated[int, Meta(ge=1, le=1 << 40)]
Duration: TypeAlias = Annotated[float, Meta(ge=0, le=1e9)]  # seconds
Window: TypeAlias = Annotated[  # from the first minute up to the second, perhaps over midnight
    str,
    Meta(pattern=r"\A([01][0-9]|2[0-3]):[0-5][0-9]-([01][0-9]|2[0-3]):[0-5][0-9]\Z", examples=["22:00-06:00"]),
]
Link: TypeAlias = Literal["ethernet", "wifi", "cellular", "other"]


class Conditions(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a run asks of a device, before and while it trains.  What is not given is not asked.

    A device that does not know a condition ignores it when it decodes, and so names another :func:`digest` than the
    coordinator's: it counts as not eligible.

    Attributes:
        charging: on external power, and its battery, if it has one, does not run down.
        min_battery: of its charge, 0 to 1.
        max_temperature: of its processor, in degrees Celsius.
        not_throttled: its processor runs as fast as it can.
        unmetered: nobody pays for its traffic by the byte.
        wifi: connected by Wi-Fi or cable, not by mobile radio.
        min_free_memory_mib: memory that programs can have.
        min_free_disk_mib: on the disk of the agent's state.
        max_load: load average over a minute for each core, the agent's own work left out.
        min_examples: that it trains on.
        min_interval: seconds since it last took part.
        windows: times of the day, such as ``22:00-06:00``, by the device's own local clock; one of them must hold.
        windows_without_clock: a device whose clock is not set passes for inside a window.
        on_lost: what a device does that loses a condition while it trains.
        pause_limit: seconds after which a paused device gives up.
    """

    charging: bool = False
    min_battery: Fraction | None = None
    max_temperature: Celsius | None = None
    not_throttled: bool = False
    unmetered: bool = False
    wifi: bool = False
    min_free_memory_mib: Mebibytes | None = None
    min_free_disk_mib: Mebibytes | None = None
    max_load: Load | None = None
    min_examples: Examples | None = None
    min_interval: Duration | None = None
    windows: Annotated[tuple[Window, ...], Meta(max_length=MOST_WINDOWS)] = ()
    windows_without_clock: bool = False
    on_lost: Literal["pause", "give up"] = "pause"
    pause_limit: Duration = 600.0


class Readings(msgspec.Struct, frozen=True, kw_only=True):
    """What a device measures of itself; None where it cannot.

    Attributes:
        powered: on external power, its battery, if any, not running down.
        battery: its charge, 0 to 1; None also where it has no battery.
        temperature: of its processor, in degrees Celsius.
        throttled: its processor is slowed down, by heat or by too weak a supply.
        link: what its default route goes over.
        metered: whether its traffic is paid for by the byte.
        free_memory_mib: memory that programs can have.
        free_disk_mib: on the disk of the agent's state.
        load: load average over a minute for each core, without the agent's own part.
        examples: that it trains on.
        rested: seconds since it last took part, at least; None: it never did.
        minute: of the local day, 0 to 1439; None: its clock is not set.
    """

    powered: bool | None = None
    battery: float | None = None
    temperature: float | None = None
    throttled: bool | None = None
    link: Link | None = None
    metered: bool | None = None
    free_memory_mib: float | None = None
    free_disk_mib: float | None = None
    load: float | None = None
    examples: int = 0
    rested: float | None = None
    minute: int | None = None


class Unmet(NamedTuple):
    """A condition that does not hold.

    Attributes:
        name: of the field of :class:`Conditions`.
        why: in words, with what was measured.
    """

    name: str
    why: str


@lru_cache(maxsize=256)
def digest(conditions: Conditions | None) -> str:
    """A name for a policy, 16 hexadecimal characters, the same for the same policy; empty for none.

    Only what is asked is in it, so that a version with more conditions gives the same names to the policies of today.
    It is remembered: msgspec looks at a record's types anew at each call, for most of a millisecond.
    """
    if conditions is None:
        return ""
    conditions = msgspec.convert(msgspec.to_builtins(conditions), Conditions)  # 60 and 60.0 are one limit
    given = {field.name: getattr(conditions, field.name) for field in msgspec.structs.fields(conditions)}
    usual = {field.name: field.default for field in msgspec.structs.fields(conditions)}
    fields = {name: value for name, value in given.items() if value != usual[name]}
    return hashlib.sha256(msgspec.json.encode(fields, order="sorted")).hexdigest()[:DIGEST_CHARACTERS]


def judge(conditions: Conditions, readings: Readings, before: Collection[str] = ()) -> tuple[Unmet, ...]:
    """What is unmet, in the order of the fields.

    Args:
        conditions: the policy.
        readings: of the device, just now.
        before: names of the conditions that were unmet at the last look.  A number must pass its limit by a margin
            before such a condition counts as met again, so that one near its limit does not come and go.
    """
    return tuple(
        Unmet(name, why)
        for name, why in _checks(conditions, readings, frozenset(before))
        if why and _asked(conditions, name)
    )


def unmet(conditions: Conditions, readings: Readings, before: Collection[str] = ()) -> tuple[str, ...]:
    """The reasons of :func:`judge` alone, for people."""
    return tuple(each.why for each in judge(conditions, readings, before))


def reason(found: Collection[Unmet]) -> str:
    """What is unmet, in one line."""
    return ", ".join(each.why for each in found)


def _asked(conditions: Conditions, name: str) -> bool:
    return getattr(conditions, name) not in (False, None, ())


def _checks(c: Conditions, r: Readings, before: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Each condition and what stands against it; what is not asked does not matter."""
    yield "charging", _charging(r)
    yield "min_battery", _battery(c.min_battery or 0.0, r, BATTERY_MARGIN * ("min_battery" in before))
    yield (
        "max_temperature",
        _temperature(c.max_temperature or 0.0, r, TEMPERATURE_MARGIN * ("max_temperature" in before)),
    )
    yield "not_throttled", "its processor is throttled" if r.throttled else ""
    yield "unmetered", "its connection is metered" if r.metered else ""
    yield "wifi", _wifi(r)
    yield (
        "min_free_memory_mib",
        _amount("memory", c.min_free_memory_mib, r.free_memory_mib, "min_free_memory_mib" in before),
    )
    yield "min_free_disk_mib", _amount("disk", c.min_free_disk_mib, r.free_disk_mib, "min_free_disk_mib" in before)
    yield "max_load", _load(c.max_load or 0.0, r, LOAD_MARGIN * ("max_load" in before))
    yield "min_examples", _few(c.min_examples or 0, r)
    yield "min_interval", _tired(c.min_interval or 0.0, r)
    yield "windows", _outside(c, r)


def _charging(r: Readings) -> str:
    if r.powered is None:
        return "it cannot tell whether it is charging"
    return "" if r.powered else "not charging"


def _battery(least: float, r: Readings, margin: float) -> str:
    if r.battery is None:
        return "" if r.powered else "no battery sensor"
    wanted = least if r.battery < least else min(least + margin, 1.0)
    return "" if r.battery >= wanted else f"battery at {100 * r.battery:.0f} %, at least {100 * wanted:.0f} % needed"


def _temperature(most: float, r: Readings, margin: float) -> str:
    if r.temperature is None:
        return "no temperature sensor"
    wanted = most if r.temperature > most else most - margin
    return "" if r.temperature <= wanted else f"temperature {r.temperature:.0f} C, at most {wanted:.0f}"


def _wifi(r: Readings) -> str:
    if r.link is None:
        return "it cannot tell whether it is on Wi-Fi"
    return "" if r.link in {"wifi", "ethernet"} else f"connected by {r.link}, not by Wi-Fi"


def _amount(what: str, least: int | None, free: float | None, again: bool) -> str:  # noqa: FBT001  was it unmet before
    if free is None:
        return f"it cannot tell how much {what} is free"
    limit = least or 0
    wanted = limit if free < limit else limit * (1 + AMOUNT_MARGIN * again)
    return "" if free >= wanted else f"{free:.0f} MiB of {what} free, at least {wanted:.0f} needed"


def _load(most: float, r: Readings, margin: float) -> str:
    if r.load is None:
        return "it cannot tell its load"
    wanted = most if r.load > most else max(most - margin, most / 2)  # a limit below the margin can be met again, too
    return "" if r.load <= wanted else f"load {r.load:.2f} for each core, at most {wanted:.2f}"


def _few(least: int, r: Readings) -> str:
    return "" if r.examples >= least else f"{r.examples} examples, at least {least} needed"


def _tired(interval: float, r: Readings) -> str:
    if r.rested is None or r.rested >= interval:
        return ""
    return f"it took part {r.rested:.0f} s ago, at least {interval:.0f} s needed"


def _outside(c: Conditions, r: Readings) -> str:
    if r.minute is None:
        return "" if c.windows_without_clock else "its clock is not set, and the time of the day matters"
    now = r.minute
    if any(_within(now, *_minutes(window)) for window in c.windows):
        return ""
    return f"it is {now // 60:02}:{now % 60:02} there, and the time must be in {' or '.join(c.windows)}"


def _minutes(window: str) -> tuple[int, int]:
    begin, end = ((60 * int(time[:2]) + int(time[3:])) for time in window.split("-"))
    return begin, end


def _within(now: int, begin: int, end: int) -> bool:
    """Whether a minute is in ``[begin, end)``; over midnight where the end comes first, all day where they are one."""
    return begin <= now < end if begin < end else now >= begin or now < end
