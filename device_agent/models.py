"""The model that a device ended with, for whoever wants to predict with it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
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


def newest(database: Path) -> Served:
    """The model of the last run that ended, read beside a running agent.

    Args:
        database: the device's store.

    Raises:
        StoreError: there is no store, or no run has ended.
    """
    if not database.is_file():
        raise StoreError("there is no store", where=str(database), remedy="Run the agent with these settings first")
    try:
        with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as store:
            row = store.execute("SELECT run, round, model FROM serving ORDER BY rowid DESC LIMIT 1").fetchone()
    except sqlite3.Error as error:
        raise StoreError(f"it cannot be read ({error})", where=str(database)) from error
    if row is None:
        raise StoreError(
            "no run has come to its end on this device", where=str(database), remedy="Wait for its last round"
        )
    run, number, data = row
    tensors = {name.removeprefix(f"{MODEL}/"): tensor for name, tensor in safetensors.numpy.load(data).items()}
    return Served(run, number, safetensors.numpy.save(tensors))
