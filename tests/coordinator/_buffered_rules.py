"""What must hold for every transition of a buffered round, whatever happened before."""

from __future__ import annotations

from coordinator import events, rounds
from coordinator.events import Effect, Event
from coordinator.seats import GOING_ON, Phase, Round, Seat, State

NEXT = {
    Phase.SELECTING: {Phase.REPORTING, Phase.STOPPED},
    Phase.REPORTING: {Phase.REDUCING, Phase.ABANDONED, Phase.HALTED, Phase.STOPPED},
    Phase.REDUCING: {Phase.COMMITTED, Phase.ABANDONED, Phase.HALTED, Phase.STOPPED},
}
NEXT_STATE = {
    State.WORKING: {State.REPORTED, State.LOST, State.FAILED},
    State.LOST: {State.WORKING, State.REPORTED, State.FAILED},
}


def check(before: Round, event: Event, after: Round, effects: tuple[Effect, ...]) -> None:
    """Every rule about one transition."""
    assert (before.number, before.attempt, before.policy) == (after.number, after.attempt, after.policy)
    assert before.bases == after.bases
    if before.phase is not after.phase:
        assert after.phase in NEXT.get(before.phase, set())
        assert after.since == event.at
    if before.phase not in GOING_ON:
        assert after == before
    check_seats(before, event, after)
    for effect in effects:
        _check_effect(before, event, after, effect)
    assert rounds.waiting(after)


def check_seats(before: Round, event: Event, after: Round) -> None:
    assert before.seats.keys() <= after.seats.keys()
    assert len(after.devices(State.WORKING)) <= after.policy.goal
    assert not after.seats.keys() & after.present
    assert {seat.state for seat in after.seats.values()} <= {*NEXT_STATE, State.REPORTED, State.FAILED}
    if len(after.seats) > len(before.seats):
        assert isinstance(event, events.Chosen)
    for device, seat in after.seats.items():
        if device in before.seats:
            _check_seat(before, event, before.seats[device], seat)
        else:
            assert (seat.state, seat.task) == (State.WORKING, None)
        task = after.task_of(device)
        assert task is not None
        assert after.number - after.policy.max_staleness <= task[0] <= after.number
        assert task[0] in after.bases


def _check_seat(before: Round, event: Event, was: Seat, seat: Seat) -> None:
    assert was.task == seat.task  # a device gets another task only after its seat is gone
    assert was.state is seat.state or seat.state in NEXT_STATE[was.state]
    assert bool(seat.why) == (seat.state in {State.LOST, State.FAILED})
    if seat.state is State.REPORTED and was.state is not State.REPORTED:
        assert isinstance(event, events.Reported)
        assert before.phase is Phase.REPORTING
    if seat.state is State.LOST and was.state is State.WORKING:
        assert isinstance(event, events.Ticked)
        assert was.nudged
        assert was.until <= event.at


def _check_effect(before: Round, event: Event, after: Round, effect: Effect) -> None:
    match effect:
        case events.Choose(devices, count):
            assert after.phase in {Phase.SELECTING, Phase.REPORTING}
            assert set(devices) <= after.present
            assert 0 < count <= min(len(devices), after.policy.goal - len(after.devices(State.WORKING)))
        case events.Announce(devices):
            assert set(devices) == after.seats.keys() - before.seats.keys()
        case events.Resend(device):
            assert after.seats[device].state is State.WORKING
        case events.Suspect(devices):
            assert all(after.seats[device].state is State.LOST for device in devices)
        case events.Reduce(devices):
            assert after.phase is Phase.REDUCING
            assert devices == after.devices(State.REPORTED)
            assert after.policy.minimum <= len(devices) <= after.policy.buffer
        case events.Commit(devices):
            assert isinstance(event, events.Stored)
            assert devices == before.devices(State.REPORTED)
        case events.Abandon() | events.Halt():
            assert after.phase in {Phase.ABANDONED, Phase.HALTED}
        case events.End():
            assert after.phase is Phase.STOPPED
        case _:
            raise AssertionError(f"a buffered round wants no {effect}")
