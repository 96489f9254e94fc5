"""The event log: what happens, in order, each event one line of JSON that is the same bytes on every machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import IO

import msgspec

from simulators.virtual.records import Entry

_DIGITS = 3  # of a second


class EventLog:
    """Keeps entries, and writes them as they come.

    Args:
        clock: virtual seconds.
        path: a file to write; None: none.
        place: the directory of all state; errors name files below it, and no entry may depend on where it is.
    """

    def __init__(self, clock: Callable[[], float], path: Path | None = None, place: Path | None = None) -> None:
        self.entries: list[Entry] = []
        self._clock = clock
        self._muted = False
        self._hidden = f"{place}/" if place is not None else ""
        self._file: IO[bytes] | None = path.open("wb") if path is not None else None

    def say(self, who: str, what: str, round_: int = 0, detail: str = "") -> None:
        """Something happened just now."""
        if self._muted:
            return
        if self._hidden:
            detail = detail.replace(self._hidden, "")
        entry = Entry(round(self._clock(), _DIGITS), who, what, round_, detail)
        self.entries.append(entry)
        if self._file is not None:
            self._file.write(line(entry))

    def mute(self) -> None:
        """Say nothing more: the simulation is over, and is being cleared away."""
        self._muted = True

    def close(self) -> None:
        """Write what is left."""
        if self._file is not None:
            self._file.close()


def line(entry: Entry) -> bytes:
    """An entry as it is in the file."""
    return msgspec.json.encode(entry) + b"\n"


def read(path: Path) -> list[Entry]:
    """The entries of a file.

    Raises:
        msgspec.DecodeError: it is none.
    """
    return [msgspec.json.decode(each, type=Entry) for each in path.read_bytes().splitlines()]
