"""One device's life: everything that happens to it besides its work, as a pure function of a seed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cached_property

from edgepfl import seeds
from edgepfl.eligibility import Link, Readings
from edgepfl.errors import ConfigError
from simulators.profiles.energy import Battery, full, lived
from simulators.profiles.profile import DeviceProfile
from simulators.profiles.spans import Range, Spans, poisson
from simulators.profiles.trace import AWAY, DAY, HOUR, MONDAY, Presence, Trace

LEAST_BOOT = 1.0
"""Seconds that a reboot takes of a profile that names none."""


@dataclass(frozen=True)
class Churn:
    """How a device comes and goes, and what goes wrong with it.  Rates are a day; all 0 is a calm life.

    Attributes:
        joins: seconds from the start within which it joins for the first time.
        leaves: rate at which it leaves for good: 0.01 is one device in a hundred each day.
        reboots: each takes the profile's ``boot_seconds``.
        cuts: its network fails.
        cut_for: seconds that one lasts.
        fills: its disk fills up.
        full_for: seconds that it stays full.
        skew: seconds that its clock may be wrong by, either way, all along.
        unset: probability that its clock stands at 1970 when it starts, as that of a board without a clock battery.
        set_after: seconds from its first network on until such a clock is set.

    Raises:
        ConfigError: a rate is negative, a span is none, or ``unset`` is no probability.
    """

    joins: Range = (0.0, 0.0)
    leaves: float = 0.0
    reboots: float = 0.0
    cuts: float = 0.0
    cut_for: Range = (5.0, 300.0)
    fills: float = 0.0
    full_for: Range = (600.0, 6 * HOUR)
    skew: float = 0.0
    unset: float = 0.0
    set_after: Range = (5.0, 120.0)

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            low, high = value if isinstance(value, tuple) else (value, value)
            if not 0 <= low <= high < math.inf or (each.name == "unset" and high > 1):
                raise ConfigError(
                    f"{value} is impossible",
                    where=f"churn, {each.name}",
                    remedy="Give rates a day and seconds of 0 or more, the lesser first, and a probability of 0 to 1",
                )
            if each.name in _RATES and high > DAY:  # each of them becomes an event
                raise ConfigError(
                    f"{high:g} a day is more than one a second",
                    where=f"churn, {each.name}",
                    remedy="Give at most 86400",
                )


_RATES = ("leaves", "reboots", "cuts", "fills")

CALM = Churn()
"""A life in which only the trace changes anything."""


class Kind(StrEnum):
    """What happens to a device, in the order in which it happens at one time."""

    OFFLINE = "offline"
    DOWN = "down"
    LEAVE = "leave"
    JOIN = "join"
    UP = "up"
    CLOCK = "clock"
    FULL = "full"
    ROOM = "room"
    CHARGING = "charging"
    LINK = "link"
    USE = "use"
    ONLINE = "online"


@dataclass(frozen=True, slots=True)
class Situation:
    """How a device is, at one time.

    Attributes:
        member: it has joined, and not left.
        running: it is a member, and not rebooting.
        online: it is running, and has a network.
        full: its disk is.
        clock: its clock is set, however wrong.
        presence: as its trace has it.
    """

    member: bool = False
    running: bool = False
    online: bool = False
    full: bool = False
    clock: bool = True
    presence: Presence = AWAY


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that happens to a device.

    Attributes:
        at: seconds from the start of the emulation.
        kind: what.
        now: how the device is from then on.
    """

    at: float
    kind: Kind
    now: Situation


