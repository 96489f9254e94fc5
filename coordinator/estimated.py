"""What a run is estimated to cost, as a record and as a table for people."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

_UNITS = ("kB", "MB", "GB", "TB")
_THOUSAND = 1000


class Line(msgspec.Struct, frozen=True):
    """What one kind of thing costs in a round.

    Attributes:
        what: the thing.
        size: bytes of one, without packets.
        coordinator_out: bytes at the coordinator's socket.
        coordinator_in: likewise.
        device_in: bytes at the socket of a member of the cohort.
        device_out: likewise.
    """

    what: str
    size: int
    coordinator_out: int = 0
    coordinator_in: int = 0
    device_in: int = 0
    device_out: int = 0

    @property
    def sockets(self) -> tuple[int, int, int, int]:
        """Bytes out of and into the coordinator, into and out of a device."""
        return self.coordinator_out, self.coordinator_in, self.device_in, self.device_out

    def times(self, count: int) -> Line:
        """So many of them."""
        return Line(self.what, self.size, *(count * each for each in self.sockets))


class Estimate(msgspec.Struct, frozen=True):
    """What a run costs.

    Attributes:
        algorithm: the plan's.
        model: its title.
        codec: of uploads, in words.
        devices: of the fleet.
        goal: members of a cohort.
        rounds: that train; a last one evaluates.
        upload_exact: whether every upload is as long as said; else random changes are, and trained ones about so.
        each_its_own: whether each device gets a download of its own, which is then not broadcast.
        lines: of a round that trains.
        once: the bundle, which crosses once in a device's life.
        round: all lines together.
        run: of all rounds, the last evaluation and the bundle; of a device that is in every cohort.
    """

    algorithm: str
    model: str
    codec: str
    devices: int
    goal: int
    rounds: int
    upload_exact: bool
    each_its_own: bool
    lines: tuple[Line, ...]
    once: Line
    round: Line
    run: Line


def total(what: str, lines: Sequence[Line]) -> Line:
    """All lines together."""
    return Line(what, 0, *(sum(each) for each in zip(*(line.sockets for line in lines), strict=True)))


def table(found: Estimate) -> str:
    """The estimate for people."""
    sent = "each its own download" if found.each_its_own else "one download for all"
    model = found.model or "the bundle's model"
    head = f"{found.algorithm} on {model}: {found.goal} of {found.devices} devices a round, {sent}"
    rows = [
        ("", "one", "coordinator out", "in", "device in", "out"),
        *(_row(line.what, line) for line in found.lines),
        _row("a round", found.round),
        _row("bundle, once", found.once),
        _row(f"{found.rounds} rounds in all", found.run),
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    about = f"{found.codec}: uploads of random changes; those of a training are about as long, or shorter."
    return "\n".join([head, "", *lines, *([] if found.upload_exact else [about]), ""])


def human(size: int) -> str:
    """A number of bytes in three digits or so."""
    if size < _THOUSAND:
        return f"{size} B"
    number, units = size / _THOUSAND, list(_UNITS)
    while number >= _THOUSAND and len(units) > 1:
        number, units = number / _THOUSAND, units[1:]
    return f"{number:.3g} {units[0]}" if number < _THOUSAND - 0.5 else f"{number:.0f} {units[0]}"


def _row(what: str, line: Line) -> tuple[str, ...]:
    return (what, human(line.size) if line.size else "", *map(human, line.sockets))
