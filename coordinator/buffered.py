"""A round of buffered-asynchronous training (FedBuff): an update is made whenever enough reports are in.

Nguyen et al. 2022, "Federated learning with buffered asynchronous aggregation", algorithm 1, as transitions of the
round machine (:mod:`coordinator.rounds`).  Round ``n`` makes the server's state ``n`` from ``n - 1``.

Theory of operation:

* **Seats.**  ``goal`` devices are at work at any time.  A seat that gets free, because its device reported, failed or
  was lost, goes to an idle device at once, which starts from the state that there is.  A device has at most one seat,
  so it gets its next task only when the fate of its last report is known: the rounds of its tasks always increase.
* **The base** of a seat is the round in which its task was handed out (:meth:`~coordinator.seats.Round.task_of`).  A
  report with base ``b`` in the update of round ``n`` has staleness ``n - b``.
* **Selecting** lasts only while nobody is at work and nobody is here.
* **Reporting** ends with ``buffer`` reports.  It also ends at its deadline, and when for ``gather`` seconds nobody has
  been at work and nobody idle been here; below ``minimum`` that abandons the attempt and drops its reports.
* **Reducing**: whoever is at work goes on; leases are renewed, and do not run out.
* **The next round** (:func:`successor`) takes over whoever is at work, unless their reports would come more than
  ``max_staleness`` updates late.  Lost seats are not taken over: what their devices report later is refused.  So the
  states that must be kept for devices to fetch are at most ``goal`` and one.

All functions here are pure; which reports are in the buffer follows from the journal's events alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

from coordinator import rollout
from coordinator.events import (
    Abandon,
    Absent,
    Announce,
    Choose,
    Chosen,
    Effect,
    Event,
    Failed,
    Halt,
    Present,
    Progressed,
    Reconnected,
    Reduce,
    Reported,
    Resend,
    Resumed,
    Suspect,
    Ticked,
)
from coordinator.reasons import buffering
from coordinator.seats import GOING_ON, Phase, Round, Seat, State
from edgepfl.wire import Cancel, Commit

Step: TypeAlias = tuple[Round, tuple[Effect, ...]]

_FILLING = frozenset({Phase.SELECTING, Phase.REPORTING})


def advance(r: Round, event: Event) -> Step | None:
    """The next state of a buffered round and what to do about it; None for events that any round takes alike."""
    match event:
        case Present(device, at):
            return _present(r, device, at)
        case Absent(device, at):
            return _onward(replace(r, present=r.present - {device}), at) if r.phase in _FILLING else (r, ())
        case Chosen(devices, at, joined):
            return _chosen(r, devices, at, joined)
        case Progressed(device, at, steps):
            return _renewed(r, device, at, steps), ()
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
        case _:
            return None


def staleness_of(r: Round, device: str) -> int:
    """How many updates late the report of a member comes, if it is in this round's."""
    task = r.task_of(device)
    return 0 if task is None else r.number - task[0]


def scales(r: Round, weigh: Callable[[int], float]) -> dict[str, float]:
    """What the report of each member in the buffer is multiplied by, for its staleness."""
    return {device: weigh(staleness_of(r, device)) for device in r.devices(State.REPORTED)}


def successor(r: Round, following: Round, download: str) -> Round:
    """The next round or attempt, with the seats that go on in it.

    Args:
        r: the round that is over, or abandoned.
        following: the next one, empty; if its policy has no buffer, nobody goes on.
        download: digest of what it hands out.
    """
    if not following.policy.buffer:
        return following
    limit = following.number - following.policy.max_staleness
    seats: dict[str, Seat] = {}
    for device in r.devices(State.WORKING):
        task = r.task_of(device)
        if task is not None and task[0] >= limit:
            seats[device] = replace(r.seats[device], task=task)
    known: Mapping[int, str] = {**r.bases, following.number: download}
    used = {following.number, *(seat.task[0] for seat in seats.values() if seat.task is not None)}
    bases = {number: known[number] for number in sorted(used)}
    return replace(following, seats=seats, bases=bases, present=following.present - seats.keys())


def left(r: Round, following: Round) -> dict[str, Seat]:
    """The members that do not go on in the next round, as they left this one."""
    return {device: seat for device, seat in sorted(r.seats.items()) if device not in following.seats}


def fates(run: str, r: Round, following: Round) -> tuple[tuple[str, Commit | Cancel], ...]:
    """What to tell each member that does not go on: whether its report counts, or that it need not go on.

    Args:
        run: its id.
        r: the round that is over.
        following: the next one.
    """
    return tuple((device, _fate(run, r, device, seat)) for device, seat in left(r, following).items())


def _fate(run: str, r: Round, device: str, seat: Seat) -> Commit | Cancel:
    round_, attempt = seat.task or (r.number, r.attempt)
    if seat.state is State.WORKING:
        return Cancel(run, round_, attempt, f"round {r.number} is over, and it is too late")
    return Commit(run, round_, (device,) if seat.state is State.REPORTED else ())


