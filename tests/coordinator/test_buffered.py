"""A buffered round's rules, one example each."""

from __future__ import annotations

from dataclasses import replace

import pytest
from _buffered_rules import check

from coordinator import buffered, rounds
from coordinator.events import (
    Abandon,
    Absent,
    Announce,
    Choose,
    Chosen,
    Commit,
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
    Stopped,
    Stored,
    StoreFailed,
    Suspect,
    Ticked,
)
from coordinator.seats import Phase, Policy, Round, Seat, State
from coordinator.staleness import weighting_of

POLICY = Policy(goal=3, minimum=1, gather=5.0, deadline=100.0, lease=10.0, buffer=2, max_staleness=4)
FRESH = Round(7, 0, POLICY, bases={7: "seven"})
NAMES = ("ant", "bee", "cat")


def played(state: Round, *happened: Event) -> tuple[Round, list[Effect]]:
    """The state after these events, and every effect on the way."""
    effects: list[Effect] = []
    for event in happened:
        after, more = rounds.advance(state, event)
        check(state, event, after, more)
        state, effects = after, [*effects, *more]
    return state, effects


def at_work(*devices: str, at: float = 0.0) -> Round:
    state, _ = played(FRESH, *(Present(device, at) for device in devices), Chosen(devices, at))
    assert state.phase is Phase.REPORTING
    return state


def following(state: Round, *, number: int = 8, attempt: int = 0, policy: Policy = POLICY) -> Round:
    return buffered.successor(state, Round(number, attempt, policy), "eight")


def test_nobody_is_waited_for() -> None:
    _, effects = played(FRESH, Present("ant", 1))
    assert effects == [Choose(("ant",), 1)]
    state, effects = played(at_work("ant"), Present("bee", 9), Chosen(("bee",), 9, ("bee",)))
    assert effects == [Choose(("bee",), 1), Announce(("bee",))]
    assert (state.since, state.joined, state.devices(State.WORKING)) == (0, ("bee",), ("ant", "bee"))


def test_no_more_than_goal_are_at_work() -> None:
    state, effects = played(at_work(*NAMES), Present("dog", 1), Present("eel", 1))
    assert effects == []
    assert rounds.advance(state, Reported("ant", 2))[1] == (Choose(("dog", "eel"), 1),)


@pytest.mark.parametrize("free", [Reported("ant", 2), Failed("ant", "no data", 2)])
def test_a_seat_that_gets_free_goes_to_whoever_is_idle(free: Event) -> None:
    state, effects = played(at_work(*NAMES), Present("dog", 1), free, Chosen(("dog",), 2))
    assert effects[-1] == Announce(("dog",))
    assert state.devices(State.WORKING) == ("bee", "cat", "dog")
    assert rounds.advance(state, Present("ant", 3)) == (state, ())  # it waits for the fate of its report


def test_the_round_ends_with_a_full_buffer_and_whoever_is_at_work_goes_on() -> None:
    state, effects = played(at_work(*NAMES), Reported("cat", 1), Reported("ant", 2))
    assert (state.phase, effects) == (Phase.REDUCING, [Reduce(("ant", "cat"))])
    state, effects = played(state, Progressed("bee", 3, 5), Stored(4))
    assert effects == [Commit(("ant", "cat"))]
    after = following(state)
    assert after.seats == {"bee": Seat(State.WORKING, 13, steps=5, task=(7, 0))}
    assert after.bases == {7: "seven", 8: "eight"}
    assert {device: seat.state for device, seat in buffered.left(state, after).items()} == {
        "ant": State.REPORTED,
        "cat": State.REPORTED,
    }
    opened, effects = played(after, Ticked(5))
    assert (opened.phase, effects) == (Phase.REPORTING, [])
    done, _ = played(opened, Present("ant", 6), Chosen(("ant",), 6), Reported("bee", 7), Reported("ant", 8))
    assert buffered.scales(done, weighting_of("polynomial:1")) == {"ant": 1.0, "bee": 0.5}


