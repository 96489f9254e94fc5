"""What each device is doing, and why, for people and scripts.

Every state of a seat and every reason why a device has none gives one :class:`Doing` and one reason; `docs/rounds.md`
says what to do about each.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import assert_never

import msgspec

from coordinator.attendance import Sign
from coordinator.busy import Busy
from coordinator.devices import Fleet, Known
from coordinator.quarantine import Conduct, barred
from coordinator.seats import Phase, Round, Seat, State


class Doing(StrEnum):
    """What a device is doing, as far as a run is concerned."""

    PRESENT = "present"  # it can be chosen, or was not
    ABSENT = "absent"
    UNFIT = "unfit"  # it can never take part as it is
    UNMET = "unmet"  # it is here, and the run's conditions are not met
    QUARANTINED = "quarantined"
    BUSY = "busy"  # with work that nobody wants any more
    WAITING = "waiting"  # for the canaries
    WORKING = "working"
    PAUSED = "paused"
    UPLOADING = "uploading"
    REPORTED = "reported"
    LOST = "lost"
    FAILED = "failed"
    RELEASED = "released"


class DeviceStatus(msgspec.Struct, frozen=True):
    """A device at one moment.

    Attributes:
        name: the device's.
        state: see :class:`Doing`.
        why: the reason, or how far it is; never empty.
    """

    name: str
    state: str
    why: str


@dataclass(frozen=True)
class Background:
    """What a run knows beside its round.

    Attributes:
        runtimes: that its bundle has graphs for.
        names: the devices that ever took part in it, or could have.
        silenced: devices that take no part because of the coordinator's settings, and why.
        conduct: how those did that failed.
        busy: who still works on what is not wanted.
        signs: last signs of life of the members.
        arriving: of the uploads on their way, how many chunks are here, and of how many.
        unmet: why devices that are here do not meet the run's conditions.
    """

    runtimes: frozenset[str] = frozenset()
    names: Collection[str] = ()
    silenced: Mapping[str, str] = field(default_factory=dict)
    conduct: Mapping[str, Conduct] = field(default_factory=dict)
    busy: Busy = field(default_factory=Busy)
    signs: Mapping[str, Sign] = field(default_factory=dict)
    arriving: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    unmet: Mapping[str, str] = field(default_factory=dict)


def roster(fleet: Fleet, r: Round | None, known: Background, at: float) -> tuple[DeviceStatus, ...]:
    """Every device that is here, has a seat, or belongs to the run; in the order of their names.

    Args:
        fleet: who is here.
        r: the open round, if there is one.
        known: what else there is to know.
        at: now, in seconds of the coordinator's clock.
    """
    out = barred(known.conduct, r.number) if r is not None else {}
    seats = r.seats if r is not None and r.phase is not Phase.SELECTING else {}
    return tuple(
        _seated(name, seats[name], fleet, known, at)
        if name in seats
        else DeviceStatus(name, *_unseated(name, fleet, r, known, out, at))
        for name in sorted({*fleet.devices, *known.names, *seats})
    )


def _seated(name: str, seat: Seat, fleet: Fleet, known: Background, at: float) -> DeviceStatus:
    match seat.state:
        case State.WAITING:
            return DeviceStatus(name, Doing.WAITING, "it gets the task once others have shown that the bundle works")
        case State.WORKING:
            return DeviceStatus(name, *_working(name, seat, fleet, known, at))
        case State.REPORTED:
            return DeviceStatus(name, Doing.REPORTED, "its report is here")
        case State.LOST | State.FAILED | State.RELEASED:
            return DeviceStatus(name, Doing(seat.state.value), seat.why)
        case _:
            assert_never(seat.state)


def _working(name: str, seat: Seat, fleet: Fleet, known: Background, at: float) -> tuple[Doing, str]:
    sign, device = known.signs.get(name), fleet.devices.get(name)
    heard = f"last sign of life {at - sign.at:.0f} s ago" if sign is not None else "no sign of life yet"
    if seat.nudged:
        heard += ", asked again"
    if device is not None and not device.present:
        heard += f", it left {at - device.left:.0f} s ago"
    if name in known.arriving:
        here, chunks = known.arriving[name]
        return Doing.UPLOADING, f"{here} of {chunks} chunks are here, {heard}"
    if sign is not None and sign.paused:
        return Doing.PAUSED, f"{sign.paused}; {seat.steps} steps done, {heard}"
    of = f" of the task of round {seat.task[0]}" if seat.task is not None else ""
    return Doing.WORKING, f"{seat.steps} steps done{of}, {heard}"


def _unseated(
    name: str, fleet: Fleet, r: Round | None, known: Background, out: Mapping[str, str], at: float
) -> tuple[Doing, str]:
    device = fleet.devices.get(name)
    if device is None:
        return Doing.ABSENT, "not heard of since the coordinator started"
    if not device.present:
        return Doing.ABSENT, f"it left {at - device.left:.0f} s ago"
    if r is None:
        return Doing.PRESENT, "no run goes on"
    if why := _unfit(name, device, known):
        return Doing.UNFIT, why
    if name in known.busy:
        work = known.busy.works[name]
        return Doing.BUSY, f"it still ends its step of round {work.round}, which is not wanted: {work.why}"
    if name in known.unmet:
        return Doing.UNMET, known.unmet[name]
    if name in out:
        return Doing.QUARANTINED, out[name]
    return Doing.PRESENT, "it can be chosen" if r.phase is Phase.SELECTING else "it was not chosen for this round"


def _unfit(name: str, device: Known, known: Background) -> str:
    hello = device.hello
    if why := known.silenced.get(name):
        return why
    if hello.examples == 0:
        return "it has no examples"
    if known.runtimes.isdisjoint(hello.runtimes):
        has, wants = " and ".join(hello.runtimes) or "nothing", " or ".join(sorted(known.runtimes))
        return f"it runs {has}, and the bundle is for {wants}"
    return ""
