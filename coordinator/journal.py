"""The coordinator's only truth: one SQLite database, written before anything is acted on.

Tables::

    runs         a run: its settings, its bundle, its status
    checkpoints  the server's state after each committed round, as a blob's digest; of the last one, its parts, too
    rounds       the open attempt of each run: the round machine's first state
    events       what happened to it since, in order
    reports      the reports of the open attempt
    accepted     every device that a run knows, and the last round of it that counts (-1: none yet)
    results      what every accepted report said of its device, kept for people and the demo's pictures
    traffic      what each committed round cost the coordinator
    conduct      how each device did that failed in some attempt of a run: see :mod:`coordinator.quarantine`
    exchanges    the secure aggregation of the open attempt: see :mod:`coordinator.secagg.exchange`
    releases     what a private run released, and the open attempt's secret: see :mod:`coordinator.privacy.accounting`

Replaying ``events`` from ``rounds`` gives the round machine's state.  Committing a round is one transaction.

Every transaction is on the disk when it returns, but for signs of life: they come many times a second from a
large fleet, and a power cut that takes the last ones takes nothing, because after it every lease begins anew and every
device is asked for a Hello.  They are
in order before whatever is written next.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, get_args

import msgspec

from coordinator import rounds
from coordinator.config import RunConfig
from coordinator.events import Absent, Event, Present, Progressed
from coordinator.privacy.events import Entry
from coordinator.quarantine import Conduct
from coordinator.rounds import Round
from coordinator.without import Without, without_of
from edgepfl.bus import Traffic
from edgepfl.errors import RunError, StoreError
from edgepfl.secagg.server import Server
from edgepfl.wire import Report, Sha256

T = TypeVar("T")
SCHEMA = 5
_TABLES = """
CREATE TABLE runs (id TEXT PRIMARY KEY, config BLOB, bundle TEXT, status TEXT, why TEXT);
CREATE TABLE checkpoints (run TEXT, round INTEGER, state TEXT, parts BLOB, whole INTEGER, PRIMARY KEY (run, round));
CREATE TABLE rounds (run TEXT PRIMARY KEY, round INTEGER, attempt INTEGER, first BLOB);
CREATE TABLE events (seq INTEGER PRIMARY KEY, run TEXT, kind TEXT, body BLOB);
CREATE TABLE reports (run TEXT, device TEXT, body BLOB, PRIMARY KEY (run, device));
CREATE TABLE accepted (run TEXT, device TEXT, round INTEGER, PRIMARY KEY (run, device));
CREATE TABLE results (run TEXT, round INTEGER, device TEXT, body BLOB, PRIMARY KEY (run, round, device));
CREATE TABLE traffic (run TEXT, round INTEGER, body BLOB, PRIMARY KEY (run, round));
"""
_ADDED = {
    3: "CREATE TABLE conduct (run TEXT, device TEXT, body BLOB, PRIMARY KEY (run, device));",
    4: "CREATE TABLE exchanges (run TEXT PRIMARY KEY, body BLOB);",
    5: "CREATE TABLE releases (run TEXT, round INTEGER, attempt INTEGER, body BLOB, secret BLOB, "
    "PRIMARY KEY (run, round, attempt));",
}
"""What each later schema adds; nothing that was there changes."""
_SIGNS_OF_LIFE = (Absent, Present, Progressed)
_EVENTS = {kind.__name__: kind for kind in get_args(Event)}


class Status(StrEnum):
    """Where a run stands."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"


class RunRow(msgspec.Struct, frozen=True):
    """A run as stored."""

    id: str
    config: RunConfig
    bundle: str
    status: str
    why: str


class Checkpoint(msgspec.Struct, frozen=True):
    """The server's state after a round.

    Attributes:
        round: the committed round, 0 for the first state.
        state: digest of the state's :class:`~coordinator.pieces.Manifest`: equal states have equal ones.
        parts: digests of the blobs that the manifest names.
        whole: whether the coordinator can calculate with it; else aggregators hold it, each its columns.
    """

    round: int
    state: Sha256
    parts: tuple[Sha256, ...]
    whole: bool = True

    @property
    def blobs(self) -> set[str]:
        """The digests of everything that the state is stored in."""
        return {self.state, *self.parts}


class Result(msgspec.Struct, frozen=True):
    """What one accepted report said of its device.

    Attributes:
        round: the one whose update it is in.
        staleness: how many rounds before that its task was handed out: in buffered rounds alone it may be above 0.
    """

    round: int
    device: str
    examples: int
    steps: int
    metrics: dict[str, float]
    seconds: dict[str, float]
    kept: str
    staleness: int = 0

    @property
    def base(self) -> int:
        """The round of its task, by which its device knows it."""
        return self.round - self.staleness


