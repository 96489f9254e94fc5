"""Who is missing from a round, and why: what the journal keeps beside its cost."""

from __future__ import annotations

from pathlib import Path

from coordinator.config import RunConfig
from coordinator.journal import Checkpoint, Journal, RoundCost, RunRow, cost_of
from coordinator.rounds import Policy, Round, Seat, State
from coordinator.without import Without, without_of
from edgepfl.bus import Traffic

SEATS = {
    "ant": Seat(State.REPORTED, 0.0),
    "bee": Seat(State.FAILED, 0.0, why="upload of bee: it is not finite"),
    "cow": Seat(State.FAILED, 0.0, why="DataError: no data", code="DataError"),
    "dog": Seat(State.LOST, 0.0, why="no sign of life"),
    "elk": Seat(State.RELEASED, 0.0, why="the round has its 1 reports"),
    "fox": Seat(State.RELEASED, 0.0, why="the round has its 1 reports"),
}
ROUND = Round(7, 2, Policy(1, 1), seats=SEATS)
MISSING = Without(
    refused={"bee": "upload of bee: it is not finite"},
    failed={"cow": "DataError: no data"},
    lost=("dog",),
    released=("elk", "fox"),
)


def test_each_member_without_a_report_is_named_with_its_reason() -> None:
    assert without_of(ROUND) == MISSING
    assert without_of(Round(1, 0, Policy(1, 1))) == Without()


def test_a_rounds_cost_holds_its_abandoned_attempts_and_outlives_the_process(tmp_path: Path) -> None:
    cost = cost_of(ROUND, Traffic(10, 20), 1.5)
    assert cost == RoundCost(10, 20, 1.5, 2, MISSING)
    digest = "0" * 64
    journal = Journal(tmp_path / "journal.db")
    journal.create(RunRow("run-1", RunConfig(), digest, "running", ""), Checkpoint(0, digest, ()))
    journal.commit("run-1", Checkpoint(1, digest, ()), (), cost)
    journal.close()
    again = Journal(tmp_path / "journal.db")
    assert again.costs("run-1") == {1: cost}
    again.close()
