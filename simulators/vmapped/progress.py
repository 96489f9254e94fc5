"""How far a simulation has come: a bar on a terminal, lines in a log."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from rich import progress
from rich.console import Console

from simulators.vmapped.folder import Row

LINES = 20
"""In a log, at most so many for a run."""


class Progress:
    """Shows rounds, loss and seconds on standard error.

    Args:
        title: what the run is.
        rounds: in all.
        done: of them, before.
    """

    def __init__(self, title: str, rounds: int, done: int = 0) -> None:
        self._title, self._rounds = title, rounds
        console = Console(file=sys.stderr)
        self._terminal = console.is_terminal
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[about]}"),
            progress.TimeRemainingColumn(),
            console=console,
            disable=not self._terminal,
        )
        self._task = self._bar.add_task(title, total=rounds, completed=done, about="")
        self._every = max(1, rounds // LINES)

    def see(self, row: Row) -> None:
        """Show a round."""
        loss = row.metrics.get("loss")
        about = f"{row.devices} devices, {row.seconds:.2f} s" + ("" if loss is None else f", loss {loss:.4f}")
        self._bar.update(self._task, completed=row.number, about=about)
        if not self._terminal and (row.number % self._every == 0 or row.number == self._rounds):
            print(f"{self._title}: round {row.number}/{self._rounds}  {about}", file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