def test_a_report_while_an_update_is_made_is_for_the_next_one() -> None:
    reducing, _ = played(at_work(*NAMES), Reported("cat", 1), Reported("ant", 2))
    assert reducing.awaits("bee")
    assert played(reducing, Reported("bee", 3)) == (reducing, [])
    assert not reducing.awaits("ant")


def test_a_failure_while_an_update_is_made_is_noted() -> None:
    reducing, _ = played(at_work(*NAMES), Reported("cat", 1), Reported("ant", 2))
    state, effects = played(reducing, Failed("bee", "no data", 3), Stored(4))
    assert effects == [Commit(("ant", "cat"))]
    after = following(state)
    assert after.seats == {}
    assert buffered.left(state, after) == state.seats


def test_work_that_would_come_too_late_is_not_waited_for() -> None:
    state = replace(at_work("ant", "bee"), number=11, bases={7: "seven", 8: "eight", 11: "eleven"})
    seats = {"ant": replace(state.seats["ant"], task=(7, 0)), "bee": replace(state.seats["bee"], task=(8, 1))}
    state = replace(state, seats=seats)
    after = following(state, number=12)
    assert after.seats.keys() == {"bee"}
    assert after.bases == {8: "eight", 12: "eight"}
    assert buffered.left(state, after) == {"ant": seats["ant"]}


def test_the_last_round_takes_nobody_over() -> None:
    state = at_work("ant", "bee")
    final = Round(8, 0, replace(POLICY, buffer=0))
    assert buffered.successor(state, final, "eight") == final
    assert buffered.left(state, final) == state.seats


def test_a_new_attempt_keeps_who_is_at_work_and_drops_the_buffer() -> None:
    reducing, _ = played(at_work(*NAMES), Reported("cat", 1), Reported("ant", 2))
    state, effects = played(reducing, StoreFailed("not finite", 3))
    assert effects == [Abandon("not finite")]
    after = following(state, number=7, attempt=1)
    assert after.seats == {"bee": Seat(State.WORKING, 10, task=(7, 0))}
    assert after.bases == {7: "eight"}


class TestLeases:
    def test_a_silent_device_is_asked_again_then_given_up_and_its_seat_is_free(self) -> None:
        state, effects = played(at_work(*NAMES), Present("dog", 5), Progressed("ant", 9), Progressed("bee", 9))
        assert effects == []
        state, effects = played(state, Ticked(10))
        assert effects == [Resend("cat")]
        state, effects = played(state, Progressed("ant", 19), Progressed("bee", 19), Ticked(20))
        assert effects == [Suspect(("cat",)), Choose(("dog",), 1)]
        assert state.seats["cat"] == Seat(State.LOST, 20, nudged=True, why="no sign of life")
        assert following(replace(state, phase=Phase.COMMITTED)).seats.keys() == {"ant", "bee"}

    def lost(self) -> Round:
        state, _ = played(at_work("ant", "bee"), Ticked(10), Progressed("ant", 11), Ticked(20))
        assert state.devices(State.LOST) == ("bee",)
        return state

    def test_a_lost_device_that_comes_back_takes_its_seat_again(self) -> None:
        state, effects = played(self.lost(), Present("bee", 21))
        assert effects == [Resend("bee")]
        assert state.seats["bee"] == Seat(State.WORKING, 31)

    def test_unless_others_have_it_and_then_its_report_still_counts(self) -> None:
        names = ("cat", "dog")
        full, _ = played(self.lost(), *(Present(device, 21) for device in names), Chosen(names, 21))
        assert played(full, Progressed("bee", 22), Present("bee", 22)) == (full, [])
        _, effects = played(full, Reported("bee", 23), Reported("ant", 24))
        assert effects[-1] == Reduce(("ant", "bee"))

    def test_while_cut_off_nobody_is_lost(self) -> None:
        state, _ = played(at_work(*NAMES), Present("dog", 1), Ticked(10), Reconnected(500), Ticked(505))
        assert set(state.seats.values()) == {Seat(State.WORKING, 510)}
        assert (state.present, state.since) == (frozenset(), 500)

    def test_a_restart_begins_every_wait_anew(self) -> None:
        state, effects = played(at_work(*NAMES), Reported("ant", 1), Resumed(9000))
        assert effects == []
        assert state.seats["ant"] == Seat(State.REPORTED, 1)
        assert state.seats["bee"] == Seat(State.WORKING, 9010)
        reducing, _ = played(state, Reported("bee", 9001))
        assert played(reducing, Resumed(5))[1] == [Reduce(("ant", "bee"))]


