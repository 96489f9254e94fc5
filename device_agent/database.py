"""An SQLite file that one process has to itself, each use of it one durable transaction."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from edgepfl.bus._files import FULL, make_directory, sync
from edgepfl.bus.lock import ProcessLock
from edgepfl.errors import StoreError

_OWNER_ONLY = 0o600
LOG_PAGES = 1000
"""Pages of 4 KiB in the log before they go into the file, as SQLite has it."""
_STATEMENTS = 24  # that stay compiled; a round needs 15, and each takes some KiB
_MOST_PAGES = (1 << 32) - 2  # what SQLite has as no limit
_REMEDIES = {
    "SQLITE_FULL": "The disk is full: free some space; nothing was changed",
    "SQLITE_BUSY": "Close the other program that has it open",
    "SQLITE_LOCKED": "Close the other program that has it open",
    "SQLITE_CANTOPEN": "Let the agent's user read and write it and its directory",
    "SQLITE_READONLY": "Let the agent's user read and write it and its directory",
    "SQLITE_CORRUPT": "Move it away, look after the disk, and the device joins as a new one",
    "SQLITE_NOTADB": "Move it away, or choose another path",
    "SQLITE_IOERR": "Look after the disk; nothing was changed",
}


class Database:
    """An SQLite file in WAL mode with full synchronisation.

    Args:
        path: the file; made if missing, readable by its owner only.
        application: a number in the file's header that tells our files from others.
        migrations: for each version of the schema, the statements that lead to it from the one before.
        log_pages: pages in the log before they go into the file: many spare the disk, few spare its room.

    Raises:
        StoreError: another process has it, it is damaged, not ours or of a newer version.
    """

    def __init__(
        self, path: Path, application: int, migrations: Sequence[Sequence[str]], log_pages: int = LOG_PAGES
    ) -> None:
        self._path = path
        self._mutex = Lock()
        self._lock: ProcessLock | None = None
        self._connection: sqlite3.Connection | None = None
        try:
            with _explained(path):
                make_directory(path.parent, 0o700)
                self._lock = ProcessLock(path.with_name(f"{path.name}.lock"), subject=path, holder="agent")
                os.close(os.open(path, os.O_RDWR | os.O_CREAT, _OWNER_ONLY))
                sync(path.parent)
                self._connection = sqlite3.connect(
                    path, isolation_level=None, check_same_thread=False, cached_statements=_STATEMENTS
                )
                _prepare(self._connection, path, log_pages)
            self._migrate(application, migrations)
        except BaseException:
            self.close()
            raise

    @contextmanager
    def transaction(self, *, overwriting: bool = False) -> Iterator[sqlite3.Connection]:
        """All that is done inside becomes durable at the end, or nothing at all.

        Args:
            overwriting: what is deleted inside must not be found in the file afterwards.

        Raises:
            StoreError: SQLite failed.
        """
        with self._mutex, _explained(self._path):
            if self._connection is None:
                raise StoreError("it is closed", where=str(self._path))
            if overwriting:
                self._connection.execute("PRAGMA secure_delete = ON")
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
                if overwriting:  # nor in the log
                    self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                if overwriting:
                    self._connection.execute("PRAGMA secure_delete = FAST")

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """All that is read inside is of one state: no thread changes anything meanwhile, and no process but ours may.

        It costs no lock of the file and no write, as a transaction does.

        Raises:
            StoreError: SQLite failed.
        """
        with self._mutex, _explained(self._path):
            if self._connection is None:
                raise StoreError("it is closed", where=str(self._path))
            yield self._connection

    def limit(self, size: int) -> None:
        """Let the file have no more than so many bytes, its log left out; 0 for no limit.

        What is in it already stays.  A change for which there is no room fails as on a full disk.

        Raises:
            StoreError: it is closed.
        """
        with self._mutex, _explained(self._path):
            if self._connection is None:
                raise StoreError("it is closed", where=str(self._path))
            pages = max(1, size // _pragma(self._connection, "page_size")) if size else _MOST_PAGES
            self._connection.execute(f"PRAGMA max_page_count = {pages}")

    def close(self) -> None:
        """Let go of the file; once more does nothing."""
        with self._mutex:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            if self._lock is not None:
                self._lock.close()
                self._lock = None

    def _migrate(self, application: int, migrations: Sequence[Sequence[str]]) -> None:
        newest = len(migrations)
        with self.transaction() as connection:
            version = _pragma(connection, "user_version")
            if _pragma(connection, "application_id") != application and not _is_empty(connection):
                raise StoreError(
                    "an SQLite file of another program", where=str(self._path), remedy="Choose another path"
                )
            if version > newest:
                raise StoreError(
                    f"its schema is version {version}, and this agent knows {newest}",
                    where=str(self._path),
                    remedy="Update the agent",
                )
            for statements in migrations[version:]:
                for statement in statements:
                    connection.execute(statement)
            if version < newest:
                connection.execute(f"PRAGMA application_id = {application}")
                connection.execute(f"PRAGMA user_version = {newest}")


def _prepare(connection: sqlite3.Connection, path: Path, log_pages: int) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    # What is deleted is overwritten where that costs nothing.  To overwrite all of it would double what each round
    # writes, and wear the card, for the sake of a state that the next round's replaces anyway.
    connection.execute("PRAGMA secure_delete = FAST")
    connection.execute("PRAGMA cache_size = -64")  # KiB: what is read was mostly just written, and lies in the log
    connection.execute(f"PRAGMA wal_autocheckpoint = {log_pages}")
    connection.execute("PRAGMA journal_size_limit = 4194304")  # bytes
    [verdict] = connection.execute("PRAGMA quick_check(1)").fetchone()
    connection.execute("PRAGMA shrink_memory")  # what the check has read
    if verdict != "ok":
        raise StoreError(f"damaged ({verdict})", where=str(path), remedy=_REMEDIES["SQLITE_CORRUPT"])


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    [value] = connection.execute(f"PRAGMA {name}").fetchone()
    return int(value)


def _is_empty(connection: sqlite3.Connection) -> bool:
    [tables] = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    return bool(tables == 0)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "")
        remedy = next((cure for prefix, cure in _REMEDIES.items() if name.startswith(prefix)), "")
        raise StoreError(f"{error}", where=str(path), remedy=remedy, full=name == "SQLITE_FULL") from error
    except OSError as error:
        full = error.errno in FULL
        remedy = _REMEDIES["SQLITE_FULL" if full else "SQLITE_CANTOPEN"]
        raise StoreError(f"{error.strerror}", where=str(path), remedy=remedy, full=full) from error
