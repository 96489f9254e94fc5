"""Who sits out, for how long, and that the journal remembers it."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path

import pytest

from coordinator.config import RunConfig
from coordinator.journal import SCHEMA, Checkpoint, Journal, RoundCost, RunRow, Status
from coordinator.quarantine import Conduct, Rule, barred, judge
from coordinator.rounds import Policy, Round, Seat, State

RULE = Rule(after=3, rounds=5)
FAILED, LOST = Seat(State.FAILED, 0, why="no data", code="DataError"), Seat(State.LOST, 0, why="no sign of life")
REPORTED = Seat(State.REPORTED, 0)


def after(*seats: Seat, first: int = 1, rule: Rule = RULE) -> Conduct:
    """The record of one device after these attempts, each at a round of its own."""
    records: Mapping[str, Conduct] = {}
    for number, seat in enumerate(seats, first):
        records = {**records, **judge(records, Round(number, 0, Policy(1, 1), seats={"ant": seat}), rule)}
    return records.get("ant", Conduct())


def test_three_failures_in_a_row_cost_five_rounds() -> None:
    assert after(FAILED, LOST) == Conduct(2, why="no sign of life")
    assert after(FAILED, LOST, FAILED) == Conduct(3, until=8, times=1, why="no data")
    assert after(FAILED, FAILED, REPORTED, FAILED, FAILED).until == 0
    out = {"ant": after(FAILED, LOST, FAILED)}
    assert [bool(barred(out, number)) for number in (4, 8, 9)] == [True, True, False]
    assert "quarantined until round 8: it failed 3 times in a row (no data)" in barred(out, 4)["ant"]


@pytest.mark.parametrize(
    "seat",
    [
        Seat(State.RELEASED, 0, why="enough reports"),
        Seat(State.WORKING, 0),
        Seat(State.WAITING, 0),
        Seat(State.FAILED, 0, why="battery at 20 %", code="conditions"),
        Seat(State.FAILED, 0, why="no download", code="download"),
    ],
)
def test_whoever_was_released_or_declined_did_nothing_wrong_and_nothing_well(seat: Seat) -> None:
    assert after(*[seat] * 10) == Conduct()
    assert after(FAILED, FAILED, seat, FAILED).until > 0


def test_a_failure_after_a_quarantine_costs_twice_as_much_up_to_a_bound() -> None:
    waits = []
    for times in range(1, 10):
        conduct = after(*[FAILED] * (2 + times))
        waits.append(conduct.until - (2 + times))
    assert waits == [5, 10, 20, 40, 80, 160, 320, 320, 320]
    assert after(FAILED, FAILED, FAILED, REPORTED, FAILED, FAILED, FAILED).until == 7 + 10


def test_no_rounds_is_no_quarantine() -> None:
    assert after(*[LOST] * 9, rule=Rule(3, 0)).until == 0


def begun(path: Path) -> Journal:
    journal = Journal(path)
    journal.create(RunRow("run", RunConfig(), "b" * 64, Status.RUNNING, ""), Checkpoint(0, "0" * 64, ()))
    return journal


def test_the_journal_keeps_it_with_the_end_of_each_attempt(tmp_path: Path) -> None:
    journal = begun(tmp_path / "j.db")
    journal.open_round("run", Round(1, 0, Policy(1, 1)), {"ant": Conduct(1, why="x")})
    journal.open_round("run", Round(1, 1, Policy(1, 1)))
    journal.commit("run", Checkpoint(1, "1" * 64, ()), (), RoundCost(0, 0, 0), (), {"bee": Conduct(3, 6, 1, "y")})
    journal.close()
    again = Journal(tmp_path / "j.db")
    assert again.conduct("run") == {"ant": Conduct(1, why="x"), "bee": Conduct(3, 6, 1, "y")}
    assert again.conduct("other") == {}
    again.close()


def test_a_journal_of_the_schema_before_is_taken_over_with_all_that_is_in_it(tmp_path: Path) -> None:
    journal = begun(tmp_path / "j.db")
    journal.open_round("run", Round(1, 0, Policy(2, 1)))
    journal.close()
    with sqlite3.connect(tmp_path / "j.db") as database:
        for later in ("conduct", "exchanges", "releases"):
            database.execute(f"DROP TABLE {later}")
        database.execute("PRAGMA user_version = 2")
    database.close()
    for _ in range(2):
        again = Journal(tmp_path / "j.db")
        assert again.conduct("run") == {}
        assert again.open_state("run") == Round(1, 0, Policy(2, 1))
        assert again._db.execute("PRAGMA user_version").fetchone() == (SCHEMA,)
        again.close()
