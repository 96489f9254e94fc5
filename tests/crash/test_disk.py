"""The harness itself: it sees what real processes do, ends them where it is told, and its disk is as bad as it says."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from _disk import HEAD, LEFT, Change, Disk, Tree, changes, restore
from _interposer import Watch

from device_agent.database import Database
from edgepfl.errors import StoreError

SIZE = 120_000
IN_PLACE = """
with open(path, "wb") as file:
    file.write(content)
"""
RENAMED = """
with open(path + ".new", "wb") as file:
    file.write(content)
os.replace(path + ".new", path)
"""
DURABLY = "write_durably(pathlib.Path(path), content)"
WRITER = """
import os, pathlib, sys
from edgepfl.bus._files import write_durably
path = os.path.join(sys.argv[1], "model")
os.makedirs(sys.argv[1], exist_ok=True)
for version in range(6):
    content = bytes([version]) * {size}
    {how}
    print(version, flush=True)
"""
INSERTING = """
import pathlib, sys
from device_agent.database import Database
database = Database(pathlib.Path(sys.argv[1], "a.db"), 7, [["CREATE TABLE t (v INTEGER, body BLOB)"]])
for version in range(40):
    with database.transaction() as open_:
        open_.execute("INSERT INTO t VALUES (?, ?)", (version, bytes([version]) * 3000))
    with open(sys.argv[1] + "/acknowledged", "a") as acknowledged:
        acknowledged.write(f"{version}\\n")
"""


def started(watch: Watch, script: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, str(watch.root), *words]
    return subprocess.run(command, env=watch.environment(), capture_output=True, text=True, check=False)


def writing(how: str) -> str:
    return WRITER.format(size=SIZE, how=how.strip().replace("\n", "\n    "))


def left(watch: Watch, tries: int = 3) -> set[bytes | None]:
    """Everything that a cut somewhere may leave of the model's file, None for nothing."""
    disk, found = watch.begun(), set[bytes | None]()
    for change in watch.log():
        disk.do(change)
        for what in LEFT.values():
            found |= {what(disk, seed).get("model") for seed in range(tries)}
    return found


@pytest.mark.parametrize(("how", "safe"), [(IN_PLACE, False), (RENAMED, False), (DURABLY, True)])
def test_only_a_synced_and_renamed_file_is_never_torn(tmp_path: Path, how: str, *, safe: bool) -> None:
    watch = Watch(tmp_path / "state", tmp_path)
    assert started(watch, writing(how)).returncode == 0
    whole = {bytes([version]) * SIZE for version in range(6)} | {None}
    assert (left(watch) <= whole) is safe
    assert watch.disk().everything()["model"] == (watch.root / "model").read_bytes()
    assert watch.disk().nothing().get("model") == (bytes([5]) * SIZE if safe else None)


