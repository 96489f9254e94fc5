"""A long run's state in a directory, round by round, so that a killed process loses no more than the round it was in.

::

    run.json         what is being run; another run is refused here
    blobs/           the server's state, by digest
    keep/            the devices' personal state
    rounds.jsonl     what each round gave
    committed.json   the last round that counts, and where its state is

A round writes the personal state into ``keep/pending``, the server's into ``blobs`` and its row into ``rounds.jsonl``.
Then ``committed.json`` is replaced, which is the moment from which the round counts, and the personal state goes to its
places.  Whatever of that was not done is done, or undone, when the run is opened again.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import msgspec

from coordinator import pieces
from coordinator.pieces import Shard
from edgepfl.bus.blobs import BlobStore
from edgepfl.errors import ConfigError, StoreError
from edgepfl.tree import Trees


class Identity(msgspec.Struct, frozen=True):
    """What a run is: the same directory never serves two.

    Attributes:
        algorithm: its name.
        settings: all hyperparameters.
        model: digest of the initial model.
        devices: how many the fleet has.
        fleet: digest of their names.
        steps: minibatch steps of a round.
        seed: of the run.
        decay: of hyperparameters, by round.
        batch: rows of a minibatch.
        data: what the examples are, in words.
    """

    algorithm: str
    settings: dict[str, Any]
    model: str
    devices: int
    fleet: str
    steps: int
    seed: int
    decay: dict[str, float] = {}
    batch: int = 0
    data: str = ""


class Row(msgspec.Struct, frozen=True):
    """What a round gave, for people.

    Attributes:
        number: of the round.
        devices: that trained.
        steps: minibatch steps of each.
        seconds: that the round took.
        metrics: means over the devices, each counting the same; and of an evaluation after the round.
    """

    number: int
    devices: int
    steps: int
    seconds: float
    metrics: dict[str, float] = {}


class Committed(msgspec.Struct, frozen=True):
    """The last round that counts.

    Attributes:
        number: of the round; 0 before the first.
        shard: where the server's state after it is.
    """

    number: int
    shard: Shard


class Folder:
    """The directory of one run.

    Args:
        path: the directory; made if it is missing.
        identity: of the run.

    Raises:
        ConfigError: it holds another run, or another process works on it.
        StoreError: the disk failed.
    """

    def __init__(self, path: Path, identity: Identity) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"it cannot be made ({error.strerror})", where=str(path), remedy="Name another directory"
            ) from error
        self._lock = _locked(path / "lock")
        known = _read(path / "run.json", Identity)
        if known is not None and known != identity:
            self.close()
            apart = [name for name in Identity.__struct_fields__ if getattr(known, name) != getattr(identity, name)]
            raise ConfigError(
                f"it holds another run, with other {', '.join(apart)}",
                where=str(path),
                remedy="Name another directory, or give the options that the run was begun with",
            )
        if known is None:
            _write(path / "run.json", identity)
        self._blobs = BlobStore(path / "blobs")
        self._rounds = path / "rounds.jsonl"
        self._before: tuple[Trees, Shard] | None = None
        self.number = 0

    def load(self, device: str) -> Trees | None:
        """The server's state after the last round that counts, torch; None where none was committed."""
        found = _read(self.path / "committed.json", Committed)
        if found is None:
            self._rounds.unlink(missing_ok=True)
            return None
        self.number = found.number
        rows = [row for row in self.rows() if row.number <= found.number]
        _replace(self._rounds, b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
        state = pieces.take(self._blobs, found.shard, device)
        self._before = state, found.shard
        return state

    def commit(self, number: int, state: Trees, row: Row | None = None) -> None:
        """From now on a round counts."""
        shard = pieces.put(self._blobs, state, self._before)
        if row is not None:
            with self._rounds.open("ab") as file:
                file.write(msgspec.json.encode(row) + b"\n")
        _write(self.path / "committed.json", Committed(number, shard))
        self._before, self.number = (state, shard), number
        self._blobs.keep_only({piece.blob for named in shard.values() for piece in named.values()})

    def rows(self) -> list[Row]:
        """What the rounds gave, as far as whole lines are there."""
        try:
            lines = self._rounds.read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            return []
        return [msgspec.json.decode(line, type=Row) for line in lines]

    def close(self) -> None:
        """Leave the directory to others."""
        os.close(self._lock)


def _locked(file: Path) -> int:
    handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise ConfigError(
            "another process works on it", where=str(file.parent), remedy="End that one, or name another directory"
        ) from error
    return handle


def _read(file: Path, kind: type[Any]) -> Any:  # noqa: ANN401  a record of that kind, or None
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise StoreError(f"it cannot be read ({error})", where=str(file), remedy="Name another directory") from error


def _write(file: Path, record: msgspec.Struct) -> None:
    _replace(file, msgspec.json.encode(record) + b"\n")


def _replace(file: Path, data: bytes) -> None:
    """Write a file anew, as a whole or not at all, whenever the power fails."""
    fresh = file.with_name(f".{file.name}.new")
    with fresh.open("wb") as handle:
        handle.write(data)
        handle.flush()
        os.fsync(handle.fileno())
    fresh.replace(file)
    directory = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
