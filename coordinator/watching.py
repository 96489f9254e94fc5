"""Showing a run to whoever watches it."""

from __future__ import annotations

from typing import TextIO

import msgspec

from coordinator import lateness
from coordinator.journal import Status
from coordinator.privacy import account
from coordinator.rounds import Phase
from coordinator.status import RunStatus

_SHOWN = ("loss", "accuracy.global", "accuracy.personal")


class Watch:
    """On a terminal one line that changes; in a log a line for every round, and for every wait for devices.

    Args:
        out: where to.
        as_json: write every status as JSON instead.
    """

    def __init__(self, out: TextIO, *, as_json: bool) -> None:
        self._out = out
        self._as_json = as_json
        self._shown: tuple[object, ...] = ()
        self._known: dict[str, float] = {}  # what was shown already

    def see(self, status: RunStatus) -> None:
        """Show a status, if it says something new."""
        ended = status.status != Status.RUNNING
        if self._as_json:
            key: tuple[object, ...] = (status,)
            self._write(key, msgspec.json.encode(status).decode() + "\n")
        elif self._out.isatty():
            self._write((status,), f"\r{line_of(status)}\x1b[K" + ("\n" if ended else ""))
        else:
            waits = status.waiting if status.phase == Phase.SELECTING.value else ""
            self._write((status.status, status.round, waits), self._line(status) + "\n")
            self._known = status.metrics

    def _line(self, status: RunStatus) -> str:
        """The status without accuracies that were measured in an earlier round and shown with it."""
        fresh = {name: value for name, value in status.metrics.items() if self._known.get(name) != value}
        return line_of(msgspec.structs.replace(status, metrics=fresh))

    def _write(self, key: tuple[object, ...], line: str) -> None:
        if key != self._shown:
            self._out.write(line)
            self._out.flush()
        self._shown = key


def text_of(status: RunStatus) -> str:
    """A status as a line for people, and a line for each device."""
    width = max((len(device.name) for device in status.devices), default=0)
    lines = [f"  {device.name:{width}}  {device.state:11}  {device.why}" for device in status.devices]
    private = [] if status.privacy is None else [account.text(status.privacy)]
    return "\n".join([line_of(status), *lines, *private])


def line_of(status: RunStatus) -> str:
    """A status as one line for people."""
    metrics = "".join(f"  {name} {status.metrics[name]:.3f}" for name in _SHOWN if name in status.metrics)
    about = status.waiting or status.why or f"model {status.state_sha256[:16]}"
    if status.buffer is not None and (late := lateness.line(status.buffer)):
        metrics += f"  {late}"
    if status.privacy is not None:
        metrics += f"  {account.line(status.privacy)}"
    if status.doubled:
        about += f"; two agents have one name: {', '.join(status.doubled)}"
    done = min(status.round, status.rounds)
    return f"{status.run}  {status.status}  round {done}/{status.rounds}{metrics}  {about}"