class TestTheEnd:
    def test_at_the_deadline_it_takes_what_there_is(self) -> None:
        state, effects = played(at_work(*NAMES), Reported("ant", 1), Progressed("bee", 99), Ticked(100))
        assert effects[-1] == Reduce(("ant",))
        assert following(state).seats.keys() == {"bee", "cat"}

    def test_below_minimum_the_deadline_abandons_it(self) -> None:
        state, effects = played(at_work("ant"), Progressed("ant", 99), Ticked(100))
        assert isinstance(effects[-1], Abandon)
        assert state.why.startswith("0 reports at the deadline of 100 s, at least 1 needed (0 of 2 reports are in")
        assert following(state, number=7, attempt=1).seats.keys() == {"ant"}

    def test_when_nobody_is_left_it_gathers_for_a_while(self) -> None:
        state, effects = played(at_work("ant"), Reported("ant", 1), Ticked(5.9))
        assert effects == []
        assert rounds.advance(state, Ticked(6))[1] == (Reduce(("ant",)),)
        state, effects = played(state, Present("bee", 5.95), Chosen(("bee",), 5.95), Ticked(7))
        assert state.phase is Phase.REPORTING

    def test_when_all_failed_it_is_abandoned(self) -> None:
        _, effects = played(at_work("ant"), Failed("ant", "no data", 1), Ticked(6))
        assert isinstance(effects[-1], Abandon)

    def test_faults_of_the_bundle_halt_the_run(self) -> None:
        state = replace(at_work(*NAMES), policy=replace(POLICY, halt=0.5))
        state, effects = played(state, Failed("ant", "no", 1, "GraphFailed"), Failed("bee", "no", 2, "GraphFailed"))
        assert state.phase is Phase.HALTED
        assert isinstance(effects[-1], Halt)

    def test_a_person_ends_it(self) -> None:
        assert played(at_work("ant"), Stopped(3))[0].phase is Phase.STOPPED


def test_barred_devices_sit_out_while_others_are_at_work() -> None:
    barred = replace(FRESH, barred={"ant": "it failed"})
    _, effects = played(barred, Present("ant", 0))
    assert effects == [Choose(("ant",), 1)]  # nobody else is here
    state, effects = played(barred, Present("bee", 0), Chosen(("bee",), 0), Present("ant", 1))
    assert effects == [Choose(("bee",), 1), Announce(("bee",))]
    state, effects = played(state, Reported("bee", 2))
    assert effects == [Choose(("ant",), 1)]


def test_what_it_waits_for() -> None:
    assert rounds.waiting(FRESH) == "nobody is at work, and no device is here"
    state, _ = played(at_work(*NAMES), Reported("ant", 1))
    seats = {**state.seats, "cat": replace(state.seats["cat"], task=(4, 0), nudged=True)}
    assert rounds.waiting(replace(state, seats=seats)) == (
        "1 of 2 reports are in the buffer, 2 of 3 at work (cat since round 4), no sign of life from cat"
    )
    gone, _ = played(state, Failed("bee", "no data", 2), Absent("dog", 3))
    assert rounds.waiting(gone).endswith("1 of 3 at work; without bee: no data")
