from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from device_agent import store as stores
from device_agent.store import Kept, Outgoing, Settlement, Store
from edgepfl.errors import StoreError

RUN = "watch-1"


def pending(store: Store, round_: int, attempt: int = 0, run: str = RUN) -> None:
    label = f"{round_}.{attempt}".encode()
    store.commit_pending(run, round_, attempt, keep=b"keep " + label, report=b"report " + label, upload=b"up " + label)


def settled(store: Store, round_: int) -> None:
    pending(store, round_)
    store.close_round(RUN, round_, accepted=True)


def copy_files(path: Path, to: Path) -> None:
    """What a power cut at this instant leaves: the files as they are, nothing closed."""
    to.mkdir()
    for name in (path.name, f"{path.name}-wal"):
        shutil.copyfile(path.parent / name, to / name)


def serving(path: Path) -> dict[str, tuple[int, bytes]]:
    """Each run's model that predicts, and its round."""
    with closing(sqlite3.connect(path)) as database:
        return {run: (number, model) for run, number, model in database.execute("SELECT * FROM serving")}


def test_a_new_store_knows_nothing(tmp_path: Path) -> None:
    with Store(tmp_path / "deep" / "agent.db") as store:
        assert store.keep(RUN) == Kept(-1, None)
        assert store.outbox() == []
        assert serving(tmp_path / "deep" / "agent.db") == {}
        assert store.settle(RUN, -1, 0, 0) == Settlement(-1, None, behind=False)
    assert (tmp_path / "deep" / "agent.db").stat().st_mode & 0o077 == 0


def test_a_report_waits_with_its_slots_until_it_counts(tmp_path: Path) -> None:
    with Store(tmp_path / "a.db") as store:
        pending(store, 0)
        assert store.keep(RUN) == Kept(-1, None)
        assert store.outbox() == [Outgoing(RUN, 0, 0, b"report 0.0", b"up 0.0")]
        assert store.settle(RUN, 0, 1, 0) == Settlement(0, None, behind=False)
        assert store.keep(RUN) == Kept(0, b"keep 0.0")
        assert store.outbox() == []


S, P = 4, (6, 1)
TABLE = [
    # accepted, open -> settled, pending, behind
    (3, (9, 9), (4, P, False)),  # q < s
    (-1, (0, 0), (4, P, False)),
    (6, (7, 0), (6, None, False)),  # p == q
    (6, (6, 0), (6, None, False)),
    (4, (6, 1), (4, P, False)),  # open is ours
    (4, (6, 0), (4, P, False)),  # an old message
    (4, (5, 7), (4, P, False)),
    (4, (6, 2), (4, None, False)),  # ended without it
    (4, (7, 0), (4, None, False)),
    (5, (7, 0), (4, None, True)),  # p > q, dropped, and another store made 5
    (5, (6, 1), (4, P, True)),
    (7, (8, 0), (4, None, True)),  # p < q
]


@pytest.mark.parametrize(("accepted", "opened", "after"), TABLE)
def test_a_tasks_word_does_what_the_table_says_once_and_again(
    tmp_path: Path, accepted: int, opened: tuple[int, int], after: tuple[int, tuple[int, int] | None, bool]
) -> None:
    with Store(tmp_path / "a.db") as store:
        settled(store, S)
        pending(store, *P)
        for _ in range(2):
            assert store.settle(RUN, accepted, *opened) == Settlement(*after)
            assert store.keep(RUN).data == (b"keep 6.1" if after[0] == 6 else b"keep 4.0")
            assert [(out.round, out.attempt) for out in store.outbox()] == ([after[1]] if after[1] else [])


@pytest.mark.parametrize(
    ("word", "after", "waits"),
    [
        ((6, True), 6, False),
        ((6, False), 4, False),
        ((5, False), 4, True),
        ((7, True), 4, True),
        ((4, False), 4, True),
    ],
)
def test_a_commit_speaks_of_its_own_round_only(
    tmp_path: Path, word: tuple[int, bool], after: int, waits: object
) -> None:
    with Store(tmp_path / "a.db") as store:
        settled(store, S)
        pending(store, *P)
        for _ in range(2):
            store.close_round(RUN, word[0], accepted=word[1])
            assert store.keep(RUN).round == after
            assert bool(store.outbox()) is waits


