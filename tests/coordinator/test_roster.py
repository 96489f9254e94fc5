"""What each device is doing: every phase and every state of a seat has a reason that a person can read."""

from __future__ import annotations

import pytest
from _round_rules import NEXT

from coordinator import rounds
from coordinator.attendance import Sign
from coordinator.busy import Busy
from coordinator.devices import Fleet, doubt, welcome
from coordinator.quarantine import Conduct
from coordinator.roster import Background, DeviceStatus, Doing, roster
from coordinator.rounds import Phase, Policy, Round, Seat, State
from edgepfl.wire import Hello

NOW = 100.0
WHY = {State.LOST: "no sign of life", State.FAILED: "no data", State.RELEASED: "enough reports"}
BACKGROUND = Background(runtimes=frozenset({"onnx"}), names=("ant", "old"))


def hello(device: str, examples: int = 5, runtime: str = "onnx") -> Hello:
    return Hello(device, 1, (runtime,), examples, 512, "test")


def fleet(*hellos: Hello) -> Fleet:
    found = Fleet()
    for each in hellos:
        found = welcome(found, each, NOW - 50)
    return found


def doing(
    name: str, r: Round | None, background: Background = BACKGROUND, here: Fleet | None = None
) -> tuple[str, str]:
    found = {each.name: each for each in roster(here or fleet(hello("ant")), r, background, NOW)}
    return found[name].state, found[name].why


def seated(seat: Seat, phase: Phase = Phase.REPORTING) -> Round:
    return Round(3, 0, Policy(2, 1), phase, seats={"ant": seat}, why="too few")


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("state", State)
def test_every_phase_and_every_state_of_a_seat_has_a_reason(phase: Phase, state: State) -> None:
    r = seated(Seat(state, NOW + 5, why=WHY.get(state, "")), phase)
    for each in roster(fleet(hello("ant")), r, BACKGROUND, NOW):
        assert each.why
        assert each.state in set(Doing)
    assert rounds.waiting(r)
    assert phase in NEXT


def test_every_kind_of_doing_can_be_seen() -> None:
    """And is seen here, with its words."""
    r = Round(3, 0, Policy(2, 1))
    working = seated(Seat(State.WORKING, NOW + 5, steps=7))
    told = Background(
        frozenset({"onnx"}),
        conduct={"ant": Conduct(3, 8, 1, "no data")},
        busy=Busy().told(("bee",), (2, 0), "enough reports", NOW, 10),
        unmet={"cat": "it is not charging"},
    )
    here = fleet(*map(hello, ("ant", "bee", "cat", "dog")), hello("eel", 0), hello("fly", runtime="executorch"))
    seen = {
        Doing.QUARANTINED: doing("ant", r, told, here),
        Doing.BUSY: doing("bee", r, told, here),
        Doing.UNMET: doing("cat", r, told, here),
        Doing.PRESENT: doing("dog", r, told, here),
        Doing.UNFIT: doing("eel", r, told, here),
        Doing.ABSENT: doing("old", r),
        Doing.WAITING: doing("ant", seated(Seat(State.WAITING, 0))),
        Doing.WORKING: doing("ant", working, Background(signs={"ant": Sign(NOW - 4)})),
        Doing.PAUSED: doing("ant", working, Background(signs={"ant": Sign(NOW - 4, "battery at 20 %")})),
        Doing.UPLOADING: doing("ant", working, Background(signs={"ant": Sign(NOW)}, arriving={"ant": (2, 9)})),
        Doing.REPORTED: doing("ant", seated(Seat(State.REPORTED, 0))),
        **{Doing(state.value): doing("ant", seated(Seat(state, 0, why=why))) for state, why in WHY.items()},
    }
    assert seen.keys() == set(Doing)
    assert {state: found[0] for state, found in seen.items()} == {state: state for state in Doing}
    words = {state: found[1] for state, found in seen.items()}
    assert "until round 8" in words[Doing.QUARANTINED]
    assert "round 2" in words[Doing.BUSY]
    assert words[Doing.UNMET] == "it is not charging"
    assert words[Doing.UNFIT] == "it has no examples"
    assert words[Doing.WORKING] == "7 steps done, last sign of life 4 s ago"
    assert words[Doing.PAUSED].startswith("battery at 20 %; 7 steps done")
    assert words[Doing.UPLOADING].startswith("2 of 9 chunks are here")
    assert doing("fly", r, told, here) == (Doing.UNFIT, "it runs executorch, and the bundle is for onnx")


def test_how_long_somebody_is_away() -> None:
    away = doubt(doubt(fleet(hello("ant")), ("ant",), NOW - 30), ("ant",), NOW - 5)  # it left once
    assert doing("ant", Round(3, 0, Policy(2, 1)), here=away) == (Doing.ABSENT, "it left 30 s ago")
    working = seated(Seat(State.WORKING, NOW + 5, nudged=True))
    assert doing("ant", working, here=away)[1].endswith("asked again, it left 30 s ago")


def test_without_a_run_it_says_who_is_here() -> None:
    assert roster(fleet(hello("ant")), None, Background(), NOW) == (DeviceStatus("ant", "present", "no run goes on"),)


def test_whoever_the_settings_silence_is_told_so() -> None:
    background = Background(frozenset({"onnx"}), silenced={"ant": "it speaks for others"})
    assert doing("ant", Round(3, 0, Policy(2, 1)), background) == (Doing.UNFIT, "it speaks for others")
