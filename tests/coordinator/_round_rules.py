"""What must hold for every transition of the round machine, whatever happened before."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from coordinator import events, rollout, rounds
from coordinator.events import Effect, Event
from coordinator.rounds import Phase, Round, State

NEXT = {
    Phase.SELECTING: {Phase.REPORTING, Phase.STOPPED},
    Phase.REPORTING: {Phase.REDUCING, Phase.ABANDONED, Phase.HALTED, Phase.STOPPED},
    Phase.REDUCING: {Phase.COMMITTED, Phase.ABANDONED, Phase.STOPPED},
    Phase.COMMITTED: set(),
    Phase.ABANDONED: set(),
    Phase.HALTED: set(),
    Phase.STOPPED: set(),
}
NEXT_STATE = {
    State.WAITING: {State.WORKING, State.RELEASED},
    State.WORKING: {State.REPORTED, State.LOST, State.FAILED, State.RELEASED},
    State.LOST: {State.WORKING, State.REPORTED, State.FAILED},
    State.REPORTED: set(),
    State.FAILED: set(),
    State.RELEASED: set(),
}
OVER = {Phase.COMMITTED, Phase.ABANDONED, Phase.HALTED, Phase.STOPPED}
UNANSWERED = {State.WAITING, State.WORKING}


def check(before: Round, event: Event, after: Round, effects: tuple[Effect, ...]) -> None:
    """Every rule about one transition."""
    _check_phase(before, event, after)
    _check_seats(before, event, after)
    for effect in effects:
        _check_effect(before, event, after, effect)
    _check_complete(before, event, after, effects)
    assert rounds.waiting(after)


def _check_phase(before: Round, event: Event, after: Round) -> None:
    assert (before.number, before.attempt, before.policy) == (after.number, after.attempt, after.policy)
    if before.joined != after.joined:
        assert isinstance(event, events.Chosen)
        assert (before.phase, before.joined, after.joined) == (Phase.SELECTING, (), event.joined)
    if before.phase is not after.phase:
        assert after.phase in NEXT[before.phase]
        assert after.since == event.at
    if before.phase in OVER and not isinstance(event, events.Resumed):
        assert after == before
    if after.phase is Phase.SELECTING:
        assert not after.seats
        assert after.enough is None or len(after.able) >= after.policy.minimum
        assert after.able <= after.present
        assert after.able.isdisjoint(after.barred) or len(after.present - after.barred.keys()) < after.policy.minimum
    if after.phase in {Phase.REDUCING, Phase.COMMITTED}:
        assert len(after.devices(State.REPORTED)) >= after.policy.minimum
        assert not after.devices(*UNANSWERED)
    assert bool(after.why) == (after.phase in {Phase.ABANDONED, Phase.HALTED})
    assert before.barred == after.barred


def _check_seats(before: Round, event: Event, after: Round) -> None:
    if before.phase is Phase.SELECTING:
        return
    assert before.seats.keys() == after.seats.keys()  # nobody joins or leaves a cohort
    for device, seat in after.seats.items():
        was = before.seats[device]
        assert was.state is seat.state or seat.state in NEXT_STATE[was.state]
        assert bool(seat.why) == (seat.state in {State.LOST, State.FAILED, State.RELEASED})
        assert seat.steps >= was.steps
        if was.state is not seat.state:
            assert before.phase is Phase.REPORTING
        if seat.state is State.RELEASED and was.state is not State.RELEASED:
            assert after.phase in {Phase.REDUCING, Phase.ABANDONED}
        if seat.state is State.LOST and was.state is State.WORKING:
            assert isinstance(event, events.Ticked)
            assert was.nudged
            assert was.until <= event.at


def _check_effect(before: Round, event: Event, after: Round, effect: Effect) -> None:
    match effect:
        case events.Choose(devices, count):
            assert before.phase is after.phase is Phase.SELECTING
            assert devices == tuple(sorted(after.able))
            assert after.policy.minimum <= count == min(len(devices), after.policy.selected)
        case events.Announce(devices):
            assert (before.phase, after.phase) == (Phase.SELECTING, Phase.REPORTING)
            assert devices == after.devices(State.WORKING)
            assert {*devices, *after.devices(State.WAITING)} == after.seats.keys()
        case events.Widen(devices):
            _check_widened(before, event, after, devices)
        case events.Resend(device):
            assert after.phase is Phase.REPORTING
            assert after.seats[device].state is State.WORKING
        case events.Fold(device):
            assert after.seats[device].state is State.REPORTED
        case events.Reduce(devices):
            assert after.phase is Phase.REDUCING
            assert devices == after.devices(State.REPORTED)
        case events.Commit(devices):
            assert isinstance(event, events.Stored)
            assert (before.phase, after.phase) == (Phase.REDUCING, Phase.COMMITTED)
            assert devices == before.devices(State.REPORTED)
        case events.Release(devices, _):
            assert before.phase is Phase.REPORTING
            assert set(devices) <= set(before.devices(State.WORKING))  # one may be lost at the deadline itself
            assert set(after.devices(State.RELEASED)) == {*devices, *before.devices(State.WAITING)}
            assert after.phase in {Phase.REDUCING, Phase.ABANDONED}
        case events.Suspect(devices):
            assert (before.phase, devices) == (Phase.REPORTING, after.devices(State.LOST))
            assert after.phase in {Phase.REDUCING, Phase.ABANDONED}
        case events.Abandon(why):
            assert (after.phase, after.why) == (Phase.ABANDONED, why)
            assert before.phase is not Phase.ABANDONED
        case events.Halt(why):
            assert isinstance(event, events.Failed)
            assert (after.phase, after.why) == (Phase.HALTED, why)
            given = [seat for seat in after.seats.values() if seat.state is not State.WAITING]
            faulty = [seat for seat in given if seat.code in {"BundleError", "PlanError", "GraphFailed"}]
            assert len(faulty) >= 2
            assert len(faulty) / len(given) > after.policy.halt
        case events.End():
            assert isinstance(event, events.Stopped)
            assert after.phase is Phase.STOPPED


def _check_complete(before: Round, event: Event, after: Round, effects: tuple[Effect, ...]) -> None:
    """Every change that the service must act on came with its effect, once."""
    kinds = Counter(type(effect) for effect in effects)
    assert kinds[events.Announce] == ((before.phase, after.phase) == (Phase.SELECTING, Phase.REPORTING))
    assert kinds[events.Commit] == (before.phase is not after.phase is Phase.COMMITTED)
    assert kinds[events.Abandon] == (before.phase is not after.phase is Phase.ABANDONED)
    assert kinds[events.Halt] == (before.phase is not after.phase is Phase.HALTED)
    widened = before.phase is Phase.REPORTING and after.phase is Phase.REPORTING
    assert kinds[events.Widen] == (widened and before.devices(State.WAITING) != after.devices(State.WAITING))
    assert kinds[events.End] == (before.phase is not after.phase is Phase.STOPPED)
    began = before.phase is not Phase.REDUCING or isinstance(event, events.Resumed)
    assert kinds[events.Reduce] == (began and after.phase is Phase.REDUCING)
    folded = [effect.device for effect in effects if isinstance(effect, events.Fold)]
    known = () if isinstance(event, events.Resumed) else before.devices(State.REPORTED)
    live = after.phase not in OVER or not isinstance(event, events.Resumed)
    assert sorted(folded) == (sorted(set(after.devices(State.REPORTED)) - set(known)) if live else [])
    if isinstance(event, events.Ticked) and after.phase is Phase.REPORTING:
        assert all(seat.until > event.at for seat in after.seats.values() if seat.state is State.WORKING)
        assert event.at - after.since < after.policy.deadline
        assert after.devices(State.WORKING)
        assert len(after.devices(State.REPORTED)) < after.policy.goal


@dataclass
class Ledger:
    """What one process of the coordinator was told to do."""

    folded: Counter[str] = field(default_factory=Counter)
    announced: int = 0
    reduced: list[tuple[str, ...]] = field(default_factory=list)
    committed: list[tuple[str, ...]] = field(default_factory=list)

    def note(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            match effect:
                case events.Fold(device):
                    assert not self.reduced  # never into a reduction that was closed
                    self.folded[device] += 1
                case events.Announce():
                    self.announced += 1
                case events.Reduce(devices):
                    self.reduced.append(devices)
                case events.Commit(devices):
                    self.committed.append(devices)
                case _:
                    pass
        assert set(self.folded.values()) <= {1}
        assert self.announced <= 1
        assert len(self.reduced) <= 1
        assert self.committed in ([], self.reduced)
        assert all(self.folded.keys() == set(devices) for devices in self.reduced)


def _check_widened(before: Round, event: Event, after: Round, devices: tuple[str, ...]) -> None:
    """The task goes to further members only where the canaries' word is in, or was waited for long enough."""
    assert before.phase is after.phase is Phase.REPORTING
    assert devices
    assert set(devices) == {d for d in before.devices(State.WAITING) if after.seats[d].state is State.WORKING}
    tried = [seat for device, seat in after.seats.items() if device not in devices and seat.state is not State.WAITING]
    if event.at - before.since < rollout.PATIENCE * before.policy.lease:
        assert all(seat.steps for seat in tried if seat.state is State.WORKING)  # nobody's word is out
    shown = any(seat.steps or seat.state is State.REPORTED for seat in tried)
    assert len(devices) == len(before.devices(State.WAITING)) if shown else len(devices) <= len(tried)
