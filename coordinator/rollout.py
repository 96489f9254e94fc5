"""How a bundle that nobody has run yet reaches a cohort: a few *canaries* first, then all, and not at all if it is bad.

Pure functions of a round.  A canary has *shown* that the bundle works when it has taken a step, or reported.
"""

from __future__ import annotations

import math
from dataclasses import replace

from coordinator.blame import is_bundles
from coordinator.reasons import names
from coordinator.seats import Phase, Round, Seat, State

LEAST = 2
"""Devices that must fail before a run halts: one may be the only one with an old runtime."""


PATIENCE = 2
"""Leases in which a canary that lives must take a step before others get the task as well."""


def canaries(seats: int, part: float) -> int:
    """How many of a cohort are canaries: at least one.

    Args:
        seats: of the cohort.
        part: of it, 0 to 1.
    """
    return max(1, math.ceil(seats * part - 1e-9)) if seats else 0


def seat(devices: tuple[str, ...], canaries: tuple[str, ...], until: float) -> dict[str, Seat]:
    """The seats of a cohort whose canaries get the task first.

    Args:
        devices: the cohort.
        canaries: of these; empty for all at once.
        until: when the leases end of those who get the task.
    """
    first = set(canaries) & set(devices) or set(devices)
    held = Seat(State.WAITING, 0.0)
    return {device: Seat(State.WORKING, until) if device in first else held for device in sorted(devices)}


def next_group(r: Round, at: float) -> tuple[str, ...]:
    """Who gets the task now: nobody while a canary's word is out, everyone once one has shown that the bundle works.

    Where all canaries failed or were lost without a step, as many others take their place; likewise where one lives and
    takes none for :data:`PATIENCE` leases: its link may be slow, or its conditions may not hold.
    """
    held = r.devices(State.WAITING)
    if r.phase is not Phase.REPORTING or not held:
        return ()
    patient = at - r.since < PATIENCE * r.policy.lease
    if patient and any(each.state is State.WORKING and not each.steps for each in r.seats.values()):
        return ()
    shown = any(each.steps or each.state is State.REPORTED for each in r.seats.values())
    return held if shown else held[: len(r.seats) - len(held)]


def widen(r: Round, devices: tuple[str, ...], at: float) -> Round:
    """The round with these members at work; its deadline begins anew, because they need as long as the others."""
    lease = Seat(State.WORKING, at + r.policy.lease)
    return replace(r, since=at, seats={**r.seats, **dict.fromkeys(devices, lease)})


def verdict(r: Round) -> str:
    """Why the run must halt; empty if it need not."""
    given = [device for device, each in r.seats.items() if each.state is not State.WAITING]
    faulty = [device for device in r.devices(State.FAILED) if is_bundles(r.seats[device].code)]
    if len(faulty) < LEAST or len(faulty) <= r.policy.halt * len(given):
        return ""
    what = names([f"{device}: {r.seats[device].why}" for device in faulty])
    return (
        f"{len(faulty)} of the {len(given)} devices that have the task cannot run its bundle, at most "
        f"{r.policy.halt:.0%} may ({what}). Export it again, or update the devices, and start another run"
    )
