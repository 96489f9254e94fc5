"""What secure aggregation costs a device and the server, in bytes and processor time, by the pure machines.

One process plays everybody, so what one side costs is the processor time of its own calls.  Keys and shares are
exchanged among all devices; masks are put on by a few of them, since each does the same; the server takes all of them
off.  Dropouts vanish after their shares are dealt, which is when they cost most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from edgepfl import wire
from edgepfl.secagg import device, messages, server
from edgepfl.secagg.device import Device
from edgepfl.secagg.fixed import FixedPoint
from edgepfl.secagg.masks import context
from edgepfl.secagg.messages import Body
from edgepfl.secagg.opening import masks
from edgepfl.secagg.server import Close, Heard, Seats, Server, Tell, due
from edgepfl.seeds import generator
from edgepfl.wire import SecAgg

_RUN, _ROUND, _ATTEMPT = "bench-00000000", 1, 0
_MASKED = 3  # devices whose masking is timed
_CLIP = 1.0
_KB, _MB = 1e3, 1e6


@dataclass(frozen=True)
class SecAggRow:
    """What was measured of one round.

    Attributes:
        n: devices.
        d: numbers in an upload.
        dropouts: devices that vanish after their shares are dealt.
        bits: of each number on the wire.
        neighbours: that each device exchanges masks with.
        threshold: shares that open a secret.
        upload_bytes: of a masked upload; float32 would have ``4 d``.
        sent_bytes: that a device sends besides, on average.
        got_bytes: that it gets besides, on average.
        exchange_seconds: of a device's processor, for keys, shares and what it reveals.
        mask_seconds: likewise, for its masks.
        server_sent_bytes: that the server sends for the exchange.
        server_got_bytes: that it gets for it.
        server_exchange_seconds: of the server's processor, for the exchange.
        fold_seconds: likewise, to add up the uploads.
        open_seconds: likewise, to open the secrets and take the masks off.
    """

    n: int
    d: int
    dropouts: int
    bits: int
    neighbours: int
    threshold: int
    upload_bytes: int
    sent_bytes: float
    got_bytes: float
    exchange_seconds: float
    mask_seconds: float
    server_sent_bytes: int
    server_got_bytes: int
    server_exchange_seconds: float
    fold_seconds: float
    open_seconds: float


@dataclass
class _Meter:
    """Processor time and bytes, by whose they are."""

    seconds: dict[str, float] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=lambda: {"device": 0, "server": 0})

    @contextmanager
    def of(self, what: str) -> Iterator[None]:
        began = time.process_time()
        yield
        self.seconds[what] = self.seconds.get(what, 0.0) + time.process_time() - began

    def crossed(self, who: str, name: str, body: Body) -> None:
        self.sent[who] += len(wire.encode(SecAgg(name, _RUN, _ROUND, _ATTEMPT, messages.encode(body))))


class _Table:
    """The server and its devices."""

    def __init__(self, n: int, neighbours: int) -> None:
        source = generator(0, "bench secagg", n)
        self.draw: Callable[[int], bytes] = source.bytes
        self.meter = _Meter()
        self.names = tuple(f"device-{number:04d}" for number in range(n))
        self.devices: dict[str, Device] = {}
        self.server = Server(_ROUND, _ATTEMPT, 0, 3, neighbours)
        self.about = context(_RUN, _ROUND, _ATTEMPT)

    def exchange(self) -> None:
        """Keys and shares."""
        for name in self.names:
            with self.meter.of("device"):
                self.devices[name], said = device.begin(name, self.about, self.draw)
            self._do(name, said)
        for _ in range(2):
            self.feed(Seats(frozenset(self.names)))

    def feed(self, event: server.Event) -> None:
        """Let the server have an event, and the devices what it tells them."""
        with self.meter.of("server"):
            self.server, effects = server.advance(self.server, event)
        for effect in effects:
            for name in effect.devices if isinstance(effect, Tell) else ():
                with self.meter.of("server"):
                    told = due(self.server, name)
                if told is not None:
                    self.meter.crossed("server", name, told)
                    with self.meter.of("device"):
                        self.devices[name], what = device.advance(self.devices[name], told, self.draw)
                    self._do(name, what)

    def _do(self, name: str, what: device.Do) -> None:
        if isinstance(what, device.Say | device.Reveal):
            self.meter.crossed("device", name, what.body)
            self.feed(Heard(name, what.body))


def run(
    ns: Sequence[int],
    ds: Sequence[int],
    parts: Sequence[float],
    neighbours: int,
    most: int,
    tell: Callable[[str], None],
) -> list[SecAggRow]:
    """Measure each combination.

    Args:
        ns: devices.
        ds: numbers in an upload.
        parts: of the devices that drop out.
        neighbours: of each device; 0 for as many as the graph needs.
        most: the greatest weight of a device.
        tell: told of what is being done.

    Raises:
        ConfigError: sums of so many devices do not fit.
    """
    rows = []
    for n in ns:
        for d in ds:
            for part in parts:
                tell(f"{n} devices, {d} numbers, {part:.0%} dropouts ...")
                rows.append(measured(n, d, round(part * n), neighbours, most))
    return rows


def measured(n: int, d: int, dropouts: int, neighbours: int, most: int) -> SecAggRow:
    """One round.

    Raises:
        ConfigError: sums of so many devices do not fit.
    """
    fixed, table = FixedPoint.of(n, most, _CLIP), _Table(n, neighbours)
    table.exchange()
    vector = fixed.encode(generator(0, "vector").uniform(-1, 1, d), most, where="bench")
    survivors = table.names[dropouts:]
    for name in survivors:
        if name in survivors[:_MASKED]:
            with table.meter.of("mask"):
                table.devices[name], upload = device.mask(table.devices[name], vector)
        else:  # it would do the same
            table.devices[name], _ = device.mask(table.devices[name], vector[:0])
    total = np.zeros_like(vector)
    with table.meter.of("fold"):
        for _ in survivors:
            total += upload
    table.feed(Close(survivors))
    s = table.server
    with table.meter.of("open"):
        for each in masks(s.graph, s.keys, s.threshold, s.dealt, s.survivors, s.revealed, table.about):
            each.take_off(total)
    seconds, sent = table.meter.seconds, table.meter.sent
    return SecAggRow(
        n=n,
        d=d,
        dropouts=dropouts,
        bits=fixed.bits,
        neighbours=len(s.graph[survivors[0]]),
        threshold=s.threshold,
        upload_bytes=vector.nbytes,
        sent_bytes=sent["device"] / n,
        got_bytes=sent["server"] / n,
        exchange_seconds=seconds["device"] / n,
        mask_seconds=seconds["mask"] / _MASKED,
        server_sent_bytes=sent["server"],
        server_got_bytes=sent["device"],
        server_exchange_seconds=seconds["server"],
        fold_seconds=seconds["fold"],
        open_seconds=seconds["open"],
    )


def text(rows: Sequence[SecAggRow]) -> str:
    """A table for people, in Markdown."""
    return "\n".join((" | ".join(("", *_COLUMNS, "")).strip(), "|---" * len(_COLUMNS) + "|", *map(_line, rows)))


_COLUMNS = (
    "devices",
    "numbers",
    "dropouts",
    "neighbours, threshold",
    "upload",
    "device: sends, gets",
    "device: exchange, masks",
    "server: sends, gets",
    "server: exchange, sum, unmasking",
)


def _line(row: SecAggRow) -> str:
    return (
        f"| {row.n} | {row.d:,} | {row.dropouts} | {row.neighbours}, {row.threshold} "
        f"| {_bytes(row.upload_bytes)} ({row.bits} bits) "
        f"| {_bytes(row.sent_bytes)}, {_bytes(row.got_bytes)} "
        f"| {_time(row.exchange_seconds)}, {_time(row.mask_seconds)} "
        f"| {_bytes(row.server_sent_bytes)}, {_bytes(row.server_got_bytes)} "
        f"| {_time(row.server_exchange_seconds)}, {_time(row.fold_seconds)}, {_time(row.open_seconds)} |"
    )


def _bytes(count: float) -> str:
    return f"{count / _MB:.2f} MB" if count >= _MB else f"{count / _KB:.1f} kB"


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.1f} ms"