class RoundCost(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a round cost the coordinator.

    Attributes:
        bytes_in: on its socket, from opening to commit.
        bytes_out: likewise.
        seconds: likewise.
        abandoned: attempts at the round before this one, which came to nothing.
        without: see :class:`Without`.
    """

    bytes_in: int
    bytes_out: int
    seconds: float
    abandoned: int = 0
    without: Without = Without()


def cost_of(r: Round, spent: Traffic, seconds: float) -> RoundCost:
    """What a round cost that is about to be committed, from what crossed the socket meanwhile."""
    return RoundCost(spent.bytes_in, spent.bytes_out, seconds, r.attempt, without_of(r))


class Journal:
    """The database.  One connection, one thread."""

    def __init__(self, path: Path) -> None:
        try:
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._migrate(path)
        except sqlite3.Error as error:
            raise StoreError(f"cannot be opened ({error})", where=str(path)) from error

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    # Runs.

    def create(self, run: RunRow, first: Checkpoint) -> None:
        """Add a run and the state it starts from.

        Raises:
            RunError: another run is going on.
        """
        with self._transaction():
            other = self._db.execute("SELECT id FROM runs WHERE status = ?", (Status.RUNNING,)).fetchone()
            if other is not None and run.status == Status.RUNNING:
                raise RunError("another run is active", where=other[0], remedy="Stop it, or wait for its end")
            self._do(
                "INSERT INTO runs VALUES (?, ?, ?, ?, ?)",
                run.id,
                msgspec.json.encode(run.config),
                run.bundle,
                run.status,
                run.why,
            )
            self._put_checkpoint(run.id, first)

    def run(self, run: str = "") -> RunRow | None:
        """A run by its id, or the newest; None if there is none."""
        found = self._runs("WHERE ? IN ('', id) ORDER BY rowid DESC LIMIT 1", run)
        return found[0] if found else None

    def running(self) -> RunRow | None:
        """The run that is going on."""
        found = self._runs("WHERE status = ?", Status.RUNNING)
        return found[0] if found else None

    def end(self, run: str, status: str, why: str = "") -> None:
        """End a run; its open attempt is forgotten."""
        with self._transaction():
            self._do("UPDATE runs SET status = ?, why = ? WHERE id = ?", status, why, run)
            self._clear(run)

    # The open round.

    def open_round(self, run: str, first: Round, conduct: Mapping[str, Conduct] = MappingProxyType({})) -> None:
        """Begin an attempt: its first state takes the place of the last attempt's events and reports.

        Args:
            run: its id.
            first: the attempt's first state.
            conduct: what the last attempt changed of the devices' records, if it was abandoned.
        """
        with self._transaction():
            self._clear(run)
            self._put_conduct(run, conduct)
            self._put_round(run, first)

    def append(self, run: str, event: Event, report: Report | None = None) -> None:
        """Write an event, and the report that it is about, before anything is done about it."""
        with self._transaction(durable=not isinstance(event, _SIGNS_OF_LIFE)):
            if report is not None:
                self._do(
                    "INSERT OR REPLACE INTO reports VALUES (?, ?, ?)", run, report.device, msgspec.json.encode(report)
                )
            self._do(
                "INSERT INTO events (run, kind, body) VALUES (?, ?, ?)",
                run,
                type(event).__name__,
                msgspec.json.encode(event),
            )

    def compact(self, run: str, state: Round) -> None:
        """Put the state that the events lead to in the place of all of them, so that a long round stays small."""
        with self._transaction():
            self._do("UPDATE rounds SET first = ? WHERE run = ?", msgspec.json.encode(state), run)
            self._do("DELETE FROM events WHERE run = ?", run)

    def open_state(self, run: str) -> Round | None:
        """The open attempt's state: its first state, and every event since."""
        row = self._row("SELECT first FROM rounds WHERE run = ?", run)
        if row is None:
            return None
        state = _decode(row[0], Round)
        for kind, body in self._rows("SELECT kind, body FROM events WHERE run = ? ORDER BY seq", run):
            if kind not in _EVENTS:
                raise StoreError(f"an unknown event {kind!r}", where="journal", remedy="Update edgepfl")
            event: Event = _decode(body, _EVENTS[kind])
            state, _ = rounds.advance(state, event)
        return state

    def reports(self, run: str) -> dict[str, Report]:
        """The reports of the open attempt, by device."""
        rows = self._rows("SELECT device, body FROM reports WHERE run = ?", run)
        return {device: _decode(body, Report) for device, body in rows}

    def report(self, run: str, device: str) -> Report:
        """A member's report of the open attempt.

        Raises:
            StoreError: there is none.
        """
        row = self._row("SELECT body FROM reports WHERE run = ? AND device = ?", run, device)
        if row is None:
            raise StoreError("it has no report", where=f"run {run}, device {device}")
        return _decode(row[0], Report)

    def put_exchange(self, run: str, exchange: Server) -> None:
        """Write how far the secure aggregation of the open attempt is."""
        with self._transaction():
            self._do("INSERT OR REPLACE INTO exchanges VALUES (?, ?)", run, msgspec.json.encode(exchange))

    def exchange(self, run: str) -> Server | None:
        """The last secure aggregation that was written of the open attempt."""
        row = self._row("SELECT body FROM exchanges WHERE run = ?", run)
        return None if row is None else _decode(row[0], Server)

    def release(self, run: str, entry: Entry, secret: bytes) -> None:
        """Write a line of a private run's ledger before what it is about is released, and what its noise is made of."""
        with self._transaction():
            body = msgspec.json.encode(entry)
            values = run, entry.round, entry.attempt, body, secret
            self._do("INSERT OR REPLACE INTO releases VALUES (?, ?, ?, ?, ?)", *values)

    def ledger(self, run: str) -> list[Entry]:
        """What a private run released so far, in order."""
        rows = self._rows("SELECT body FROM releases WHERE run = ? ORDER BY round, attempt", run)
        return [_decode(body, Entry) for (body,) in rows]

    def secret(self, run: str, number: int, attempt: int) -> bytes | None:
        """What the noise of the open attempt is made of; None if none was written."""
        which = "WHERE run = ? AND round = ? AND attempt = ? AND length(secret) > 0"
        row = self._row(f"SELECT secret FROM releases {which}", run, number, attempt)  # noqa: S608  our own words
        return None if row is None else row[0]

    # Commits.

    def commit(
        self,
        run: str,
        new: Checkpoint,
        results: tuple[Result, ...],
        cost: RoundCost,
        joined: tuple[str, ...] = (),
        conduct: Mapping[str, Conduct] = MappingProxyType({}),
        following: Round | None = None,
    ) -> None:
        """Close a round: the new state, whose reports count, what they said and who is new, at once or not at all.

        Args:
            run: its id.
            new: the state.
            results: of the reports that count.
            cost: of the round.
            joined: the devices that the run did not know before.
            conduct: what the round changed of the devices' records.
            following: the next round, where devices that are at work go on in it: they must not be forgotten between.
        """
        with self._transaction():
            self._put_checkpoint(run, new)
            self._put_conduct(run, conduct)
            for device in joined:
                self._do("INSERT OR IGNORE INTO accepted VALUES (?, ?, -1)", run, device)
            for result in results:
                body = msgspec.json.encode(result)
                self._do("INSERT INTO results VALUES (?, ?, ?, ?)", run, new.round, result.device, body)
                self._do("INSERT OR REPLACE INTO accepted VALUES (?, ?, ?)", run, result.device, result.base)
            self._do("INSERT INTO traffic VALUES (?, ?, ?)", run, new.round, msgspec.json.encode(cost))
            self._clear(run)
            if following is not None:
                self._put_round(run, following)

    def checkpoint(self, run: str) -> Checkpoint:
        """The state after the last committed round.

        Raises:
            StoreError: there is no such run.
        """
        row = self._row("SELECT round, state, parts, whole FROM checkpoints WHERE run = ? ORDER BY round DESC", run)
        if row is None:
            raise StoreError("it has no checkpoint", where=f"run {run}")
        return Checkpoint(row[0], row[1], _decode(row[2], tuple[str, ...]), bool(row[3]))

    def accepted(self, run: str) -> dict[str, int]:
        """Every device that the run knows, and the last round of it that counts, -1 for none."""
        return dict(self._rows("SELECT device, round FROM accepted WHERE run = ?", run))

    def conduct(self, run: str) -> dict[str, Conduct]:
        """The devices' records, of those that failed in some attempt."""
        rows = self._rows("SELECT device, body FROM conduct WHERE run = ? ORDER BY device", run)
        return {device: _decode(body, Conduct) for device, body in rows}

    def results(self, run: str, after: int = 0) -> tuple[Result, ...]:
        """What every accepted report said, by round and device; of the rounds after a certain one."""
        rows = self._rows("SELECT body FROM results WHERE run = ? AND round > ? ORDER BY round, device", run, after)
        return tuple(_decode(body, Result) for (body,) in rows)

    def counted(self, run: str) -> dict[int, int]:
        """How many reports count in each committed round."""
        return dict(self._rows("SELECT round, count(*) FROM results WHERE run = ? GROUP BY round", run))

    def costs(self, run: str, after: int = 0) -> dict[int, RoundCost]:
        """What each committed round cost; of the rounds after a certain one."""
        rows = self._rows("SELECT round, body FROM traffic WHERE run = ? AND round > ? ORDER BY round", run, after)
        return {number: _decode(body, RoundCost) for number, body in rows}

    def blobs(self) -> set[str]:
        """The digests of all blobs that something stored here still needs: bundles, last states, open uploads."""
        used = {bundle for (bundle,) in self._rows("SELECT bundle FROM runs")}
        latest = "SELECT run FROM checkpoints GROUP BY run"
        used |= {sha256 for (run,) in self._rows(latest) for sha256 in self.checkpoint(run).blobs}
        for (body,) in self._rows("SELECT body FROM reports"):
            upload = _decode(body, Report).upload
            used |= {upload.sha256} if upload else set()
        return used

    # Inside.

    def _migrate(self, path: Path) -> None:
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA:
            raise StoreError(
                f"schema {version}, and this edgepfl knows up to {SCHEMA}", where=str(path), remedy="Update edgepfl"
            )
        if version == 1:
            raise StoreError(
                "an older edgepfl made it, which stored states otherwise",
                where=str(path),
                remedy="End its run with that version, or choose another state directory",
            )
        if version < SCHEMA:
            added = [statement for since, statement in _ADDED.items() if since > version]
            with self._transaction():
                for statement in filter(str.strip, (*(_TABLES.split(";") if version == 0 else ()), *added)):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {SCHEMA}")

    def _put_round(self, run: str, first: Round) -> None:
        body = msgspec.json.encode(first)
        self._do("INSERT INTO rounds VALUES (?, ?, ?, ?)", run, first.number, first.attempt, body)

    def _put_conduct(self, run: str, conduct: Mapping[str, Conduct]) -> None:
        for device, record in conduct.items():
            self._do("INSERT OR REPLACE INTO conduct VALUES (?, ?, ?)", run, device, msgspec.json.encode(record))

    def _put_checkpoint(self, run: str, new: Checkpoint) -> None:
        parts = msgspec.json.encode(new.parts)
        last = "SELECT MAX(round) FROM checkpoints WHERE run = ?"  # its parts are deleted, and may be thousands
        self._do(f"UPDATE checkpoints SET parts = '[]' WHERE run = ? AND round = ({last})", run, run)  # noqa: S608  our own words
        self._do("INSERT INTO checkpoints VALUES (?, ?, ?, ?, ?)", run, new.round, new.state, parts, new.whole)

    def _clear(self, run: str) -> None:
        for table in ("rounds", "events", "reports", "exchanges"):
            self._do(f"DELETE FROM {table} WHERE run = ?", run)  # noqa: S608  the names are the four above
        self._do("UPDATE releases SET secret = x'' WHERE run = ?", run)

    def _runs(self, which: str, value: str) -> list[RunRow]:
        rows = self._rows(f"SELECT id, config, bundle, status, why FROM runs {which}", value)  # noqa: S608  our own words
        return [RunRow(run, _decode(config, RunConfig), *rest) for run, config, *rest in rows]

    def _do(self, statement: str, *values: Any) -> None:  # noqa: ANN401  SQLite takes any of its types
        self._db.execute(statement, values)

    def _rows(self, statement: str, *values: str | int) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"cannot be read ({error})", where="journal", remedy="Check the disk") from error

    def _row(self, statement: str, *values: str | int) -> tuple[Any, ...] | None:
        return next(iter(self._rows(f"{statement} LIMIT 1", *values)), None)

    @contextmanager
    def _transaction(self, *, durable: bool = True) -> Iterator[None]:
        try:
            self._db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            finally:
                if self._db.in_transaction:  # SQLite ends it by itself after some errors
                    self._db.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise StoreError(
                f"cannot be written ({error})", where="journal", remedy="Check the disk's space"
            ) from error


def _decode(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise StoreError(
            f"an entry that this edgepfl cannot read ({error})", where="journal", remedy="Update edgepfl"
        ) from error
