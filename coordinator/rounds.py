"""One round, as a pure machine: ``advance(round, event) -> (round, effects)``.

No clock, no socket, no randomness and no tensors: events carry the time, effects say what the service is to do (both
are in :mod:`coordinator.events`).  The service journals every event before it acts on the effects, so replaying the
journal gives the same state.

Theory of operation::

    SELECTING --enough devices--> REPORTING --goal reported, all answered, or deadline--> REDUCING --stored--> COMMITTED
        |                             |                                                      |
        |                             +-- too few, or the update failed ---------------------+---> ABANDONED
        |                             +-- too many cannot run the bundle ------------------------> HALTED
        +-----------------------------+-- a person ends the run -----------------------------+---> STOPPED

* **Selecting**: ready when ``goal * over`` devices are here, or when at least ``minimum`` have been here for ``gather``
  seconds.  The service then chooses the cohort (:mod:`coordinator.cohort`) and says so with Chosen.  Barred devices
  (:mod:`coordinator.quarantine`) count only where the minimum cannot be reached without them, after ``gather``.
* **Canaries**: where Chosen names some, only they get the task until one has shown that it works
  (:mod:`coordinator.rollout`).
* **Reporting**: every member has a *seat* with a lease.  Progress and Hello renew it.  A lease that runs out is
  answered once by sending the task again; the second time the seat is given up.  A report that comes after that still
  counts while the round is open: a slow device only looks dead.
* A report counts once, and so does a failure: what a member says after either changes nothing.
* **The end of reporting**: ``goal`` members reported, nobody works any more, or the deadline passed.  With ``minimum``
  reports the round goes on to REDUCING with exactly these, else it is abandoned.  Whoever still works is released: that
  is no failure.  Members whose seats were given up count as absent until they say Hello, so that the next round does
  not wait for them.
* **Reducing**: nothing but Stored, StoreFailed and Stopped matters any more.
* ABANDONED, HALTED and STOPPED change nothing: the next attempt starts from the same checkpoint.
* While the coordinator is cut off no time passes (the service does not say Ticked), and Reconnected renews every lease.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias, assert_never

from coordinator import buffered, rollout
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
    Halt,
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
    Widen,
)
from coordinator.reasons import reporting, waiting
from coordinator.seats import OPEN, Phase, Policy, Round, Seat, State, selected

__all__ = ["OPEN", "Phase", "Policy", "Round", "Seat", "State", "advance", "selected", "waiting"]

Step: TypeAlias = tuple[Round, tuple[Effect, ...]]


def advance(r: Round, event: Event) -> Step:
    """The next state and what to do about it.  Never raises on a late or repeated event."""
    if r.policy.buffer and (step := buffered.advance(r, event)) is not None:
        return step
    match event:
        case Present(device, at):
            return _present(r, device, at)
        case Absent(device, at):
            return _select(replace(r, present=r.present - {device}), at) if r.phase is Phase.SELECTING else (r, ())
        case Chosen(devices, at, joined, canaries):
            return _chosen(r, devices, at, joined, canaries)
        case Progressed(device, at, steps):
            return _widen(_renew(r, device, at, steps), at)
        case Reported(device, at):
            return _reported(r, device, at)
        case Failed(device, why, at, code):
            return _failed(r, device, Seat(State.FAILED, at, why=why, code=code), at)
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


def _present(r: Round, device: str, at: float) -> Step:
    match r.phase:
        case Phase.SELECTING:
            return _select(replace(r, present=r.present | {device}), at)
        case Phase.REPORTING if _is_open(r, device):
            # It may have restarted and lost the task; a device that has it answers with Progress.
            return _renew(r, device, at), (Resend(device),)
        case _:
            return r, ()


def _select(r: Round, at: float) -> Step:
    able = r.able
    if len(able) < r.policy.minimum:
        return replace(r, enough=None), ()
    enough = at if r.enough is None else r.enough
    state = replace(r, enough=enough)
    full = len(able) >= r.policy.selected and able.isdisjoint(r.barred)
    if full or at - enough >= r.policy.gather:
        return state, (Choose(tuple(sorted(able)), min(len(able), r.policy.selected)),)
    return state, ()


def _chosen(r: Round, devices: tuple[str, ...], at: float, joined: tuple[str, ...], canaries: tuple[str, ...]) -> Step:
    if r.phase is not Phase.SELECTING:
        return r, ()
    seats = rollout.seat(devices, canaries, at + r.policy.lease)
    state = replace(r, phase=Phase.REPORTING, since=at, seats=seats, joined=joined)
    return state, (Announce(state.devices(State.WORKING)),)


def _is_open(r: Round, device: str) -> bool:
    return device in r.seats and r.seats[device].state in OPEN


def _renew(r: Round, device: str, at: float, steps: int = 0) -> Round:
    if r.phase is not Phase.REPORTING or not _is_open(r, device):
        return r
    return r.seated(device, Seat(State.WORKING, at + r.policy.lease, steps=max(steps, r.seats[device].steps)))


def _widen(r: Round, at: float) -> Step:
    """Let the members that wait have the task, if it is their turn."""
    devices = rollout.next_group(r, at)
    return (rollout.widen(r, devices, at), (Widen(devices),)) if devices else (r, ())


def _reported(r: Round, device: str, at: float) -> Step:
    if r.phase is not Phase.REPORTING or not _is_open(r, device):
        return r, ()
    state, effects = _maybe_end(r.seated(device, Seat(State.REPORTED, at, steps=r.seats[device].steps)), at)
    return state, (Fold(device), *effects)


def _failed(r: Round, device: str, seat: Seat, at: float) -> Step:
    if r.phase is not Phase.REPORTING or not _is_open(r, device):
        return r, ()
    state = r.seated(device, replace(seat, steps=r.seats[device].steps))
    if why := rollout.verdict(state):
        return replace(state, phase=Phase.HALTED, since=at, why=why), (Halt(why),)
    return _maybe_end(state, at)


def _ticked(r: Round, at: float) -> Step:
    if r.phase is Phase.SELECTING:
        return _select(r, at)
    if r.phase is not Phase.REPORTING:
        return r, ()
    state, nudged, _ = r.lapsed(at)
    after, effects = _maybe_end(state, at)
    return after, (*map(Resend, nudged), *effects) if after.phase is Phase.REPORTING else effects


def _maybe_end(r: Round, at: float) -> Step:
    """End the reporting if it has its reports, if nobody works any more, or if its deadline passed."""
    reported = r.devices(State.REPORTED)
    full = len(reported) >= r.policy.goal
    late = at - r.since >= r.policy.deadline and bool(r.devices(State.WORKING, State.WAITING))
    if not full and not late:
        state, effects = _widen(r, at)
        if state.devices(State.WORKING):
            return state, effects
    lost = r.devices(State.LOST)
    suspect = (Suspect(lost),) if lost else ()
    if len(reported) < r.policy.minimum:
        when = f" at the deadline of {r.policy.deadline:g} s" if late else ""
        why = f"{len(reported)} reports{when}, at least {r.policy.minimum} needed ({reporting(r)})"
        state, effects = _abandon(r, why, at)
        return state, (*suspect, *effects)
    why = f"the round has its {r.policy.goal} reports" if full else "the round ended at its deadline"
    state, release = _release(r, why)
    return replace(state, phase=Phase.REDUCING, since=at), (*suspect, *release, Reduce(reported))


def _release(r: Round, why: str) -> Step:
    """Whoever has not answered yet need not any more."""
    working = r.devices(State.WORKING)
    seats = {
        device: replace(seat, state=State.RELEASED, why=why) if seat.state in {State.WORKING, State.WAITING} else seat
        for device, seat in r.seats.items()
    }
    return replace(r, seats=seats), (Release(working, why),) if working else ()


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
    match r.phase:
        case Phase.SELECTING:
            return replace(r, present=frozenset(), enough=None)
        case Phase.REPORTING:
            return replace(r.renewed(at), since=at)
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
    state, release = _release(r, "the round was abandoned") if r.phase is Phase.REPORTING else (r, ())
    return replace(state, phase=Phase.ABANDONED, since=at, why=why), (*release, Abandon(why))
