"""Power cuts of a coordinator: its files as each would leave them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from coordinator.journal import Journal
from edgepfl.bus.blobs import BlobStore

WRITES = ("create", "open_round", "append", "commit", "end")


def copied(state: Path, to: Path) -> None:
    """The files as a power cut would leave them, if the disk keeps its word."""
    for source in sorted(state.rglob("*")):
        if source.is_file() and source.suffix != ".sock" and not source.name.endswith("-shm"):
            target = to / source.relative_to(state)
            target.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # a temporary file of the worker
                shutil.copyfile(source, target)


@contextmanager
def cuts_of(state: Path, to: Path) -> Iterator[list[tuple[str, Path]]]:
    """Keep a copy of the state before and after every write of the journal and every blob."""
    cuts: list[tuple[str, Path]] = []

    def around(kind: type, name: str, patch: pytest.MonkeyPatch) -> None:
        write: Callable[..., Any] = getattr(kind, name)

        def cut(when: str) -> None:
            cuts.append((f"{when} {name} {len(cuts)}", to / str(len(cuts))))
            copied(state, cuts[-1][1])

        def wrapped(self: Any, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401  it stands for any method
            cut("before")
            result = write(self, *arguments, **named)
            cut("after")
            return result

        patch.setattr(kind, name, wrapped)

    with pytest.MonkeyPatch.context() as patch:
        for name in WRITES:
            around(Journal, name, patch)
        around(BlobStore, "put", patch)
        around(BlobStore, "keep_only", patch)
        yield cuts
