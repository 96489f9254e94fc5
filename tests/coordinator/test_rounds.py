"""The round machine's rules, one example each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from _round_rules import check

from coordinator import events, rounds
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
from coordinator.rounds import Phase, Policy, Round, Seat, State

POLICY = Policy(goal=3, minimum=2, gather=5.0, deadline=100.0, lease=10.0)
FRESH = Round(4, 1, POLICY, since=0.0)
NAMES = ("ant", "bee", "cat")


def played(state: Round, *happened: Event) -> tuple[Round, list[Effect]]:
    """The state after these events, and every effect on the way."""
    effects: list[Effect] = []
    for event in happened:
        after, more = rounds.advance(state, event)
        check(state, event, after, more)
        state, effects = after, [*effects, *more]
    return state, effects


def reporting(devices: Iterable[str] = NAMES) -> Round:
    """A round whose cohort was told at time 0."""
    state, _ = played(FRESH, *(Present(device, 0) for device in devices), Chosen(tuple(devices), 0))
    assert state.phase is Phase.REPORTING
    return state


def reducing() -> Round:
    state, _ = played(reporting(), *(Reported(device, 1) for device in NAMES))
    assert state.phase is Phase.REDUCING
    return state


class TestSelecting:
    def test_it_is_ready_with_goal_devices(self) -> None:
        state, effects = played(FRESH, Present("cat", 1), Present("ant", 1), Present("ant", 1))
        assert effects == []
        assert rounds.advance(state, Present("bee", 1))[1] == (Choose(NAMES, 3),)

    def test_more_than_goal_are_a_choice(self) -> None:
        state = replace(FRESH, present=frozenset({"dog", *NAMES}))
        assert rounds.advance(state, Ticked(0))[1] == (Choose((*NAMES, "dog"), 3),)

    def test_with_minimum_it_gathers(self) -> None:
        state, effects = played(FRESH, Present("ant", 50), Present("bee", 60), Ticked(64.9))
        assert effects == []
        assert state.enough == 60
        assert rounds.advance(state, Ticked(65))[1] == (Choose(("ant", "bee"), 2),)

    def test_gathering_begins_anew_when_somebody_leaves(self) -> None:
        state, effects = played(
            FRESH, Present("ant", 0), Present("bee", 0), Absent("bee", 4), Present("bee", 6), Ticked(9)
        )
        assert effects == []
        assert state.enough == 6
        assert rounds.advance(state, Ticked(11))[1] == (Choose(("ant", "bee"), 2),)

    def test_below_minimum_it_waits_for_ever(self) -> None:
        state, effects = played(FRESH, Present("ant", 0), Ticked(1e9))
        assert effects == []
        assert rounds.waiting(state) == "1 of 3 devices are here, 1 more needed"

    def test_the_cohort_is_told_at_once(self) -> None:
        state, effects = played(replace(FRESH, present=frozenset(NAMES)), Chosen(("cat", "ant", "ant"), 7))
        assert effects == [Announce(("ant", "cat"))]
        assert state.seats == {"ant": Seat(State.WORKING, 17), "cat": Seat(State.WORKING, 17)}
        assert state.since == 7

    def test_who_is_new_is_noted_once(self) -> None:
        here = replace(FRESH, present=frozenset(NAMES))
        state, _ = played(here, Chosen(("ant", "bee"), 7, ("bee", "cat")), Chosen(NAMES, 8, NAMES))
        assert (state.joined, tuple(state.seats)) == (("bee", "cat"), ("ant", "bee"))
        late, _ = played(state, Present("dog", 9), Reported("ant", 9), Reported("bee", 9))
        assert (late.joined, late.phase) == (("bee", "cat"), Phase.REDUCING)


class TestReporting:
    @pytest.mark.parametrize("sign", [Progressed("ant", 9), Present("ant", 9)])
    def test_signs_of_life_renew_the_lease(self, sign: Event) -> None:
        state, _ = played(reporting(), Ticked(5), sign)
        assert state.seats["ant"] == Seat(State.WORKING, 19)
        assert state.seats["bee"] == Seat(State.WORKING, 10)

    def test_a_hello_brings_the_task_again(self) -> None:
        assert played(reporting(), Present("ant", 9))[1] == [Resend("ant")]
        assert played(reporting(), Present("dog", 9))[1] == []
        assert played(reporting(), Reported("ant", 1), Present("ant", 9))[1] == [Fold("ant")]

    def test_a_silent_member_is_told_once_more_then_given_up(self) -> None:
        state, effects = played(reporting(), Progressed("bee", 8), Progressed("cat", 8), Ticked(10))
        assert effects == [Resend("ant")]
        assert "no sign of life from ant" in rounds.waiting(state)
        state, effects = played(state, Progressed("bee", 18), Progressed("cat", 18), Ticked(20))
        assert effects == []
        assert state.seats["ant"] == Seat(State.LOST, 20, nudged=True, why="no sign of life")

    def test_a_report_after_that_still_counts(self) -> None:
        state, effects = played(reporting(), Progressed("bee", 18), Ticked(10), Ticked(20), Reported("ant", 21))
        assert state.seats["ant"].state is State.REPORTED
        assert effects[-1] == Fold("ant")

    def test_a_report_counts_once(self) -> None:
        once, effects = played(reporting(), Reported("ant", 3))
        assert effects == [Fold("ant")]
        for again in (Reported("ant", 4), Failed("ant", "disk", 4), Progressed("ant", 4)):
            assert rounds.advance(once, again) == (once, ())

    def test_a_failure_is_final(self) -> None:
        failed, effects = played(reporting(), Failed("ant", "no data", 3))
        assert effects == []
        for later in (Reported("ant", 4), Progressed("ant", 4), Present("ant", 4)):
            assert rounds.advance(failed, later) == (failed, ())
        assert "without ant: no data" in rounds.waiting(failed)

    def test_it_ends_when_all_answered(self) -> None:
        state, effects = played(reporting(), Reported("cat", 1), Failed("bee", "disk", 2), Reported("ant", 3))
        assert effects == [Fold("cat"), Fold("ant"), Reduce(("ant", "cat"))]
        assert (state.phase, state.since) == (Phase.REDUCING, 3)

    def test_it_ends_at_the_deadline_with_the_reports_it_has(self) -> None:
        state, effects = played(reporting(), Reported("ant", 1), Reported("bee", 1), Progressed("cat", 95), Ticked(100))
        assert effects == [
            Fold("ant"),
            Fold("bee"),
            Release(("cat",), "the round ended at its deadline"),
            Reduce(("ant", "bee")),
        ]
        assert rounds.waiting(state) == "folding 2 uploads"

    def test_lost_members_are_suspected_when_it_ends(self) -> None:
        _, effects = played(reporting(), Reported("ant", 1), Reported("bee", 1), Ticked(10), Ticked(20))
        assert effects[2:] == [Resend("cat"), Suspect(("cat",)), Reduce(("ant", "bee"))]

    def test_too_few_reports_abandon_it(self) -> None:
        state, effects = played(reporting(), Reported("ant", 1), Failed("bee", "disk", 2), Failed("cat", "data", 3))
        assert [type(effect) for effect in effects] == [Fold, Abandon]
        assert state.phase is Phase.ABANDONED
        assert state.why.startswith("1 reports, at least 2 needed")
        assert "bee: disk" in state.why

    def test_nobody_chosen_is_nobody_to_wait_for(self) -> None:
        state, effects = played(FRESH, Chosen((), 0), Ticked(0))
        assert effects[0] == Announce(())
        assert state.phase is Phase.ABANDONED


class TestOverSelection:
    POLICY = replace(POLICY, goal=4, minimum=2, over=1.3)
    NAMES = tuple("abcdef")

    def reporting(self) -> Round:
        here = replace(FRESH, policy=self.POLICY, present=frozenset(self.NAMES))
        assert rounds.advance(here, Ticked(0))[1] == (Choose(self.NAMES, 6),)
        return played(here, Chosen(self.NAMES, 0))[0]

    def test_it_waits_for_all_that_it_selects_and_then_takes_what_is_here(self) -> None:
        four = replace(FRESH, policy=self.POLICY, present=frozenset("abcd"))
        state, effects = played(four, Ticked(0), Ticked(4.9))
        assert effects == []
        assert rounds.advance(state, Ticked(5))[1] == (Choose(tuple("abcd"), 4),)

    def test_goal_reports_end_it_and_the_rest_are_released(self) -> None:
        state, effects = played(self.reporting(), *(Reported(device, 1) for device in "facd"))
        why = "the round has its 4 reports"
        assert effects[4:] == [Release(("b", "e"), why), Reduce(("a", "c", "d", "f"))]
        assert state.seats["b"] == Seat(State.RELEASED, 10, why=why)
        for late in (Reported("b", 2), Failed("b", "disk", 2), Progressed("b", 2)):
            assert rounds.advance(state, late) == (state, ())

    @pytest.mark.parametrize(
        ("goal", "over", "count"), [(10, 1.3, 13), (30, 1.1, 33), (3, 1.3, 4), (5, 1.0, 5), (1, 10, 10)]
    )
    def test_how_many(self, goal: int, over: float, count: int) -> None:
        assert rounds.selected(goal, over) == count


class TestCanaries:
    def given(self, canaries: tuple[str, ...] = ("b",), halt: float = 0.2) -> tuple[Round, list[Effect]]:
        here = replace(FRESH, policy=replace(POLICY, goal=10, halt=halt), present=frozenset("abcdefghij"))
        return played(here, Chosen(tuple("abcdefghij"), 0, canaries=canaries))

    def test_only_they_get_the_task(self) -> None:
        state, effects = self.given()
        assert effects == [Announce(("b",))]
        assert state.devices(State.WAITING) == tuple("acdefghij")
        assert "9 more get the task once it works there" in rounds.waiting(state)
        assert played(state, Present("a", 1))[1] == []  # it has no task to get again

    @pytest.mark.parametrize("shown", [Progressed("b", 7, 1), Reported("b", 7)])
    def test_the_others_follow_when_one_has_taken_a_step(self, shown: Event) -> None:
        state, _ = self.given()
        state, effects = played(state, Progressed("b", 5), shown)
        assert effects[-1] == Widen(tuple("acdefghij"))
        assert {state.seats[device].until for device in "acj"} == {17}
        assert state.since == 7  # they need as long as the others

    def test_all_of_several_must_show_it(self) -> None:
        state, _ = self.given(("b", "c"))
        state, effects = played(state, Reported("b", 1))
        assert effects == [Fold("b")]
        assert played(state, Progressed("c", 2, 3))[1] == [Widen(tuple("adefghij"))]

    @pytest.mark.parametrize("end", [Failed("b", "low battery", 3, "conditions"), Failed("b", "old", 3, "GraphFailed")])
    def test_one_that_fails_is_followed_by_another(self, end: Event) -> None:
        state, _ = self.given()
        state, effects = played(state, end)
        assert effects == [Widen(("a",))]
        assert played(state, Reported("a", 4))[1] == [Fold("a"), Widen(tuple("cdefghij"))]

    def test_one_that_is_lost_is_followed_by_others_twice_as_many_each_time(self) -> None:
        state, _ = self.given()
        state, effects = played(state, Ticked(10), Ticked(20), Ticked(30), Ticked(40))
        assert effects == [Resend("b"), Widen(("a",)), Resend("a"), Widen(("c", "d"))]

    def test_two_that_cannot_load_it_end_the_run(self) -> None:
        state, _ = self.given()
        state, effects = played(
            state, Failed("b", "BundleError: x", 1, "BundleError"), Failed("a", "y", 2, "PlanError")
        )
        assert effects[0] == Widen(("a",))
        assert isinstance(effects[1], Halt)
        assert (state.phase, len(effects), len(state.devices(State.WAITING))) == (Phase.HALTED, 2, 8)
        assert "2 of the 2 devices that have the task cannot run its bundle" in rounds.waiting(state)
        assert played(state, Reported("c", 3), Ticked(1e9), Resumed(0))[1] == []

    def test_up_to_the_part_that_may_fail_it_goes_on(self) -> None:
        state, _ = self.given(())
        state, _ = played(state, *(Failed(device, "old", 1, "GraphFailed") for device in "ab"))
        assert state.phase is Phase.REPORTING  # 2 of 10 are not more than 20 %
        assert played(state, Failed("c", "old", 2, "GraphFailed"))[0].phase is Phase.HALTED

    @pytest.mark.parametrize("code", ["DataError", "StoreError", "TransferError", "conditions", ""])
    def test_other_faults_are_not_the_bundles(self, code: str) -> None:
        state, _ = self.given(())
        state, _ = played(state, *(Failed(device, "x", 1, code) for device in "abcdefgh"))
        assert state.phase is Phase.REPORTING

    def test_the_deadline_ends_it_for_those_who_never_got_the_task_too(self) -> None:
        state, _ = self.given()
        state = replace(state, policy=replace(state.policy, lease=60))  # its patience with the canary is no matter here
        state, effects = played(state, *(Progressed("b", at) for at in range(9, 100, 9)), Ticked(100))
        assert state.phase is Phase.ABANDONED
        assert Release(("b",), "the round was abandoned") in effects
        assert state.devices(State.RELEASED) == tuple("abcdefghij")


class TestBarred:
    HERE = replace(FRESH, present=frozenset(NAMES), barred={"ant": "quarantined", "dog": "quarantined"})

    def test_others_are_chosen_after_a_while(self) -> None:
        state, effects = played(self.HERE, Ticked(0), Ticked(4))
        assert effects == []
        assert rounds.advance(state, Ticked(5))[1] == (Choose(("bee", "cat"), 2),)
        assert rounds.advance(state, Present("eel", 4))[1] == (Choose(("bee", "cat", "eel"), 3),)

    def test_they_help_out_where_the_minimum_needs_them(self) -> None:
        here = replace(self.HERE, policy=replace(POLICY, minimum=3))
        state, effects = played(here, Ticked(0), Ticked(4))
        assert effects == []  # another may still come
        assert rounds.advance(state, Ticked(5))[1] == (Choose(NAMES, 3),)


class TestReducing:
    def test_the_commit_follows_the_storing(self) -> None:
        state, effects = played(reducing(), Stored(9))
        assert (state.phase, effects) == (Phase.COMMITTED, [Commit(NAMES)])
        assert rounds.waiting(state) == "committed with 3 reports"

    def test_a_failure_abandons_it(self) -> None:
        state, effects = played(reducing(), StoreFailed("not finite", 9))
        assert (state.phase, effects) == (Phase.ABANDONED, [Abandon("not finite")])
        assert rounds.waiting(state) == "abandoned: not finite"

    def test_nothing_else_matters(self) -> None:
        state = reducing()
        nothing: tuple[Event, ...] = (
            Present("ant", 9),
            Absent("ant", 9),
            Chosen(("dog",), 9),
            Progressed("ant", 9),
            Reported("dog", 9),
            Failed("ant", "disk", 9),
            Ticked(1e9),
            Reconnected(9),
        )
        assert played(state, *nothing) == (state, [])


@pytest.mark.parametrize("state", [FRESH, reporting(), reducing()], ids=lambda state: state.phase.value)
def test_a_person_ends_it(state: Round) -> None:
    after, effects = played(state, Stopped(9), Stopped(10))
    assert (after.phase, effects) == (Phase.STOPPED, [End()])
    assert rounds.waiting(after) == "stopped by a person"
    assert played(after, Stored(11), Ticked(1e9), Reported("ant", 12)) == (after, [])


class TestRestart:
    def test_selecting_asks_who_is_here(self) -> None:
        state, effects = played(FRESH, Present("ant", 3), Present("bee", 3), Resumed(0.5))
        assert (state.present, state.enough, state.since) == (frozenset(), None, 0.5)
        assert effects == []

    def test_reporting_folds_again_and_renews_every_lease(self) -> None:
        state, effects = played(reporting(), Reported("bee", 5), Ticked(10), Resumed(0.5))
        assert effects[-1:] == [Fold("bee")]
        assert state.seats["ant"] == Seat(State.WORKING, 10.5)
        assert played(state, Ticked(10))[1] == []

    def test_reducing_does_it_all_again(self) -> None:
        state, effects = played(reducing(), Resumed(0.5))
        assert effects == [*(Fold(device) for device in NAMES), Reduce(NAMES)]
        assert state.phase is Phase.REDUCING

    def test_the_deadline_begins_anew(self) -> None:
        state, _ = played(reporting(), Resumed(1e6), Progressed("ant", 1e6 + 99), Ticked(1e6 + 99))
        assert state.phase is Phase.REPORTING
        assert played(state, Ticked(1e6 + 100))[0].phase is Phase.ABANDONED


def test_a_cut_takes_nobodys_lease_but_everybodys_presence() -> None:
    state, effects = played(reporting(), Ticked(10), Reconnected(500))
    assert effects == [Resend(device) for device in NAMES]
    assert set(state.seats.values()) == {Seat(State.WORKING, 510)}
    waiting, _ = played(FRESH, Present("ant", 3), Reconnected(500))
    assert waiting.present == frozenset()


def test_a_cut_longer_than_the_deadline_ends_no_round() -> None:
    state, _ = played(reporting(), Reconnected(1e6), Progressed("ant", 1e6 + 99), Ticked(1e6 + 99))
    assert state.phase is Phase.REPORTING
    assert played(state, Ticked(1e6 + 100))[0].phase is Phase.ABANDONED


def test_names_are_cut_short_for_people() -> None:
    state = replace(FRESH, present=frozenset("abcdefgh"), policy=replace(POLICY, goal=8))
    state, _ = played(state, Chosen(tuple("abcdefgh"), 0))
    assert rounds.waiting(state) == "0 of 8 reported, waiting for a, b, c and 5 more"
    assert isinstance(rounds.waiting(played(state, events.Ticked(11))[0]), str)


def test_late_members_are_released_once() -> None:
    """At the deadline; a failed update afterwards has nobody left to release."""
    at_work = (Progressed(device, 95) for device in NAMES)
    state, effects = played(reporting(), *at_work, *(Reported(device, 96) for device in NAMES[:2]), Ticked(101))
    assert [effect for effect in effects if isinstance(effect, Release)] == [
        Release(("cat",), "the round ended at its deadline")
    ]
    state, effects = played(state, StoreFailed("no", 102))
    assert state.phase is Phase.ABANDONED
    assert not [effect for effect in effects if isinstance(effect, Release)]


def test_an_abandoned_round_names_the_deadline_it_missed() -> None:
    state, _ = played(reporting(), *(Progressed(device, 95) for device in NAMES), Ticked(101))
    assert state.phase is Phase.ABANDONED
    assert "0 reports at the deadline of 100 s, at least 2 needed" in state.why
