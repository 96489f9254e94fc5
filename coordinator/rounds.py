"""One round, as a pure machine: ``advance(round, event) -> (round, effects)``.

No clock, no socket, no randomness and no tensors: events carry the time, effects say what the service is to do (both
are in :mod:`coordinator.events`).  The service journals every event before it acts on the effects, so replaying the
journal gives the same state.

Theory of operation::

    SELECTING --enough devices--> REPORTING --all answered, or deadline--> REDUCING --stored--> COMMITTED
        |                             |                                        |
        |                             +------- too few, or the update failed --+---> ABANDONED
        +-----------------------------+------- a person ends the run ----------+---> STOPPED

* **Selecting**: ready when ``goal`` devices are here, or when at least ``minimum`` have been here for ``gather``
  seconds.  The service then chooses the cohort (:mod:`coordinator.cohort`) and says so with Chosen.
* **Reporting**: every member has a *seat* with a lease.  Progress and Hello renew it.  A lease that runs out is
  answered once by sending the task again; the second time the seat is given up.  A report that comes after that still
  counts while the round is open: a slow device only looks dead.
* A report counts once, and so does a failure: what a member says after either changes nothing.
* **The end of reporting**: nobody works any more, or the deadline passed.  With ``minimum`` reports the round goes on
  to REDUCING with exactly these, else it is abandoned.  Members whose seats were given up count as absent until they
  say Hello, so that the next round does not wait for them.
* **Reducing**: nothing but Stored, StoreFailed and Stopped matters any more.
* ABANDONED and STOPPED change nothing: the next attempt starts from the same checkpoint.
* While the coordinator is cut off no time passes (the service does not say Ticked), and Reconnected renews every lease.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeAlias, assert_never

from coordinator.events import (
    Abandon,
    Absent,
    Announce,
    Choose,
    Chosen,
    Commit,
    Effect,
    End,
    Event,
    Failed,
    Fold,
    Present,
    Progressed,
    Reconnected,
    Reduce,
    Release,
    Reported,
    Resend,
    Resumed,
    Stopped,
    Stored,
    StoreFailed,
    Suspect,
    Ticked,
)


class Phase(StrEnum):
    """Where a round stands."""

    SELECTING = "selecting"
    REPORTING = "reporting"
    REDUCING = "reducing"
    COMMITTED = "committed"
    ABANDONED = "abandoned"
    STOPPED = "stopped"


class State(StrEnum):
    """What a member of the cohort is doing."""

    WORKING = "working"
    REPORTED = "reported"
    LOST = "lost"  # its lease ran out twice
    FAILED = "failed"  # it said so, or its upload was refused


@dataclass(frozen=True)
class Policy:
    """What a round waits for.

    Attributes:
        goal: devices to select.
        minimum: reports below which the round is abandoned.
        gather: seconds to wait for ``goal`` devices once ``minimum`` are here.
        deadline: seconds from selection until the round ends with the reports it has.
        lease: seconds without a sign of life after which a member is sent the task again, then given up.
    """

    goal: int
    minimum: int
    gather: float = 10.0
    deadline: float = 3600.0
    lease: float = 60.0


@dataclass(frozen=True)
class Seat:
    """A member of the cohort.

    Attributes:
        state: what it is doing.
        until: of WORKING, when its lease ends, in seconds of the coordinator's clock.
        nudged: whether the task was sent again since its last sign of life.
        why: of LOST and FAILED, for people.
    """

    state: State
    until: float
    nudged: bool = False
    why: str = ""


@dataclass(frozen=True)
class Round:
    """One attempt at one round.

    Attributes:
        number: 1 for the first round.
        attempt: 0 for the first attempt.
        policy: what it waits for.
        phase: where it stands.
        since: when the phase began, in seconds of the coordinator's clock.
        present: the devices that could be selected, while SELECTING.
        enough: since when at least ``minimum`` devices are here, None for not now.
        seats: the cohort, by device.
        joined: the devices that the run did not know before this attempt, chosen or not.
        why: of ABANDONED, for people.
    """

    number: int
    attempt: int
    policy: Policy
    phase: Phase = Phase.SELECTING
    since: float = 0.0
    present: frozenset[str] = frozenset()
    enough: float | None = None
    seats: Mapping[str, Seat] = field(default_factory=dict)
    why: str = ""
    joined: tuple[str, ...] = ()

    def devices(self, state: State) -> tuple[str, ...]:
        """The members in this state, in the order of their names."""
        return tuple(sorted(device for device, seat in self.seats.items() if seat.state is state))


Step: TypeAlias = tuple[Round, tuple[Effect, ...]]


def advance(r: Round, event: Event) -> Step:
    """The next state and what to do about it.  Never raises on a late or repeated event."""
    match event:
        case Present(device, at):
            return _present(r, device, at)
        case Absent(device, at):
            return _select(replace(r, present=r.present - {device}), at) if r.phase is Phase.SELECTING else (r, ())
        case Chosen(devices, at, joined):
            return _chosen(r, devices, at, joined)
        case Progressed(device, at):
            return _renew(r, device, at), ()
        case Reported(device, at):
            return _reported(r, device, at)
        case Failed(device, why, at):
            return _failed(r, device, why, at)
        case Ticked(at):
            return _ticked(r, at)
        case Resumed(at):
            return _resumed(r, at)
        case Reconnected(at):
            return _reconnected(r, at), ()
        case Stored() | StoreFailed() | Stopped():
            return _over(r, event)
        case _:
            assert_never(event)


def waiting(r: Round) -> str:
    """What the round waits for, for people."""
    match r.phase:
        case Phase.SELECTING:
            here = len(r.present)
            missing = r.policy.minimum - here
            need = f"{missing} more needed" if missing > 0 else f"waiting up to {r.policy.gather:g} s for the rest"
            return f"{here} of {r.policy.goal} devices are here, {need}"
        case Phase.REPORTING:
            return _waiting_reports(r)
        case Phase.REDUCING:
            return f"folding {len(r.devices(State.REPORTED))} uploads"
        case Phase.COMMITTED:
            return f"committed with {len(r.devices(State.REPORTED))} reports"
        case Phase.ABANDONED:
            return f"abandoned: {r.why}"
        case Phase.STOPPED:
            return "stopped by a person"


def _waiting_reports(r: Round) -> str:
    reported, working = r.devices(State.REPORTED), r.devices(State.WORKING)
    text = f"{len(reported)} of {len(r.seats)} reported"
    if working:
        silent = [device for device in working if r.seats[device].nudged]
        text += f", waiting for {_names(working)}"
        text += f" (no sign of life from {_names(silent)})" if silent else ""
    gone = [f"{device}: {seat.why}" for device, seat in sorted(r.seats.items()) if seat.why]
    return text + (f"; without {_names(gone)}" if gone else "")


def _names(devices: tuple[str, ...] | list[str], most: int = 3) -> str:
    rest = len(devices) - most
    return ", ".join(devices[:most]) + (f" and {rest} more" if rest > 0 else "")


def _present(r: Round, device: str, at: float) -> Step:
    match r.phase:
        case Phase.SELECTING:
            return _select(replace(r, present=r.present | {device}), at)
        case Phase.REPORTING if r.seats.get(device, Seat(State.REPORTED, 0)).state in {State.WORKING, State.LOST}:
            # It may have restarted and lost the task; a device that has it answers with Progress.
            return _renew(r, device, at), (Resend(device),)
        case _:
            return r, ()


def _select(r: Round, at: float) -> Step:
    here = len(r.present)
    if here < r.policy.minimum:
        return replace(r, enough=None), ()
    enough = at if r.enough is None else r.enough
    state = replace(r, enough=enough)
    if here >= r.policy.goal or at - enough >= r.policy.gather:
        return state, (Choose(tuple(sorted(r.present)), min(here, r.policy.goal)),)
    return state, ()


def _chosen(r: Round, devices: tuple[str, ...], at: float, joined: tuple[str, ...]) -> Step:
    if r.phase is not Phase.SELECTING:
        return r, ()
    seats = {device: Seat(State.WORKING, at + r.policy.lease) for device in sorted(devices)}
    return replace(r, phase=Phase.REPORTING, since=at, seats=seats, joined=joined), (Announce(tuple(seats)),)


def _renew(r: Round, device: str, at: float) -> Round:
    seat = r.seats.get(device)
    if r.phase is not Phase.REPORTING or seat is None or seat.state not in {State.WORKING, State.LOST}:
        return r
    return _seat(r, device, Seat(State.WORKING, at + r.policy.lease))


def _reported(r: Round, device: str, at: float) -> Step:
    seat = r.seats.get(device)
    if r.phase is not Phase.REPORTING or seat is None or seat.state in {State.REPORTED, State.FAILED}:
        return r, ()
    state, effects = _maybe_end(_seat(r, device, Seat(State.REPORTED, at)), at)
    return state, (Fold(device), *effects)


def _failed(r: Round, device: str, why: str, at: float) -> Step:
    seat = r.seats.get(device)
    if r.phase is not Phase.REPORTING or seat is None or seat.state in {State.REPORTED, State.FAILED}:
        return r, ()
    return _maybe_end(_seat(r, device, Seat(State.FAILED, at, why=why)), at)


def _ticked(r: Round, at: float) -> Step:
    if r.phase is Phase.SELECTING:
        return _select(r, at)
    if r.phase is not Phase.REPORTING:
        return r, ()
    nudges: list[Effect] = []
    state = r
    for device in r.devices(State.WORKING):
        seat = r.seats[device]
        if seat.until > at:
            continue
        if seat.nudged:
            state = _seat(state, device, replace(seat, state=State.LOST, why="no sign of life"))
        else:
            state = _seat(state, device, replace(seat, until=at + r.policy.lease, nudged=True))
            nudges.append(Resend(device))
    after, effects = _maybe_end(state, at)
    return after, effects if after.phase is not Phase.REPORTING else tuple(nudges)


def _maybe_end(r: Round, at: float) -> Step:
    """End the reporting if nobody works any more or its deadline passed."""
    late = r.devices(State.WORKING)
    if late and at - r.since < r.policy.deadline:
        return r, ()
    lost = r.devices(State.LOST)
    suspect = (Suspect(lost),) if lost else ()
    reported = r.devices(State.REPORTED)
    if len(reported) < r.policy.minimum:
        when = f" at the deadline of {r.policy.deadline:g} s" if late else ""
        why = f"{len(reported)} reports{when}, at least {r.policy.minimum} needed ({_waiting_reports(r)})"
        state, effects = _abandon(r, why, at)
        return state, (*suspect, *effects)
    release = (Release(late, "the round ended at its deadline"),) if late else ()
    return replace(r, phase=Phase.REDUCING, since=at), (*suspect, *release, Reduce(reported))


def _resumed(r: Round, at: float) -> Step:
    """Start every wait anew, and do again what the effects before the crash may not have done."""
    state = replace(_reconnected(r, at), since=at)
    folds = tuple(Fold(device) for device in r.devices(State.REPORTED))
    match r.phase:
        case Phase.REPORTING:
            return state, folds
        case Phase.REDUCING:
            return state, (*folds, Reduce(r.devices(State.REPORTED)))
        case _:
            return state, ()


def _reconnected(r: Round, at: float) -> Round:
    """Nobody is here until a Hello says so; whoever works gets a new lease, and the round a new deadline."""
    lease = Seat(State.WORKING, at + r.policy.lease)
    seats = {device: lease if seat.state is State.WORKING else seat for device, seat in r.seats.items()}
    match r.phase:
        case Phase.SELECTING:
            return replace(r, present=frozenset(), enough=None)
        case Phase.REPORTING:
            return replace(r, since=at, seats=seats)
        case _:
            return r


def _over(r: Round, event: Stored | StoreFailed | Stopped) -> Step:
    match event:
        case Stored(at) if r.phase is Phase.REDUCING:
            return replace(r, phase=Phase.COMMITTED, since=at), (Commit(r.devices(State.REPORTED)),)
        case StoreFailed(why, at) if r.phase is Phase.REDUCING:
            return _abandon(r, why, at)
        case Stopped(at) if r.phase in {Phase.SELECTING, Phase.REPORTING, Phase.REDUCING}:
            return replace(r, phase=Phase.STOPPED, since=at), (End(),)
        case _:
            return r, ()


def _abandon(r: Round, why: str, at: float) -> Step:
    working = r.devices(State.WORKING) if r.phase is Phase.REPORTING else ()  # else they are released already
    release = (Release(working, "the round was abandoned"),) if working else ()
    return replace(r, phase=Phase.ABANDONED, since=at, why=why), (*release, Abandon(why))


def _seat(r: Round, device: str, seat: Seat) -> Round:
    return replace(r, seats={**r.seats, device: seat})