@pytest.mark.parametrize("after", [False, True])
def test_a_process_ends_at_the_fsync_that_it_is_told(tmp_path: Path, *, after: bool) -> None:
    watch = Watch(tmp_path / "state", tmp_path)
    environment = watch.environment()
    watch.arm(5, after=after)  # each version has two: of the file, of the directory
    done = subprocess.run(
        [sys.executable, "-c", writing(DURABLY), str(watch.root)], env=environment, capture_output=True, check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert done.stdout == b"0\n1\n"
    assert watch.syncs == 5
    assert watch.killed_at().startswith("model-")
    assert [change.kind for change in watch.log()].count("F") == 4 + after
    tree = watch.disk().everything()
    for path in watch.root.iterdir():
        assert tree[path.name] == path.read_bytes()
    assert watch.disk().nothing()["model"] == bytes([1]) * SIZE
    watch.cut(watch.disk().nothing())
    assert [path.name for path in watch.root.iterdir()] == ["model"]


def versions(tree: Tree, folder: Path) -> list[int]:
    """What a database that was left like this holds; its bodies are whole."""
    restore(tree, folder)
    database = Database(folder / "a.db", 7, [["CREATE TABLE t (v INTEGER, body BLOB)"]])
    try:
        with database.transaction() as open_:
            rows = open_.execute("SELECT v, body FROM t ORDER BY v").fetchall()
    finally:
        database.close()
    assert all(body == bytes([version]) * 3000 for version, body in rows)
    return [version for version, _ in rows]


def test_a_database_has_all_transactions_that_ended_and_no_part_of_others(tmp_path: Path) -> None:
    """With a checkpoint of the write-ahead log in the middle."""
    watch = Watch(tmp_path / "state", tmp_path)
    done = started(watch, INSERTING)
    assert done.returncode == 0, done.stderr
    disk, names, seen = watch.begun(), count(), set[tuple[str, int]]()
    for number, change in enumerate(watch.log()):
        disk.do(change)
        if number % 4 == 0:
            acknowledged = (disk.everything().get("acknowledged") or b"").count(b"\n")
            for kind, what in LEFT.items():
                found = versions(what(disk, number), tmp_path / f"cut-{next(names)}")
                assert found == list(range(len(found)))
                assert acknowledged <= len(found) <= acknowledged + 1
                seen.add((kind, len(found)))
    assert {length for kind, length in seen if kind == "nothing"} >= set(range(35))
    assert any(change.kind == "F" and change.path == "a.db" for change in watch.log())  # the checkpoint


def test_a_database_of_a_program_that_does_not_sync_is_torn(tmp_path: Path) -> None:
    """The model can fail a database, too."""
    watch = Watch(tmp_path / "state", tmp_path)
    assert started(watch, INSERTING).returncode == 0
    unsynced = [change for change in watch.log() if change.kind != "F"]
    disk = watch.begun()
    failures = 0
    for number, change in enumerate(unsynced):
        disk.do(change)
        if number > 60 and number % 10 == 0:
            failures += _loses(lambda n=number: versions(disk.torn(n), tmp_path / f"cut-{n}"))  # type: ignore[misc]
    assert failures


def _loses(look: Callable[[], list[int]]) -> bool:
    try:
        found = look()
    except (StoreError, AssertionError):
        return True
    return len(found) < 10


def test_a_log_that_ends_in_the_middle_of_a_record_is_read_up_to_there() -> None:
    record = HEAD.pack(ord("M"), 3, 0, 0) + b"abc"
    assert changes(record + record[:-1]) == [Change("M", 0, 0, b"abc")]
    assert changes(record + record[:10]) == [Change("M", 0, 0, b"abc")]


def test_a_call_that_the_log_cannot_follow_is_no_silent_hole(tmp_path: Path) -> None:
    watch = Watch(tmp_path / "state", tmp_path)
    (tmp_path / "other").write_bytes(b"x")
    script = 'import os, sys; os.makedirs(sys.argv[1]); os.link(sys.argv[2], sys.argv[1] + "/linked")'
    assert started(watch, script, str(tmp_path / "other")).returncode == 0
    with pytest.raises(AssertionError, match="link"):
        watch.disk()


def test_names_and_contents_are_lost_each_for_itself() -> None:
    disk = Disk()
    disk.do(Change("C", 1, 0, b"a"))
    disk.do(Change("W", 1, 0, b"data"))
    assert (disk.everything(), disk.nothing()) == ({"": None, "a": b"data"}, {"": None})
    assert (disk.names(), disk.contents()) == ({"": None, "a": b""}, {"": None})
    disk.do(Change("F", 1, 0, b"a"))
    assert (disk.names(), disk.contents()) == ({"": None, "a": b"data"}, {"": None})
    disk.do(Change("F", 9, 0, b""))
    assert disk.nothing() == {"": None, "a": b"data"}
    disk.do(Change("R", 0, 0, b"a\0b"))
    assert (disk.nothing(), disk.names()) == ({"": None, "a": b"data"}, {"": None, "b": b"data"})
    disk.do(Change("U", 0, 0, b"b"))
    disk.do(Change("F", 9, 0, b""))
    assert disk.nothing() == {"": None}
