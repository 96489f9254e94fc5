"""Traces from parameters and a seed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import pairwise

import numpy as np

from edgepfl import seeds
from edgepfl.errors import ConfigError
from simulators.profiles.spans import Spans, united
from simulators.profiles.trace import ALWAYS, DAY, HOUR, MONDAY, Interval, Presence, Trace

_WHOLE_DAY = 24.0


@dataclass(frozen=True)
class Diurnal:
    """How people keep their phones: when they sleep, how often they plug in by day, and where they are.

    The defaults follow published figures where there are some, in brackets:

    * 64 of 100 people charge overnight, 69 at least twice a day, and 64 leave it in for 40 minutes or more.  With a
      Poisson number of charges by day that gives 1.65 of them, and exponential lengths give 1.5 hours each.
      [NPD for OnePlus, 2022, 1000 Americans with phones of 600 dollars and more,
      https://caeliassociates.com/index.php/2022/11/10/most-americans-still-charge-their-phones-two-or-more-times-a-day/]
    * 76 uses and 2.42 hours of use a day.  [dscout, 2016, 94 Android phones,
      http://digital-stats.blogspot.com/2016/07/us-smartphone-users-have-76-sessions.html]
    * Who charges by day is at home (93 of 100) or at work, and so on Wi-Fi.  [NPD]
    * The hours of night, the share of people without Wi-Fi and the hours away from it are estimates.

    What follows: with the four time zones of the United States, 6 times as many are idle, charging and on Wi-Fi in the
    best hour as in the worst; Google saw 4 times as many take part, in a population mostly there.  [Bonawitz et al.
    2019, section 9, https://arxiv.org/abs/1902.01046; theirs are held back at the peak by pace steering]

    Hours are of the device's local day.  Lengths are exponential, but for the hours away, which are within a half of
    their mean; numbers a day are Poisson; hours of the day are normal.

    Attributes:
        night: hour at which a device goes on its charger for the night, in the mean.
        morning: hour at which it comes off.
        spread: standard deviation of both, in hours: once between devices, and half as much between nights.
        charged: probability that it charges on a given night.
        plugs: charges by day.
        plug_hours: length of one.
        uses: times a day that its owner uses it.
        use_hours: length of one.
        home: probability that its owner has Wi-Fi at home.
        away_hours: of the day without Wi-Fi.
        losses: times a day without any network.
        loss_hours: length of one.
        zones: seconds east of UTC that devices are dealt from.

    Raises:
        ConfigError: a value is negative, an hour is not 0 to 24, the night comes before the morning, a probability is
            not 0 to 1, or there is no zone.
    """

    night: float = 22.5
    morning: float = 7.0
    spread: float = 1.0
    charged: float = 0.64
    plugs: float = 1.65
    plug_hours: float = 1.5
    uses: float = 76.0
    use_hours: float = 0.032
    home: float = 0.9
    away_hours: float = 7.0
    losses: float = 3.0
    loss_hours: float = 0.2
    zones: tuple[float, ...] = (0.0,)

    def __post_init__(self) -> None:
        for each in fields(self):
            most = {"charged": 1.0, "home": 1.0, "night": _WHOLE_DAY, "morning": _WHOLE_DAY, "away_hours": _WHOLE_DAY}
            value = getattr(self, each.name)
            if each.name != "zones" and not 0 <= value <= most.get(each.name, 1e6):
                raise ConfigError(
                    f"{value:g} is impossible",
                    where=f"diurnal, {each.name}",
                    remedy=f"Give 0 to {most.get(each.name, 1e6):g}",
                )
        if self.night <= self.morning or not self.zones:
            raise ConfigError(
                "the night begins before the morning, or there is no time zone",
                where="diurnal",
                remedy="Give hours of one day, such as morning = 7 and night = 22.5, and zones = [0]",
            )


def always(horizon: float, zone: float = 0.0) -> Trace:
    """A device that is always there, on mains and unused: one interval."""
    return Trace((Interval(0.0, horizon, ALWAYS),), zone)


def diurnal(
    habits: Diurnal, device: str, seed: int, horizon: float, *, epoch: float = MONDAY, zone: float | None = None
) -> Trace:
    """One device's days and nights.

    A longer horizon only adds to the trace: each day's draws have a seed of their own.

    Args:
        habits: of people.
        device: its name; each is another person.
        seed: of the emulation.
        horizon: seconds that the trace covers.
        epoch: Unix time of the emulation's start.
        zone: seconds east of UTC; None: one of ``habits.zones``.
    """
    person = _Person.drawn(habits, seeds.generator(seed, "trace", device), zone)
    begins = (epoch + person.zone) % DAY  # seconds of the local day at time 0
    last = math.ceil((horizon + begins) / DAY)
    days = [
        _day(habits, person, seeds.generator(seed, "trace", device, day), day * DAY - begins)
        for day in range(-1, last + 1)
    ]
    return Trace.of(_intervals(person, days, horizon), horizon, person.zone)


def fleet_traces(
    devices: Sequence[str], seed: int, horizon: float, habits: Diurnal | None = None, *, epoch: float = MONDAY
) -> dict[str, Trace]:
    """Each device's trace; without habits, all are always there."""
    if habits is None:
        return {device: always(horizon) for device in devices}
    return {device: diurnal(habits, device, seed, horizon, epoch=epoch) for device in devices}


@dataclass(frozen=True)
class _Person:
    """What stays the same from day to day; hours of the local day."""

    night: float
    morning: float
    home: bool
    zone: float

    @classmethod
    def drawn(cls, habits: Diurnal, rng: np.random.Generator, zone: float | None) -> _Person:
        night = habits.night + habits.spread * float(rng.normal())
        morning = habits.morning + habits.spread * float(rng.normal())
        home = bool(rng.random() < habits.home)
        dealt = habits.zones[int(rng.integers(len(habits.zones)))]
        return cls(night, morning, home, dealt if zone is None else zone)


@dataclass(frozen=True)
class _Day:
    """One local day, from its morning to the next day's: spans in seconds of the emulation."""

    charging: tuple[tuple[float, float], ...]
    away: tuple[tuple[float, float], ...]
    used: tuple[tuple[float, float], ...]
    lost: tuple[tuple[float, float], ...]


def _day(habits: Diurnal, person: _Person, rng: np.random.Generator, midnight: float) -> _Day:
    jitter = habits.spread / 2
    rises = midnight + HOUR * (person.morning + jitter * float(rng.normal()))
    sleeps = max(midnight + HOUR * (person.night + jitter * float(rng.normal())), rises)
    wakes = midnight + DAY + HOUR * person.morning
    overnight = ((sleeps, max(wakes, sleeps)),) if rng.random() < habits.charged else ()
    gone = min(HOUR * habits.away_hours * float(rng.uniform(0.5, 1.5)), sleeps - rises)
    leaves = rises + max(sleeps - rises - gone, 0.0) * float(rng.random())
    return _Day(
        charging=(*overnight, *_some(rng, habits.plugs, habits.plug_hours, rises, sleeps)),
        away=((leaves, leaves + gone),),
        used=tuple(_some(rng, habits.uses, habits.use_hours, rises, sleeps)),
        lost=tuple(_some(rng, habits.losses, habits.loss_hours, rises, sleeps)),
    )


def _some(
    rng: np.random.Generator, count: float, hours: float, start: float, end: float
) -> Iterator[tuple[float, float]]:
    """A Poisson number of spans of exponential length, cut off at ``end``."""
    number = int(rng.poisson(count))
    begins = rng.uniform(start, end, number).tolist()
    lengths = rng.exponential(HOUR * hours, number).tolist()
    return ((begin, min(begin + length, end)) for begin, length in zip(begins, lengths, strict=True))


def _intervals(person: _Person, days: Iterable[_Day], horizon: float) -> Iterator[Interval]:
    days = list(days)
    charging = united(span for day in days for span in day.charging)
    away = united(span for day in days for span in day.away)
    used = united(span for day in days for span in day.used)
    lost = united(span for day in days for span in day.lost)
    tracks = (charging, away, used, lost)
    cuts = sorted({0.0, horizon, *(at for track in tracks for at in track.edges() if 0 < at < horizon)})
    for start, end in pairwise(cuts):
        yield Interval(start, end, _presence(person, start, tracks))


def _presence(person: _Person, now: float, tracks: tuple[Spans, Spans, Spans, Spans]) -> Presence:
    charging, away, used, lost = (now in track for track in tracks)
    wifi = person.home and (charging or not away)  # who plugs in is at home or at work
    return _shared(not lost, charging, wifi, not used)


@cache
def _shared(online: bool, charging: bool, wifi: bool, idle: bool) -> Presence:  # noqa: FBT001  as the record has them
    """One of the 16 there are, so that a fleet's traces share them."""
    return Presence(online, charging, wifi, idle)
