"""What a device has of each run: the model that it ended with, for whoever wants to predict, and its own state."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import safetensors.numpy

from edgepfl.errors import StoreError
from edgepfl.plan import MODEL


@dataclass(frozen=True)
class Served:
    """A device's own model.

    Attributes:
        run: the run it comes from.
        round: the run's last.
        data: safetensors, each parameter under the name it has in the model.
    """

    run: str
    round: int
    data: bytes


@dataclass(frozen=True)
class Held:
    """What is stored of one run.

    Attributes:
        run: its id.
        settled: the last round that counted, -1 for none.
        waiting: whether a report waits for the coordinator's word.
        serves: whether there is a model that predicts.
        size: bytes, without the uploads that wait.
    """

    run: str
    settled: int
    waiting: bool
    serves: bool
    size: int


@dataclass(frozen=True)
class Owned:
    """What a device has of one run, for its owner.

    Attributes:
        run: its id.
        settled: the last round that counted, -1 for none.
        personal: the settled KEEP slots, safetensors, as SLOT/TENSOR; None for none.
        model: the model that predicts, safetensors; None for none.
        report: the encoded report that waits; None for none.
    """

    run: str
    settled: int
    personal: bytes | None
    model: bytes | None
    report: bytes | None


def owned(database: Path) -> list[Owned]:
    """All that is stored of each run, by name; read beside a running agent.

    Raises:
        StoreError: there is no store.
    """
    with _reading(database) as store:
        rows = store.execute(_OWNED).fetchall()
    return [
        Owned(run, settled, personal or None, None if model is None else _parameters(model), report)
        for run, settled, personal, model, report in rows
    ]


def held(database: Path) -> list[Held]:
    """What is stored of each run, by name; read beside a running agent.

    Raises:
        StoreError: there is no store.
    """
    with _reading(database) as store:
        rows = store.execute(_HELD).fetchall()
    return [Held(run, settled, bool(waiting), bool(serves), size) for run, settled, waiting, serves, size in rows]


_HELD = """
SELECT run, coalesce(settled.round, -1), pending.run IS NOT NULL, serving.run IS NOT NULL,
    coalesce(length(own.keep), 0) + coalesce(length(new.keep), 0) + coalesce(length(report), 0)
    + coalesce(length(model), 0)
FROM (SELECT run FROM settled UNION SELECT run FROM pending UNION SELECT run FROM serving)
LEFT JOIN settled USING (run) LEFT JOIN pending USING (run) LEFT JOIN serving USING (run)
LEFT JOIN slots AS own ON own.id = settled.slots LEFT JOIN slots AS new ON new.id = pending.slots
ORDER BY run
"""


_OWNED = """
SELECT run, coalesce(settled.round, -1), keep, model, report
FROM (SELECT run FROM settled UNION SELECT run FROM pending UNION SELECT run FROM serving)
LEFT JOIN settled USING (run) LEFT JOIN pending USING (run) LEFT JOIN serving USING (run)
LEFT JOIN slots ON id = settled.slots
ORDER BY run
"""


def newest(database: Path) -> Served:
    """The model of the last run that ended, read beside a running agent.

    Args:
        database: the device's store.

    Raises:
        StoreError: there is no store, or no run has ended.
    """
    with _reading(database) as store:
        row = store.execute("SELECT run, round, model FROM serving ORDER BY rowid DESC LIMIT 1").fetchone()
    if row is None:
        raise StoreError(
            "no run has come to its end on this device", where=str(database), remedy="Wait for its last round"
        )
    run, number, data = row
    return Served(run, number, _parameters(data))


def _parameters(model: bytes) -> bytes:
    """A stored model with each parameter under its own name."""
    tensors = {name.removeprefix(f"{MODEL}/"): tensor for name, tensor in safetensors.numpy.load(model).items()}
    return safetensors.numpy.save(tensors)


@contextmanager
def _reading(database: Path) -> Iterator[sqlite3.Connection]:
    if not database.is_file():
        raise StoreError("there is no store", where=str(database), remedy="Run the agent with these settings first")
    try:
        with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as store:
            yield store
    except sqlite3.Error as error:
        raise StoreError(
            f"it cannot be read ({error})", where=str(database), remedy="Start the agent once: it repairs or updates it"
        ) from error
