"""The device's only truth: what it keeps from round to round, and the reports whose acceptance it does not know.

Theory of operation
===================
Personal state is right only if it changes exactly as often as the coordinator counts the device's reports.  So new KEEP
slots are *pending* until the coordinator's word, then *settled* or dropped; a report lives and dies with them, and both
are one row, written in one transaction.  For one run, with settled round ``s`` and pending ``(p, b)`` (round, attempt):

=================================================== ===========================================================
a Task says: last accepted ``q``, open ``(r, a)``   :meth:`Store.settle`
=================================================== ===========================================================
``q < s``                                           an old message, delivered again: nothing changes
``p == q``                                          pending is settled, ``s = q``
``p > q`` and ``(p, b) >= (r, a)``                  stays: its report is wanted (or the message is an old one)
``p > q`` and ``(p, b) < (r, a)``                   dropped: its round ended without it
``p < q``                                           dropped: a later state was accepted, which is not here
and then ``s < q``                                  *behind*: this store is an older copy of itself, or new
=================================================== ===========================================================

=================================================== ===========================================================
a Commit says: round ``r`` is over                  :meth:`Store.close_round`
=================================================== ===========================================================
``p == r``, our report counts                       pending is settled, ``s = r``
``p == r``, it does not                             dropped
``p != r``                                          nothing changes: it speaks of no other round
=================================================== ===========================================================

Training always starts from the settled state, so a round that is done again gives the same result.

What is durable when
====================
Each method that changes something is one transaction, and COMMIT returns when the write-ahead log is on the disk
(``synchronous = FULL``): a power cut leaves the state before a method or after it, and no other.  KEEP slots lie in a
table of their own, which the settled and the pending row point to, so settling moves a number: a round writes its KEEP
slots once into the log and once into the file.  What lies beside the database, and in which order it is written, says
:mod:`device_agent.place`.

=================================== ========================================================================
a power cut                         leaves
=================================== ========================================================================
before the commit of a result       nothing of it: the task comes again and is done again
after it                            the pending row: its report is sent again until it is answered
before a word is taken              the pending row: the word comes again with the next task, or as an answer
after it                            the settled row, or no row
=================================== ========================================================================
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import NamedTuple, Self

from device_agent.database import LOG_PAGES, Database
from edgepfl.errors import StoreError
from edgepfl.seeds import derive

NONE = -1
"""The round before the first."""

_APPLICATION = 0x65706673  # "epfs", in the file's header
_MIGRATIONS = (
    (
        "CREATE TABLE facts (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
        "CREATE TABLE settled (run TEXT PRIMARY KEY, round INTEGER NOT NULL, keep BLOB NOT NULL)",
        """CREATE TABLE pending (run TEXT PRIMARY KEY, round INTEGER NOT NULL, attempt INTEGER NOT NULL,
        keep BLOB NOT NULL, report BLOB NOT NULL, upload BLOB NOT NULL)""",
        "CREATE TABLE serving (run TEXT PRIMARY KEY, round INTEGER NOT NULL, model BLOB NOT NULL)",
        "INSERT INTO facts VALUES ('identity', random() & ((1 << 40) - 1)), ('session', 0)",
    ),
    (  # KEEP slots have rows of their own, so that settling them copies nothing
        "CREATE TABLE slots (id INTEGER PRIMARY KEY, keep BLOB NOT NULL)",
        "INSERT INTO slots SELECT 2 * rowid, keep FROM settled UNION ALL SELECT 2 * rowid + 1, keep FROM pending",
        "ALTER TABLE settled RENAME TO settled_1",
        "ALTER TABLE pending RENAME TO pending_1",
        "CREATE TABLE settled (run TEXT PRIMARY KEY, round INTEGER NOT NULL, slots INTEGER NOT NULL)",
        """CREATE TABLE pending (run TEXT PRIMARY KEY, round INTEGER NOT NULL, attempt INTEGER NOT NULL,
        slots INTEGER NOT NULL, report BLOB NOT NULL, upload BLOB NOT NULL)""",
        "INSERT INTO settled SELECT run, round, 2 * rowid FROM settled_1",
        "INSERT INTO pending SELECT run, round, attempt, 2 * rowid + 1, report, upload FROM pending_1",
        "DROP TABLE settled_1",
        "DROP TABLE pending_1",
    ),
)


class Kept(NamedTuple):
    """Settled KEEP slots.

    Attributes:
        round: the last one whose report is known to be accepted, -1 for none.
        data: the slots by :mod:`edgepfl.codec`; None for none.
    """

    round: int
    data: bytes | None


class Outgoing(NamedTuple):
    """A report whose acceptance is not known: to be sent again at every connection and with every repeated task.

    Attributes:
        report: the encoded Report.
        upload: the blob it refers to, if that does not ride in it.
    """

    run: str
    round: int
    attempt: int
    report: bytes
    upload: bytes


class Settlement(NamedTuple):
    """What holds after :meth:`Store.settle`.

    Attributes:
        settled: the settled round, -1 for none.
        pending: round and attempt of the report that still waits for the coordinator's word.
        behind: the coordinator accepted a later round than this store has; training goes on from the older state.
    """

    settled: int
    pending: tuple[int, int] | None
    behind: bool


class Store:
    """An SQLite file.  One process at a time may have it; its threads may share it.

    Every method is one transaction, or reads one state: a change is done for good when it returns, or not at all.

    Args:
        path: the file; it and its directory are made if missing, readable by their owner only.
        log_pages: see :class:`~device_agent.database.Database`.

    Raises:
        StoreError: every method, when the file cannot be used.
    """

    def __init__(self, path: Path, log_pages: int = LOG_PAGES) -> None:
        self._path = path
        self._database = Database(path, _APPLICATION, _MIGRATIONS, log_pages)
        # What the rows say, as far as it is known: nobody else writes them, and each round asks several times.
        self._rounds: dict[str, tuple[int, tuple[int, int] | None]] = {}  # settled and pending, by run
        self._waiting: list[Outgoing] | None = None

    def limit(self, size: int) -> None:
        """Let the file have no more than so many bytes, see :meth:`Database.limit`; 0 for no limit."""
        self._database.limit(size)

    def keep(self, run: str) -> Kept:
        """The settled KEEP slots of a run."""
        with self._database.reading() as database:
            row = database.execute(
                "SELECT round, keep FROM settled JOIN slots ON id = slots WHERE run = ?", (run,)
            ).fetchone()
        return Kept(*row) if row else Kept(NONE, None)

    def commit_pending(
        self,
        run: str,
        round_: int,
        attempt: int,
        *,
        keep: bytes,
        report: bytes,
        upload: bytes = b"",
        serving: bytes | None = None,
        facts: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Make new KEEP slots pending and put their report in the outbox; they replace older pending ones of the run.

        ``facts`` become true with them: see :meth:`fact`.  So does the model that predicts, if one is given.

        Raises:
            StoreError: the round is settled already, or a later one is pending.
        """
        with self._changing(run) as database:
            settled, pending = self._standing(database, run)
            if round_ <= settled or (pending is not None and (round_, attempt) < pending):
                raise StoreError(
                    f"round {round_}, attempt {attempt} comes after settled round {settled}, pending {pending}",
                    where=f"{self._path}, run {run}",
                    remedy="If the coordinator was set back to an older state, start a run with a new name",
                )
            if pending is not None:
                self._drop(database, run, settled)
            slots = database.execute("INSERT INTO slots (keep) VALUES (?)", (keep,)).lastrowid
            database.execute(
                "INSERT INTO pending VALUES (?, ?, ?, ?, ?, ?)", (run, round_, attempt, slots, report, upload)
            )
            if serving is not None:
                _serve(database, run, round_, serving)
            if facts:
                database.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", facts.items())
            self._rounds[run] = settled, (round_, attempt)
            if self._waiting is not None:
                others = (each for each in self._waiting if each.run != run)
                self._waiting = sorted((*others, Outgoing(run, round_, attempt, report, upload)))

    def outbox(self) -> list[Outgoing]:
        """Every report whose acceptance is not known, by run."""
        with self._database.reading() as database:
            if self._waiting is None:
                rows = database.execute("SELECT run, round, attempt, report, upload FROM pending ORDER BY run")
                self._waiting = [Outgoing(*row) for row in rows]
            return list(self._waiting)

    def standings(self) -> dict[str, tuple[int, tuple[int, int] | None]]:
        """Of each run that anything is stored of: the settled round (-1: none), and round and attempt of what waits."""
        with self._database.reading() as database:
            settled = dict(database.execute("SELECT run, round FROM settled"))
            rows = database.execute("SELECT run, round, attempt FROM pending")
            pending = {run: (round_, attempt) for run, round_, attempt in rows}
        return {run: (settled.get(run, NONE), pending.get(run)) for run in sorted(settled.keys() | pending.keys())}

    def settle(self, run: str, accepted_round: int, open_round: int, open_attempt: int) -> Settlement:
        """Take a Task's word on this device's reports; the table above says how.

        Args:
            run: the run.
            accepted_round: the last round whose report of this device counts, -1 for none.
            open_round: the task's round.
            open_attempt: the task's attempt.
        """
        with self._database.reading() as database:
            settled, pending = self._standing(database, run)
            if pending is None:  # nothing can change: no need to wait for the disk
                return Settlement(settled, None, behind=settled < accepted_round)
        with self._changing(run) as database:
            settled, pending = self._standing(database, run)
            if pending is not None and accepted_round >= settled:
                if pending[0] == accepted_round:
                    self._promote(database, run, pending)
                elif pending[0] < accepted_round or pending < (open_round, open_attempt):
                    self._drop(database, run, settled)
            settled, pending = self._standing(database, run)
            return Settlement(settled, pending, behind=settled < accepted_round)

    def close_round(self, run: str, round_: int, *, accepted: bool) -> None:
        """Take a Commit's word on this device's report of a round; the table above says how."""
        with self._database.reading() as database:
            _, pending = self._standing(database, run)
            if pending is None or pending[0] != round_:
                return
        with self._changing(run) as database:
            settled, pending = self._standing(database, run)
            if pending is None or pending[0] != round_:
                return
            if accepted:
                self._promote(database, run, pending)
            else:
                self._drop(database, run, settled)

    def forget(self, run: str) -> None:
        """Remove everything of a run, and overwrite where it was in the file."""
        with self._changing(run, overwriting=True) as database:
            self._know_nothing_of(run)
            for table in ("settled", "pending"):
                _free(database, table, run)
            for table in ("settled", "pending", "serving"):
                database.execute(f"DELETE FROM {table} WHERE run = ?", (run,))  # noqa: S608  our own names

    def claim(self, device: str) -> None:
        """Make this the store of a device, for good: what it keeps is one device's own.

        Raises:
            StoreError: it is another device's.
        """
        owner = derive(0, "owner", device)  # the facts are numbers
        with self._database.transaction() as database:
            database.execute("INSERT OR IGNORE INTO facts VALUES ('owner', ?)", (owner,))
            found = _fact(database, "owner")
        if found != owner:
            raise StoreError(
                "it holds the personal state of another device",
                where=str(self._path),
                remedy=f"Give {device} a state directory of its own",
            )

    def fact(self, name: str) -> int | None:
        """What was last noted of the device under a name, if anything was."""
        with self._database.reading() as database:
            row: tuple[int] | None = database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else row[0]

    def note(self, name: str, value: int) -> None:
        """Note something of the device, for :meth:`fact`."""
        with self._database.transaction() as database:
            database.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def identity(self) -> int:
        """A number below 2^40, drawn once when the store was made: a new card is another incarnation of the device."""
        with self._database.reading() as database:
            return _fact(database, "identity")

    def next_session(self) -> int:
        """A number that is larger at each call, also across restarts; for each start of the agent."""
        with self._database.transaction() as database:
            database.execute("UPDATE facts SET value = value + 1 WHERE name = 'session'")
            return _fact(database, "session")

    @contextmanager
    def _changing(self, run: str, *, overwriting: bool = False) -> Iterator[sqlite3.Connection]:
        """A transaction that changes what is stored of a run; if it fails, the rows must be asked again."""
        try:
            with self._database.transaction(overwriting=overwriting) as database:
                yield database
        except BaseException:
            self._know_nothing_of(run)
            raise

    def _standing(self, database: sqlite3.Connection, run: str) -> tuple[int, tuple[int, int] | None]:
        """The settled round, -1 for none, and round and attempt of what is pending; inside a use of the database."""
        found = self._rounds.get(run)
        if found is None:
            settled = database.execute("SELECT round FROM settled WHERE run = ?", (run,)).fetchone()
            pending = database.execute("SELECT round, attempt FROM pending WHERE run = ?", (run,)).fetchone()
            found = self._rounds[run] = (settled[0] if settled else NONE), pending
        return found

    def _know_nothing_of(self, run: str) -> None:
        self._rounds.pop(run, None)
        self._waiting = None

    def _promote(self, database: sqlite3.Connection, run: str, pending: tuple[int, int]) -> None:
        _free(database, "settled", run)
        database.execute("INSERT OR REPLACE INTO settled SELECT run, round, slots FROM pending WHERE run = ?", (run,))
        self._remove(database, run, pending[0])

    def _drop(self, database: sqlite3.Connection, run: str, settled: int) -> None:
        _free(database, "pending", run)
        self._remove(database, run, settled)

    def _remove(self, database: sqlite3.Connection, run: str, settled: int) -> None:
        """Nothing is pending any more, and this round is the settled one."""
        database.execute("DELETE FROM pending WHERE run = ?", (run,))
        self._rounds[run] = settled, None
        if self._waiting is not None:
            self._waiting = [each for each in self._waiting if each.run != run]

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _serve(database: sqlite3.Connection, run: str, round_: int, model: bytes) -> None:
    """Predict with this model from now on, unless there is one of a later round."""
    database.execute(
        "INSERT INTO serving VALUES (?, ?, ?) ON CONFLICT (run) DO UPDATE"
        " SET round = excluded.round, model = excluded.model WHERE excluded.round >= serving.round",
        (run, round_, model),
    )


def _free(database: sqlite3.Connection, table: str, run: str) -> None:
    """Delete the KEEP slots that a row of a table has."""
    database.execute(f"DELETE FROM slots WHERE id = (SELECT slots FROM {table} WHERE run = ?)", (run,))  # noqa: S608  our own names


def _fact(database: sqlite3.Connection, name: str) -> int:
    [value] = database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
    return int(value)