def test_what_comes_too_late_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with Store(tmp_path / "a.db") as store:
        settled(store, 4)
        with pytest.raises(StoreError, match="comes after settled round 4"):
            pending(store, 4, 5)
        pending(store, 6, 1)
        for round_, attempt in ((4, 5), (0, 0), (6, 0), (5, 9)):
            with pytest.raises(StoreError, match="comes after") as caught:
                pending(store, round_, attempt)
            assert RUN in caught.value.where
        assert store.outbox() == [Outgoing(RUN, 6, 1, b"report 6.1", b"up 6.1")]
        pending(store, 6, 2)
        pending(store, 6, 2)
        assert store.outbox() == [Outgoing(RUN, 6, 2, b"report 6.2", b"up 6.2")]


def test_runs_do_not_touch_each_other_and_can_be_forgotten(tmp_path: Path) -> None:
    with Store(tmp_path / "a.db") as store:
        for run in ("b", "a"):
            store.commit_pending(run, 0, 0, keep=b"0", report=b"", serving=run.encode())
        store.settle("a", 0, 1, 0)
        assert [out.run for out in store.outbox()] == ["b"]
        store.forget("a")
        assert store.keep("a") == Kept(-1, None)
        assert serving(tmp_path / "a.db") == {"b": (0, b"b")}
        assert len(store.outbox()) == 1


def test_the_model_that_serves_never_goes_back(tmp_path: Path) -> None:
    with Store(tmp_path / "a.db") as store:
        for attempt, model in enumerate((b"five", None, b"again")):
            store.commit_pending(RUN, 5, attempt, keep=b"", report=b"", serving=model)
            assert serving(tmp_path / "a.db") == {RUN: (5, model or b"five")}
        with pytest.raises(StoreError, match="comes after"):
            store.commit_pending(RUN, 4, 0, keep=b"", report=b"", serving=b"four")
        store.close_round(RUN, 5, accepted=False)
        store.commit_pending(RUN, 4, 0, keep=b"", report=b"", serving=b"four")
        assert serving(tmp_path / "a.db") == {RUN: (5, b"again")}


def test_identity_stays_and_sessions_grow(tmp_path: Path) -> None:
    found = []
    for _ in range(3):
        with Store(tmp_path / "a.db") as store:
            found.append((store.identity(), store.next_session(), store.next_session()))
    identities, first, second = zip(*found, strict=True)
    assert len(set(identities)) == 1
    assert 0 <= identities[0] < 1 << 40
    assert first + second == (1, 3, 5, 2, 4, 6)
    with Store(tmp_path / "b.db") as other:
        assert other.identity() != identities[0]


def test_two_agents_cannot_share_a_store(tmp_path: Path) -> None:
    with Store(tmp_path / "a.db") as store:
        with pytest.raises(StoreError, match="another agent is using it") as caught:
            Store(tmp_path / "a.db")
        assert "state directory of its own" in caught.value.remedy
        program = (
            f"from pathlib import Path; from device_agent.store import Store; Store(Path({str(tmp_path / 'a.db')!r}))"
        )
        other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
        assert "another agent is using it" in other.stderr
        pending(store, 0)
    with Store(tmp_path / "a.db") as again:
        assert len(again.outbox()) == 1


def test_threads_share_a_store(tmp_path: Path) -> None:
    with Store(tmp_path / "a.db") as store, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda index: pending(store, index, run=f"run-{index % 5}"), range(5)))
        sessions = list(pool.map(lambda _: store.next_session(), range(20)))
        assert sorted(sessions) == list(range(1, 21))
        assert len(store.outbox()) == 5


def test_a_crash_inside_a_transaction_leaves_the_state_before_it(tmp_path: Path) -> None:
    with Store(tmp_path / "a.db") as store:
        settled(store, 0)
        pending(store, 1)
        with store._database.transaction() as database:
            store._promote(database, RUN, (1, 0))
            copy_files(tmp_path / "a.db", tmp_path / "cut")
        with Store(tmp_path / "cut" / "a.db") as after:
            assert after.keep(RUN) == Kept(0, b"keep 0.0")
            assert [out.round for out in after.outbox()] == [1]
        assert store.keep(RUN) == Kept(1, b"keep 1.0")


def test_a_failure_inside_a_transaction_undoes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise RuntimeError("bug")

    with Store(tmp_path / "a.db") as store:
        pending(store, 0)
        with monkeypatch.context() as patch:
            patch.setattr(store, "_remove", failing)
            with pytest.raises(RuntimeError, match="bug"):
                store.settle(RUN, 0, 1, 0)
        assert (store.keep(RUN), len(store.outbox())) == (Kept(-1, None), 1)
        assert store.settle(RUN, 0, 1, 0).settled == 0


