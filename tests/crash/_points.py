"""Names for the points at which a process can be ended: what it was just making durable."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from _disk import Change, Disk, Tree, replayed, restore
from _interposer import Watch

_TABLES: tuple[tuple[frozenset[str], str], ...] = (
    # of the coordinator's journal
    (frozenset({"checkpoints", "accepted"}), "round committed"),
    (frozenset({"reports", "events"}), "report noted"),
    (frozenset({"rounds"}), "round opened"),
    (frozenset({"events"}), "cohort chosen"),
    # of the agent's store
    (frozenset({"settled", "pending"}), "result settled"),
    (frozenset({"pending"}), "result and report kept"),
    (frozenset({"serving"}), "final model kept"),
    (frozenset({"facts"}), "session begun"),
)
_FOLDERS: Mapping[str, str] = {"offered": "what is to be sent stored", "fetched": "blob received"}
_OTHERS: Mapping[str, str] = {
    "": "names in the state directory",
    "store.db-journal": "database made",
    "journal.db-journal": "database made",
}


def named(watch: Watch, goal: int) -> str:
    """What the process was syncing when it was ended; in a round of so many devices."""
    log = watch.log()
    if not log or log[-1].kind != "K":
        return "nowhere"
    path, after = log[-1].path, replayed(log, watch.begun()).everything()
    if path.endswith("-wal"):
        return _transaction(_before(log, watch.begun()), after, path.removesuffix("-wal"))
    if path.endswith(".db"):
        return "write-ahead log put into the database"
    folder, _, file = path.partition("/")
    if folder not in {*_FOLDERS, "private"}:
        return _OTHERS.get(folder, folder)
    what = _FOLDERS.get(folder, folder)
    if folder == "private":
        what = "new state stored" if _reported(after) == goal else "upload stored"
    return what + ("" if file else ", its name")


def _reported(tree: Tree) -> int:
    """How many reports the open round has in the journal."""
    return sum("Reported" in row for row in _rows(tree, "journal.db").get("events", []))


def _before(log: list[Change], disk: Disk) -> Tree:
    """The directory as it was on the disk before the last fsync."""
    end = len(log) - 1
    if end and log[end - 1].kind == "F" and log[end - 1].offset == log[end].offset:
        end -= 1
    return replayed(log[:end], disk).nothing()


def _transaction(before: Tree, after: Tree, database: str) -> str:
    """The name of a transaction, by the tables that it changed."""
    old, new = _rows(before, database), _rows(after, database)
    if len(old) <= 1:  # there is no schema yet
        return "database made"
    changed = {table for table in old.keys() | new.keys() if old.get(table) != new.get(table)}
    for tables, name in _TABLES:
        if tables <= changed:
            return name
    return ", ".join(sorted(changed)) or "nothing new"


def _rows(tree: Tree, database: str) -> dict[str, list[tuple[object, ...]]]:
    """All rows of a database, by table."""
    parts = {name: data for name, data in tree.items() if name.startswith(database) and not name.endswith("-shm")}
    if not parts:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        restore(parts, Path(folder) / "it")
        with closing(sqlite3.connect(Path(folder) / "it" / database)) as opened:
            tables = [name for (name,) in opened.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
            return {name: opened.execute(f"SELECT * FROM {name}").fetchall() for name in tables}  # noqa: S608  our own