@dataclass(frozen=True)
class Life:
    """One device's life.  Every method is a pure function of these fields and of the time.

    Attributes:
        profile: what it is.
        trace: when it is there.
        churn: what befalls it.
        seed: of the emulation.
        device: its name; another name is another life.
        epoch: Unix time of the emulation's start.
    """

    profile: DeviceProfile
    trace: Trace
    churn: Churn = CALM
    seed: int = 0
    device: str = "device"
    epoch: float = MONDAY

    def at(self, now: float) -> Situation:
        """How it is."""
        presence = self.trace.at(now)
        member = self.joins <= now < self.leaves
        running = member and now not in self._downs
        online = running and presence.online and now not in self._cuts
        return Situation(member, running, online, now in self._fulls, now not in self._unset, presence)

    def happenings(self, start: float = 0.0, end: float = math.inf) -> Iterator[Happening]:
        """What happens in ``[start, end)``, in order of time.

        The first is that it joins; where ``start`` is later, what was before ``start`` counts as known.
        """
        before = self.at(math.nextafter(start, -math.inf)) if start > 0 else Situation()
        for at in self._boundaries:
            if start <= at < end:
                now = self.at(at)
                yield from (Happening(at, kind, now) for kind in _changes(before, now))
                before = now

    @cached_property
    def joins(self) -> float:
        """Seconds at which it joins."""
        return float(seeds.generator(self.seed, "life", self.device, "joins").uniform(*self.churn.joins))

    @cached_property
    def leaves(self) -> float:
        """Seconds at which it leaves for good; infinite: never."""
        if not self.churn.leaves:
            return math.inf
        rng = seeds.generator(self.seed, "life", self.device, "leaves")
        return self.joins + float(rng.exponential(DAY / self.churn.leaves))

    @cached_property
    def skew(self) -> float:
        """Seconds that its clock is ahead."""
        most = self.churn.skew
        return float(seeds.generator(self.seed, "life", self.device, "skew").uniform(-most, most))

    def wall(self, now: float) -> float:
        """What its clock shows, as Unix time; one that is not set counts from 1970 on, from when it started."""
        unset = self._unset.around(now)
        return now - unset[0] if unset else self.epoch + now + self.skew

    def minute(self, now: float) -> int | None:
        """The minute of its local day by its own clock, 0 to 1439; None: the clock is not set."""
        if now in self._unset:
            return None
        return int((self.wall(now) + self.trace.zone) // 60) % 1440

    def battery(self, now: float) -> Battery:
        """The battery of a device that was full at the start, and never worked."""
        return lived(full(self.profile), self.profile, self.trace, now)

    def readings(
        self, now: float, battery: Battery | None = None, *, examples: int = 0, rested: float | None = None
    ) -> Readings:
        """What it measures of itself.  It has no thermometer.

        Args:
            now: seconds from the start of the emulation.
            battery: as its work has left it; without one, :meth:`battery`.
            examples: that it trains on.
            rested: seconds since it last took part.
        """
        battery = self.battery(now) if battery is None else battery
        situation = self.at(now)
        presence = situation.presence
        enough = (self.profile.watts_charger or 0.0) >= self.profile.watts_idle
        return Readings(
            powered=not battery.capacity or (presence.charging and enough),
            battery=battery.level,
            throttled=False,
            link=_link(presence) if situation.online else None,
            metered=not presence.wifi if situation.online else None,
            free_memory_mib=_or_unlimited(self.profile.memory_mib),
            free_disk_mib=0.0 if situation.full else _or_unlimited(self.profile.storage_mib),
            load=0.0 if presence.idle else 1.0,
            examples=examples,
            rested=rested,
            minute=self.minute(now),
        )

    @cached_property
    def _downs(self) -> Spans:
        seconds = max(self.profile.boot_seconds, LEAST_BOOT)
        return self._spans("reboots", self.churn.reboots, (seconds, seconds))

    @cached_property
    def _cuts(self) -> Spans:
        return self._spans("cuts", self.churn.cuts, self.churn.cut_for)

    @cached_property
    def _fulls(self) -> Spans:
        return self._spans("fills", self.churn.fills, self.churn.full_for)

    def _spans(self, name: str, rate: float, lasting: Range) -> Spans:
        rng = seeds.generator(self.seed, "life", self.device, name)
        return poisson(rng, rate, lasting, self.trace.horizon, self.joins)

    @cached_property
    def _unset(self) -> Spans:
        """When its clock stands at 1970: from a start on, until it has been online for a while."""
        rng = seeds.generator(self.seed, "life", self.device, "unset")
        found: list[tuple[float, float]] = []
        starts = [self.joins, *self._downs.ends]
        for start, following in zip(starts, [*self._downs.starts, math.inf], strict=True):
            wrong, delay = rng.random() < self.churn.unset, float(rng.uniform(*self.churn.set_after))
            if wrong:
                found.append((start, min(self._first_online(start) + delay, following)))
        kept = [each for each in found if each[0] < each[1]]
        return Spans(tuple(start for start, _ in kept), tuple(end for _, end in kept))

    def _first_online(self, start: float) -> float:
        """When it first has a network, from ``start`` on; infinite: never."""
        for each in self.trace.between(start, math.inf):
            cut = self._cuts.around(each.start)
            at = cut[1] if cut else each.start
            if each.presence.online and at < each.end:
                return at
        return math.inf

    @cached_property
    def _boundaries(self) -> tuple[float, ...]:
        """Every time at which something may change, in order."""
        times = {self.joins, self.leaves, *(each.start for each in self.trace.intervals)}
        for spans in (self._downs, self._cuts, self._fulls, self._unset):
            times.update(spans.starts, spans.ends)
        return tuple(sorted(each for each in times if each < math.inf))


def _changes(before: Situation, now: Situation) -> list[Kind]:
    """What has happened between two situations, in the order of :class:`Kind`."""
    stays = before.member and now.member  # who joins learns the rest from the situation
    found = (
        (Kind.OFFLINE, before.online and not now.online),
        (Kind.DOWN, stays and before.running and not now.running),
        (Kind.LEAVE, before.member and not now.member),
        (Kind.JOIN, now.member and not before.member),
        (Kind.UP, stays and now.running and not before.running),
        (Kind.CLOCK, stays and now.clock != before.clock),
        (Kind.FULL, stays and now.full and not before.full),
        (Kind.ROOM, stays and before.full and not now.full),
        (Kind.CHARGING, stays and now.presence.charging != before.presence.charging),
        (Kind.LINK, stays and now.presence.wifi != before.presence.wifi),
        (Kind.USE, stays and now.presence.idle != before.presence.idle),
        (Kind.ONLINE, now.online and not before.online),
    )
    return [kind for kind, happened in found if happened]


def _link(presence: Presence) -> Link:
    return "wifi" if presence.wifi else "cellular"


def _or_unlimited(amount: float | None) -> float:
    return math.inf if amount is None else amount
