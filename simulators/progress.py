"""How far a run has come: a bar on a terminal, lines in a log."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from coordinator.status import RunStatus

LINE_EVERY = 10  # rounds between lines in a log


class RunProgress:
    """Shows a run's rounds, devices, bytes and loss on standard error.

    Args:
        title: what the run is.
        rounds: training rounds in all.
    """

    def __init__(self, title: str, rounds: int) -> None:
        self._title = title
        self._rounds = rounds
        self._console = Console(file=sys.stderr)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[about]}"),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task(title, total=rounds, about="waiting for devices")
        self._shown = -1

    def see(self, status: RunStatus) -> None:
        """Show where the run stands."""
        done = min(status.round, self._rounds)
        self._bar.update(self._task, completed=done, about=_about(status))
        if not self._console.is_terminal and done != self._shown and (done % LINE_EVERY == 0 or done == self._rounds):
            self._shown = done
            print(f"{self._title}: round {done}/{self._rounds}  {_about(status)}", file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()


def _about(status: RunStatus) -> str:
    loss = status.metrics.get("loss")
    parts = [f"{len(status.here)} devices", f"{(status.bytes_in + status.bytes_out) / 1e6:.1f} MB"]
    if loss is not None:
        parts.append(f"loss {loss:.3f}")
    return ", ".join(parts)