def test_what_was_undone_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(tmp_path / "a.db") as store:
        pending(store, 0)
        waiting, remove = store.outbox(), store._remove

        def removing(*given: Any) -> None:  # noqa: ANN401  as it takes them
            remove(*given)
            raise RuntimeError("bug")

        with monkeypatch.context() as patch:
            patch.setattr(store, "_remove", removing)
            with pytest.raises(RuntimeError, match="bug"):
                store.close_round(RUN, 0, accepted=True)
        assert store.outbox() == waiting
        assert store.settle(RUN, -1, 0, 0) == Settlement(-1, (0, 0), behind=False)


def test_what_could_not_be_written_is_not_remembered(tmp_path: Path) -> None:
    with Store(tmp_path / "a.db") as store:
        settled(store, 0)
        waiting = store.outbox()
        store.limit(1)
        with pytest.raises(StoreError):
            store.commit_pending(RUN, 1, 0, keep=bytes(1 << 20), report=b"report")
        assert store.outbox() == waiting == []
        assert store.settle(RUN, 0, 1, 0) == Settlement(0, None, behind=False)
        store.limit(0)
        pending(store, 1)
        assert [each.round for each in store.outbox()] == [1]


def test_any_length_of_the_log_leaves_a_state_that_was(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Store(path) as store:
        pending(store, 0)
        store.settle(RUN, 0, 1, 0)
        pending(store, 1)
        log = (tmp_path / "a.db-wal").read_bytes()
        whole = path.read_bytes()
    states = set()
    for index, cut in enumerate([*range(0, len(log), 1024), len(log)]):
        folder = tmp_path / f"cut-{index}"
        folder.mkdir()
        (folder / "a.db").write_bytes(whole)
        (folder / "a.db-wal").write_bytes(log[:cut])
        with Store(folder / "a.db") as after:
            states.add((after.keep(RUN), tuple(out.round for out in after.outbox())))
    assert states <= {
        (Kept(-1, None), ()),
        (Kept(-1, None), (0,)),
        (Kept(0, b"keep 0.0"), ()),
        (Kept(0, b"keep 0.0"), (1,)),
    }
    assert (Kept(0, b"keep 0.0"), (1,)) in states
    assert len(states) >= 3


WRITER = """
import sys
from pathlib import Path
from device_agent.store import Store
store = Store(Path(sys.argv[1]))
for round in range(store.settle("r", -1, 0, 0).settled + 1, 1 << 20):
    store.commit_pending("r", round, 0, keep=b"%d" % round * 999, report=b"%d" % round)
    print("pending", round, flush=True)
    store.close_round("r", round, accepted=True)
    print("settled", round, flush=True)
"""


def test_what_was_done_before_a_kill_stays_done(tmp_path: Path) -> None:
    last = -1
    for lines in (1, 4, 7, 22):
        command = [sys.executable, "-c", WRITER, str(tmp_path / "a.db")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            said = [writer.stdout.readline().split() for _ in range(lines)]
            writer.kill()
        with Store(tmp_path / "a.db") as store:
            kept, out = store.keep("r"), store.outbox()
            assert kept.round >= max([last, *(int(number) for word, number in said if word == "settled")])
            assert kept.data == (None if kept.round < 0 else b"%d" % kept.round * 999)
            assert [report.round for report in out] in ([], [kept.round + 1])
            assert max([kept.round, *(report.round for report in out)]) >= int(said[-1][1])
            last = kept.round


def test_a_full_disk_is_told_and_changes_nothing(tmp_path: Path) -> None:
    with Store(tmp_path / "a.db") as store:
        settled(store, 0)
        with store._database.transaction() as database:
            [pages] = database.execute("PRAGMA page_count").fetchone()
        store._database._connection.execute(f"PRAGMA max_page_count = {pages + 2}")  # type: ignore[union-attr]
        with pytest.raises(StoreError, match="full") as caught:
            store.commit_pending(RUN, 1, 0, keep=bytes(1 << 20), report=b"r")
        assert "free some space" in caught.value.remedy
        assert store.keep(RUN) == Kept(0, b"keep 0.0")
        pending(store, 1)
        assert len(store.outbox()) == 1


def test_files_that_are_not_ours_are_refused_and_left_alone(tmp_path: Path) -> None:
    with Store(tmp_path / "newer.db"):
        pass
    with sqlite3.connect(tmp_path / "newer.db") as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    with sqlite3.connect(tmp_path / "other.db") as database:
        database.execute("CREATE TABLE photographs (name)")
    database.close()
    (tmp_path / "text.db").write_text("not a database at all, but long enough to look like one" * 9, encoding="utf-8")
    (tmp_path / "folder.db").mkdir()
    for name, says in (
        ("newer", "schema is version 99"),
        ("other", "of another program"),
        ("text", "not a database"),
        ("folder", "directory"),
    ):
        with pytest.raises(StoreError, match=says) as caught:
            Store(tmp_path / f"{name}.db")
        assert caught.value.remedy
        assert str(tmp_path / name) in str(caught.value)
    assert (tmp_path / "text.db").read_text(encoding="utf-8").startswith("not a database")


def test_a_damaged_file_is_found_when_it_is_opened(tmp_path: Path) -> None:
    with Store(tmp_path / "a.db") as store:
        store.commit_pending(RUN, 0, 0, keep=bytes(100_000), report=b"r")
    data = bytearray((tmp_path / "a.db").read_bytes())
    data[4096 : 4096 * 8] = b"\xff" * (4096 * 7)
    (tmp_path / "a.db").write_bytes(data)
    with pytest.raises(StoreError) as caught:
        Store(tmp_path / "a.db")
    assert "Move it away" in str(caught.value)
    assert "a.db" in caught.value.where


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = Store(tmp_path / "a.db")
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.keep(RUN)
    with Store(tmp_path / "a.db") as again:
        assert again.keep(RUN).round == -1


def test_a_copy_of_the_open_files_is_a_store(tmp_path: Path) -> None:
    with Store(tmp_path / "a.db") as store:
        settled(store, 3)
        copy_files(tmp_path / "a.db", tmp_path / "copy")
        with Store(tmp_path / "copy" / "a.db") as copy:
            assert copy.keep(RUN) == store.keep(RUN) == Kept(3, b"keep 3.0")
            assert copy.identity() == store.identity()


def test_an_older_schema_is_brought_up_to_date_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(tmp_path / "a.db") as store:
        settled(store, 0)
    good = (*stores._MIGRATIONS, ("ALTER TABLE settled ADD COLUMN note TEXT",))
    monkeypatch.setattr(stores, "_MIGRATIONS", (*good, ("CREATE TABLE extra (a)", "no statement")))
    with pytest.raises(StoreError, match="syntax error"):
        Store(tmp_path / "a.db")
    with sqlite3.connect(tmp_path / "a.db") as database:
        assert database.execute("PRAGMA user_version").fetchone() == (2,)
        assert "note" not in str(database.execute("SELECT sql FROM sqlite_schema").fetchall())
    database.close()
    monkeypatch.setattr(stores, "_MIGRATIONS", good)
    with Store(tmp_path / "a.db") as store:
        assert store.keep(RUN) == Kept(0, b"keep 0.0")


def test_a_store_of_the_first_version_keeps_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(stores, "_MIGRATIONS", stores._MIGRATIONS[:1])
        with Store(tmp_path / "a.db") as store, store._database.transaction() as database:
            for run in ("b", "a"):
                database.execute("INSERT INTO settled VALUES (?, 4, ?)", (run, f"kept {run}".encode()))
            database.execute("INSERT INTO pending VALUES ('a', 5, 1, x'01', x'02', x'03')")
            database.execute("INSERT INTO pending VALUES ('c', 0, 0, x'04', x'05', x'06')")
            identity = database.execute("SELECT value FROM facts WHERE name = 'identity'").fetchone()[0]
    with Store(tmp_path / "a.db") as store:
        assert store.identity() == identity
        assert [store.keep(run) for run in "abc"] == [Kept(4, b"kept a"), Kept(4, b"kept b"), Kept(-1, None)]
        assert store.outbox() == [Outgoing("a", 5, 1, b"\2", b"\3"), Outgoing("c", 0, 0, b"\5", b"\6")]
        store.close_round("a", 5, accepted=True)
        store.settle("c", 0, 1, 0)
        assert [store.keep(run).data for run in "abc"] == [b"\1", b"kept b", b"\4"]


def test_slots_that_nothing_names_are_not_kept(tmp_path: Path) -> None:
    """Whatever happens to a round, no more states are stored than are settled or pending."""
    with Store(tmp_path / "a.db") as store:

        def count() -> int:
            with store._database.transaction() as database:
                [found] = database.execute("SELECT count(*) FROM slots").fetchone()
            return int(found)

        for number, accepted in enumerate((True, False, True, True)):
            for attempt in range(3):
                pending(store, number, attempt)
                assert count() == 1 + (store.keep(RUN).round >= 0)
            store.close_round(RUN, number, accepted=accepted)
            assert count() == 1
        pending(store, 9)
        pending(store, 9, run="other")
        store.forget(RUN)
        assert count() == 1
