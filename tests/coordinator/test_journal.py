"""The journal: transactions whole or not at all, also when the process is killed in the middle."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from coordinator import events, rounds
from coordinator.config import RunConfig
from coordinator.events import Chosen, Present, Progressed, Reported
from coordinator.journal import SCHEMA, Checkpoint, Journal, Result, RoundCost, RunRow, Status
from coordinator.rounds import Phase, Policy, Round
from coordinator.status import Totals, means, totals
from edgepfl.errors import RunError, StoreError
from edgepfl.wire import BlobRef, Report

CONFIG = RunConfig(name="home", rounds=7, hyper={"lr": 0.5, "weighting": "uniform"})
ROW = RunRow("home-1", CONFIG, "b" * 64, Status.RUNNING, "")
FIRST = Checkpoint(0, "0" * 64, ("1" * 64,))
POLICY = Policy(2, 1)


def digest(number: int) -> str:
    return f"{number:064x}"


def report(device: str, round_: int = 1, upload: BlobRef | None = None) -> Report:
    return Report(device, 1, "home-1", round_, 0, 5, 3, upload, {"loss": 0.5}, {"train": 0.1}, "e" * 64)


def result(device: str, round_: int, **metrics: float) -> Result:
    return Result(round_, device, 5, 3, metrics, {"train": 0.1}, "e" * 64)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def begun(path: Path) -> Journal:
    """A journal with a run whose first round reports."""
    journal = Journal(path)
    journal.create(ROW, FIRST)
    state = Round(1, 0, POLICY)
    journal.open_round("home-1", state)
    for event in (Present("ant", 1), Present("bee", 2), Chosen(("ant", "bee"), 2)):
        journal.append("home-1", event)
    return journal


def test_only_the_last_checkpoint_keeps_the_digests_of_its_parts(path: Path) -> None:
    journal = begun(path)
    for number in range(1, 4):
        parts = tuple(digest(100 * number + part) for part in range(50))
        journal.commit("home-1", Checkpoint(number, digest(number), parts), (), RoundCost(1, 1, 1.0))
        assert journal.checkpoint("home-1") == Checkpoint(number, digest(number), parts)
    rows = journal._db.execute("SELECT round, state, length(parts) FROM checkpoints ORDER BY round").fetchall()
    assert [row[:2] for row in rows] == [(0, FIRST.state), *((number, digest(number)) for number in range(1, 4))]
    assert [row[2] for row in rows[:-1]] == [2, 2, 2]
    journal.close()


def test_a_run_is_kept_as_it_was_given(path: Path) -> None:
    journal = Journal(path)
    assert (journal.run(), journal.running()) == (None, None)
    journal.create(ROW, FIRST)
    journal.close()
    again = Journal(path)
    assert again.run() == again.run("home-1") == again.running() == ROW
    assert again.run("home-2") is None
    assert again.checkpoint("home-1") == FIRST
    again.close()


def test_one_run_goes_on_at_a_time(path: Path) -> None:
    journal = begun(path)
    other = msgspec.structs.replace(ROW, id="home-2")
    with pytest.raises(RunError, match="another run is active"):
        journal.create(other, FIRST)
    journal.end("home-1", Status.STOPPED, "enough")
    journal.create(other, FIRST)
    newest, first = journal.run(), journal.run("home-1")
    assert newest == other
    assert first is not None
    assert (first.status, first.why) == ("stopped", "enough")
    assert journal.open_state("home-1") is None
    journal.close()


def test_an_open_round_is_its_events(path: Path) -> None:
    journal = begun(path)
    journal.append("home-1", Progressed("bee", 3))
    journal.append("home-1", Reported("ant", 4), report("ant"))
    journal.close()
    again = Journal(path)
    state = again.open_state("home-1")
    assert state is not None
    assert state.devices(rounds.State.REPORTED) == ("ant",)
    assert state.seats["bee"].until == 63
    assert again.reports("home-1") == {"ant": report("ant")}
    assert again.report("home-1", "ant") == report("ant")
    with pytest.raises(StoreError, match="no report"):
        again.report("home-1", "bee")
    again.close()


def test_every_kind_of_event_survives(path: Path) -> None:
    journal = Journal(path)
    journal.create(ROW, FIRST)
    journal.open_round("home-1", Round(1, 0, POLICY))
    told: tuple[events.Event, ...] = (
        *(Present(device, 1.5) for device in ("ant", "bee")),
        events.Absent("bee", 2),
        events.Resumed(0.25),
        events.Reconnected(0.5),
        Chosen(("ant", "bee"), 3, ("ant", "bee", "cat")),
        Progressed("ant", 4),
        events.Ticked(63.5),
        events.Failed("bee", "größer\n", 64),
        Reported("ant", 65),
        events.StoreFailed("no", 66),
        events.Stopped(67),
    )
    state = Round(1, 0, POLICY)
    for event in told:
        journal.append("home-1", event)
        state, _ = rounds.advance(state, event)
        assert journal.open_state("home-1") == state
    assert (state.phase, state.joined) == (Phase.ABANDONED, ("ant", "bee", "cat"))
    kinds = {kind for (kind,) in journal._db.execute("SELECT kind FROM events")}
    assert kinds == {type(event).__name__ for event in told}
    journal.close()


def test_compacting_changes_nothing(path: Path) -> None:
    journal = begun(path)
    before = journal.open_state("home-1")
    assert before is not None
    journal.compact("home-1", before)
    assert journal._db.execute("SELECT count(*) FROM events").fetchone() == (0,)
    assert journal.open_state("home-1") == before
    journal.append("home-1", Reported("ant", 9), report("ant"))
    after = journal.open_state("home-1")
    assert after == rounds.advance(before, Reported("ant", 9))[0]
    journal.close()


def test_a_commit_closes_the_round_at_once(path: Path) -> None:
    journal = begun(path)
    journal.append("home-1", Reported("ant", 4), report("ant", upload=BlobRef("a" * 64, 10)))
    new = Checkpoint(1, digest(1), ())
    journal.commit("home-1", new, (result("ant", 1, loss=0.5),), RoundCost(10, 20, 0.5))
    assert journal.checkpoint("home-1") == new
    assert journal.accepted("home-1") == {"ant": 1}
    assert journal.results("home-1") == (result("ant", 1, loss=0.5),)
    assert journal.costs("home-1") == {1: RoundCost(10, 20, 0.5)}
    assert (journal.open_state("home-1"), journal.reports("home-1")) == (None, {})
    with pytest.raises(StoreError, match="cannot be written"):
        journal.commit("home-1", new, (result("bee", 1),), RoundCost(0, 0, 0))  # a round counts once
    assert journal.accepted("home-1") == {"ant": 1}
    journal.open_round("home-1", Round(2, 0, POLICY))  # and the failure left no transaction open
    journal.close()


def test_a_commit_makes_known_who_was_there(path: Path) -> None:
    """Devices that were seen and not chosen are known from then on; what is known of a device is never lost."""
    journal = begun(path)
    assert journal.accepted("home-1") == {}
    cost = RoundCost(0, 0, 0)
    journal.commit("home-1", Checkpoint(1, digest(1), ()), (result("ant", 1),), cost, ("ant", "bee", "cat"))
    assert journal.accepted("home-1") == {"ant": 1, "bee": -1, "cat": -1}
    journal.open_round("home-1", Round(2, 0, POLICY))
    journal.append("home-1", Chosen(("bee",), 5, ("dog",)))
    journal.open_round("home-1", Round(2, 1, POLICY))  # that attempt was abandoned
    assert journal.accepted("home-1") == {"ant": 1, "bee": -1, "cat": -1}
    journal.commit("home-1", Checkpoint(2, digest(2), ()), (result("bee", 2),), cost, ("ant", "eel"))
    assert journal.accepted("home-1") == {"ant": 1, "bee": 2, "cat": -1, "eel": -1}
    assert journal.accepted("home-2") == {}
    journal.close()


def test_a_choice_written_before_there_was_a_roster(path: Path) -> None:
    journal = Journal(path)
    journal.create(ROW, FIRST)
    journal.open_round("home-1", Round(1, 0, POLICY))
    journal._db.execute("INSERT INTO events VALUES (NULL, 'home-1', 'Chosen', '{\"devices\":[\"ant\"],\"at\":2.0}')")
    state = journal.open_state("home-1")
    assert state is not None
    assert (state.devices(rounds.State.WORKING), state.joined) == (("ant",), ())
    journal.close()


def test_blobs_are_what_is_still_needed(path: Path) -> None:
    journal = begun(path)
    journal.append("home-1", Reported("ant", 4), report("ant", upload=BlobRef("a" * 64, 10)))
    journal.append("home-1", Reported("bee", 4), report("bee"))
    assert journal.blobs() == {"b" * 64, "0" * 64, "1" * 64, "a" * 64}
    journal.commit("home-1", Checkpoint(1, digest(1), ()), (), RoundCost(0, 0, 0))
    assert journal.blobs() == {"b" * 64, digest(1)}
    journal.end("home-1", Status.DONE)
    journal.create(msgspec.structs.replace(ROW, id="home-2", bundle="c" * 64), FIRST)
    assert journal.blobs() == {"b" * 64, "c" * 64, digest(1), digest(0), "1" * 64}  # a model that was trained is kept
    journal.close()


def test_an_error_inside_leaves_nothing_behind(path: Path) -> None:
    journal = begun(path)
    before = journal.open_state("home-1")
    [pages] = journal._db.execute("PRAGMA page_count").fetchone()
    journal._db.execute(f"PRAGMA max_page_count = {pages}")
    many = tuple(result(f"d{k}", 1, loss=0.5) for k in range(2000))
    for _ in range(2):
        with pytest.raises(StoreError, match="full") as caught:
            journal.commit("home-1", Checkpoint(1, digest(1), ()), many, RoundCost(0, 0, 0))
        assert "disk" in caught.value.remedy
    assert journal.checkpoint("home-1").round == 0
    assert journal.open_state("home-1") == before
    journal._db.execute("PRAGMA max_page_count = 100000")
    journal.commit("home-1", Checkpoint(1, digest(1), ()), many, RoundCost(0, 0, 0))
    assert len(journal.results("home-1")) == 2000
    journal.close()


def test_states_that_were_stored_otherwise_are_refused(path: Path) -> None:
    Journal(path).close()
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 1")
    database.close()
    with pytest.raises(StoreError, match="an older edgepfl made it") as caught:
        Journal(path)
    assert "another state directory" in caught.value.remedy


def test_a_newer_schema_is_refused(path: Path) -> None:
    Journal(path).close()
    database = sqlite3.connect(path)
    database.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    database.close()
    with pytest.raises(StoreError, match=f"schema {SCHEMA + 1}") as caught:
        Journal(path)
    assert caught.value.remedy == "Update edgepfl"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("UPDATE events SET kind = 'Exploded'", "unknown event"),
        ("UPDATE events SET body = '{'", "cannot read"),
        ("UPDATE rounds SET first = '{\"number\": 1}'", "cannot read"),
        ("DROP TABLE events", "cannot be read"),
    ],
)
def test_an_entry_of_another_version_is_an_error_with_a_remedy(damage: str, words: str, path: Path) -> None:
    journal = begun(path)
    journal._db.execute(damage)
    with pytest.raises(StoreError, match=words) as caught:
        journal.open_state("home-1")
    assert caught.value.remedy
    journal.close()


def test_what_is_no_database_is_an_error(path: Path) -> None:
    path.write_bytes(b"not a database, but long enough to be taken for one at first sight" * 20)
    with pytest.raises(StoreError, match="cannot be opened"):
        Journal(path)
    with pytest.raises(StoreError, match="cannot be opened"):
        Journal(path.parent)


WRITER = """
import sys
from pathlib import Path
from test_journal import *
journal = Journal(Path(sys.argv[1]))
number = journal.checkpoint("home-1").round
while True:
    number += 1
    journal.open_round("home-1", Round(number, 0, POLICY))
    journal.append("home-1", Chosen(("ant", "bee"), 0, ("ant", "bee", "cat")))
    for device in ("ant", "bee"):
        journal.append("home-1", Reported(device, 1), report(device, number))
    results = tuple(result(device, number, loss=1.0) for device in ("ant", "bee"))
    new, cost = Checkpoint(number, digest(number), ()), RoundCost(1, 1, 1)
    journal.commit("home-1", new, results, cost, ("ant", "bee", "cat"))
    print(number, flush=True)
