"""Devices that fail again and again sit out some rounds, so that others need not wait for them each time.

Pure functions of records that the journal keeps with each attempt's end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from coordinator.blame import is_devices
from coordinator.seats import Round, Seat, State

MOST_DOUBLINGS = 6
"""So that after 5 rounds the longest quarantine is 320."""


class Conduct(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a device did in the run's attempts that it was chosen for.

    Attributes:
        failures: in a row: it failed, or was lost.
        until: the last round that it sits out.
        times: how often it was quarantined.
        why: of the last failure.
    """

    failures: int = 0
    until: int = 0
    times: int = 0
    why: str = ""


@dataclass(frozen=True)
class Rule:
    """When devices are quarantined, and for how long.

    Attributes:
        after: failures in a row.
        rounds: to sit out for the first time, twice as many each further time; 0 for none.
    """

    after: int = 3
    rounds: int = 5


def judge(before: Mapping[str, Conduct], r: Round, rule: Rule) -> dict[str, Conduct]:
    """The records that an attempt which is over changes.

    A report ends a row of failures.  Whoever was released, or declined, neither failed nor did well.

    Args:
        before: of the attempts before it.
        r: the attempt.
        rule: when and how long.
    """
    changed: dict[str, Conduct] = {}
    for device, seat in r.seats.items():
        conduct = before.get(device, Conduct())
        if seat.state is State.REPORTED and conduct.failures:
            changed[device] = Conduct(times=conduct.times)
        elif _failed(seat):
            changed[device] = _after_failure(conduct, seat.why, r.number, rule)
    return changed


def barred(conducts: Mapping[str, Conduct], number: int) -> dict[str, str]:
    """Who is to sit out a round, and why, for people."""
    return {
        device: f"quarantined until round {conduct.until}: it failed {conduct.failures} times in a row ({conduct.why})"
        for device, conduct in sorted(conducts.items())
        if conduct.until >= number
    }


def _failed(seat: Seat) -> bool:
    return seat.state is State.LOST or (seat.state is State.FAILED and is_devices(seat.code))


def _after_failure(conduct: Conduct, why: str, number: int, rule: Rule) -> Conduct:
    failures = conduct.failures + 1
    if failures < rule.after or rule.rounds == 0:
        return Conduct(failures, conduct.until, conduct.times, why)
    rounds = rule.rounds << min(conduct.times, MOST_DOUBLINGS)
    return Conduct(failures, number + rounds, conduct.times + 1, why)