def _present(r: Round, device: str, at: float) -> Step:
    if r.phase not in GOING_ON:
        return r, ()
    if device not in r.seats:
        return _onward(replace(r, present=r.present | {device}), at) if r.phase in _FILLING else (r, ())
    after = _renewed(r, device, at)
    # It may have restarted and lost the task; a device that has it answers with Progress.
    return after, (Resend(device),) if after.seats[device].state is State.WORKING else ()


def _renewed(r: Round, device: str, at: float, steps: int = 0) -> Round:
    """A sign of life.  A lost seat is taken again if there is a free place; its report counts in any case."""
    if not r.awaits(device):
        return r
    seat = r.seats[device]
    if seat.state is State.LOST and _free(r) == 0:
        return r
    until = at + r.policy.lease
    back = replace(seat, state=State.WORKING, until=until, nudged=False, why="", steps=max(steps, seat.steps))
    return r.seated(device, back)


def _chosen(r: Round, devices: tuple[str, ...], at: float, joined: tuple[str, ...]) -> Step:
    new = sorted(set(devices) - r.seats.keys())[: _free(r)] if r.phase in _FILLING else []
    if not new:
        return r, ()
    lease = Seat(State.WORKING, at + r.policy.lease)
    after = replace(
        r,
        phase=Phase.REPORTING,
        since=at if r.phase is Phase.SELECTING else r.since,
        seats={**r.seats, **dict.fromkeys(new, lease)},
        present=r.present - set(new),
        joined=(*r.joined, *(device for device in joined if device not in r.joined)),
        enough=None,
    )
    return after, (Announce(tuple(new)),)


def _reported(r: Round, device: str, at: float) -> Step:
    if r.phase is not Phase.REPORTING or not r.awaits(device):
        return r, ()
    done = replace(r.seats[device], state=State.REPORTED, until=at, nudged=False, why="")
    return _onward(r.seated(device, done), at)


def _failed(r: Round, device: str, failed: Seat, at: float) -> Step:
    if not r.awaits(device):
        return r, ()
    after = r.seated(device, replace(failed, task=r.seats[device].task))
    if why := rollout.verdict(after):
        return replace(after, phase=Phase.HALTED, since=at, why=why), (Halt(why),)
    return _onward(after, at)


def _ticked(r: Round, at: float) -> Step:
    if r.phase not in _FILLING:
        return r, ()
    state, nudged, lost = r.lapsed(at)
    after, effects = _onward(state, at)
    return after, (*map(Resend, nudged), *((Suspect(lost),) if lost else ()), *effects)


def _onward(r: Round, at: float) -> Step:
    """End the reporting if it is time to, else give the free seats to whoever is idle."""
    if r.phase not in _FILLING:
        return r, ()
    reported = r.devices(State.REPORTED)
    quiet = r.phase is Phase.REPORTING and not r.present and not r.devices(State.WORKING)
    r = replace(r, enough=(at if r.enough is None else r.enough) if quiet else None)
    why = _over(r, at)
    if len(reported) >= r.policy.buffer or (why and len(reported) >= r.policy.minimum):
        return replace(r, phase=Phase.REDUCING, since=at, enough=None), (Reduce(reported),)
    if why:
        why = f"{len(reported)} reports {why}, at least {r.policy.minimum} needed ({buffering(r)})"
        return replace(r, phase=Phase.ABANDONED, since=at, why=why, enough=None), (Abandon(why),)
    return _filled(r, at)


def _over(r: Round, at: float) -> str:
    """Why no further reports are waited for; empty if they are."""
    if r.phase is Phase.REPORTING and at - r.since >= r.policy.deadline:
        return f"at the deadline of {r.policy.deadline:g} s"
    return "and nobody is left" if r.enough is not None and at - r.enough >= r.policy.gather else ""


def _filled(r: Round, at: float) -> Step:
    """Choose idle devices for the free seats; barred ones only where otherwise nobody would be at work."""
    working = r.devices(State.WORKING)
    idle = r.present - r.barred.keys()
    idle = idle if idle or working else r.present
    count = min(_free(r), len(idle))
    if count:
        return r, (Choose(tuple(sorted(idle)), count),)
    if r.phase is Phase.SELECTING and working:
        return replace(r, phase=Phase.REPORTING, since=at), ()
    return r, ()


def _resumed(r: Round, at: float) -> Step:
    """Start every wait anew; the buffer is folded when it is full."""
    state = replace(_reconnected(r, at), since=at)
    return state, (Reduce(r.devices(State.REPORTED)),) if r.phase is Phase.REDUCING else ()


def _reconnected(r: Round, at: float) -> Round:
    """Nobody is idle until a Hello says so; whoever works gets a new lease, and the round a new deadline."""
    if r.phase not in GOING_ON:
        return r
    since = at if r.phase is Phase.REPORTING else r.since
    return replace(r.renewed(at), present=frozenset(), enough=None, since=since)


def _free(r: Round) -> int:
    """How many more devices are to be at work."""
    return max(r.policy.goal - len(r.devices(State.WORKING)), 0)