"""


def test_a_kill_anywhere_tears_nothing(path: Path) -> None:
    journal = Journal(path)
    journal.create(ROW, FIRST)
    journal.close()
    source = random.Random(5)
    last = 0
    for _ in range(8):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, cwd=Path(__file__).parent, text=True
        ) as writer:
            assert writer.stdout is not None
            told = [int(writer.stdout.readline()) for _ in range(source.randrange(1, 4))]
            time.sleep(source.random() * 0.01)  # anywhere in the next rounds; no outcome depends on it
            writer.send_signal(signal.SIGKILL)
            told += [int(line) for line in writer.stdout]
        journal = Journal(path)
        _check_whole(journal, told[-1])
        assert journal.checkpoint("home-1").round >= told[-1] > last
        last = told[-1]
        journal.close()


def _check_whole(journal: Journal, told: int) -> None:
    done = journal.checkpoint("home-1").round
    assert done in {told, told + 1}  # what was said to be done is done
    assert journal.checkpoint("home-1").state == digest(done)
    assert [(r.round, r.device) for r in journal.results("home-1")] == [
        (number, device) for number in range(1, done + 1) for device in ("ant", "bee")
    ]
    assert journal.accepted("home-1") == ({"ant": done, "bee": done, "cat": -1} if done else {})
    assert list(journal.costs("home-1")) == list(range(1, done + 1))
    state = journal.open_state("home-1")
    if state is not None:
        assert state.number == done + 1
        assert journal.reports("home-1").keys() == set(state.devices(rounds.State.REPORTED))


def test_totals_read_only_what_is_new(path: Path) -> None:
    journal = Journal(path)
    journal.create(ROW, FIRST)
    sums = Totals()
    for number, metrics in enumerate([{"loss": 4.0, "accuracy.own": 0.5}, {"loss": 2.0}, {}], 1):
        results = (result("ant", number, **metrics), result("bee", number, **{k: v / 2 for k, v in metrics.items()}))
        journal.commit("home-1", Checkpoint(number, digest(number), ()), results, RoundCost(10, 100, 1))
        sums = totals(journal, "home-1", number, sums)
        assert sums == totals(journal, "home-1", number, Totals())
    assert sums.metrics == {"loss": 1.5, "accuracy.own": 0.375} == means(journal.results("home-1"))
    assert (sums.bytes_in, sums.bytes_out, sums.round) == (30, 300, 3)
    assert totals(journal, "home-1", 3, sums) is sums
    assert [r.round for r in journal.results("home-1", after=2)] == [3, 3]
    assert totals(journal, "home-2", 0, sums) == Totals("home-2")
    journal.close()
