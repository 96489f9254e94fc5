"""A graph's first run, in a process of its own.

ExecuTorch checks that a file is consistent, but not everything that a file can say: of 3000 files with one flipped bit,
14 still ended the process.  A graph comes over the network, so whatever it does to a process, it does it there first.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from signal import Signals

from device_agent.runners.library import REMEDY
from edgepfl.errors import GraphFailed

_PATIENCE = 120.0  # seconds: a slow board's load and one step


def attempt(step: Path, data: bytes, where: str) -> None:
    """Load a graph and run it once on zeros.

    Args:
        step: the program that runs a graph by itself.
        data: the graph's file.
        where: what the error calls it.

    Raises:
        GraphFailed: it cannot be loaded or run, crashes, or does not end.
    """
    try:
        done = subprocess.run([step, "-"], input=data, capture_output=True, check=False, timeout=_PATIENCE)  # noqa: S603  our own program
    except OSError as error:
        raise GraphFailed(f"{step} cannot be started ({error.strerror})", where=where, remedy=REMEDY) from error
    except subprocess.TimeoutExpired:
        raise _failed(f"does not end within {_PATIENCE:.0f} s", where) from None
    if done.returncode < 0:
        raise _failed(f"ends its process with {_signal(-done.returncode)}", where)
    if done.returncode > 0:
        reason = done.stderr.decode(errors="replace").strip().removeprefix(f"{step.name}: ")
        raise _failed(f"fails: {reason}", where)


def _failed(what: str, where: str) -> GraphFailed:
    return GraphFailed(
        f"ExecuTorch could not load it: its first run {what}", where=where, remedy="Export the bundle again"
    )


def _signal(number: int) -> str:
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"
