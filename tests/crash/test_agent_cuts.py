"""Promise 4: a device's power is cut at any instant: its store is the old or the new one, and nothing said is lost.

Of one real agent process every change to its directory is logged, from the first start on, and every message that it
sends.  Then each instant of that log is looked at, with every kind of cut.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
from _disk import LEFT, Change, Tree, restore
from _interposer import Watch
from _matrix import SOAK, Row
from _points import named
from _theatre import DEVICES, FLEET, Cut, KilledAgent, Peace

from device_agent.place import Place
from edgepfl import wire
from edgepfl.topics import FromDevice, Topics
from edgepfl.wire import Report
from simulators.broker import BrokerHandle

pytestmark = [
    pytest.mark.broker,
    pytest.mark.promise(4),
    pytest.mark.parametrize("broker", ["mosquitto"], indirect=True),
    pytest.mark.timeout(1800 if SOAK else 300),
]
ALGORITHM = "apfl"
ROUNDS = 3
PUBLISH = 3  # MQTT's packet type


@dataclass(frozen=True)
class Recorded:
    """One agent's life in a run: what it changed and said, and what its reports said of its own state."""

    watch: Watch
    run: str
    kept: Mapping[int, str]


async def record(theatre: KilledAgent) -> Recorded:
    """A run in peace, from the agent's first start."""
    async with theatre.playing():
        peace, _ = await theatre.train(ALGORITHM, (Cut(1, after=False),) * (ROUNDS - 1))
    mine = {result.round: result.kept for result in peace.results if result.device == theatre.who}
    assert len(mine) == ROUNDS + 1
    return Recorded(theatre.victim.watch, theatre.run, mine)


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """A folder that no disk slows down, where there is one."""
    memory = Path("/dev/shm")  # noqa: S108  the disk is the model's
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


def test_at_every_instant_the_store_is_the_old_or_the_new_one(
    tmp_path: Path, broker: BrokerHandle, in_memory: Path
) -> None:
    theatre = KilledAgent(tmp_path.resolve(), broker.url, sends=True)
    recorded = asyncio.run(record(theatre))
    disk, said, seen, names = recorded.watch.begun(), Said(), set[bytes](), count()
    log, folder = recorded.watch.log(), in_memory
    for number, change in enumerate(log):
        disk.do(change)
        said.follow(change)
        if change.kind in "SK":
            continue
        for what in LEFT.values():
            tree = what(disk, number)
            if _is_new(tree, said.reports, seen):
                look(tree, folder / f"cut-{next(names)}", recorded, said.reports)
    assert said.reports == {(recorded.run, number) for number in recorded.kept}
    assert len(seen) > 100
    print(f"{len(log)} changes, {len(seen)} different states of the disk")  # noqa: T201  the measure of it


def look(tree: Tree, folder: Path, recorded: Recorded, reported: set[tuple[str, int]]) -> None:
    """What an agent finds that is started after the cut."""
    restore(tree, folder)
    place = Place.open(folder)
    try:
        standings = place.store.standings()
        settled, pending = standings.get(recorded.run, (-1, None))
        data = place.store.keep(recorded.run).data
        if settled >= 0:
            assert data is not None
            assert hashlib.sha256(data).hexdigest() == recorded.kept[settled]
        newest = settled if pending is None else pending[0]
        assert max((number for _, number in reported), default=-1) <= newest  # nothing that was said is lost
        for waiting in place.store.outbox():
            report = wire.decode(waiting.report)
            assert isinstance(report, Report)
            assert (report.round, report.kept) == (waiting.round, recorded.kept[waiting.round])
        for blobs in (place.fetched, place.offered):
            for path in blobs.directory.iterdir():
                if len(path.name) == 64:  # a whole blob
                    assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
    finally:
        place.store.close()
    shutil.rmtree(folder)


def _is_new(tree: Tree, reported: set[tuple[str, int]], seen: set[bytes]) -> bool:
    digest = hashlib.sha256(repr(sorted(reported)).encode())
    for name, data in sorted(tree.items()):
        digest.update(f"{name} {data is None} {len(data or b'')}".encode())
        digest.update(data or b"")
    fresh = digest.digest() not in seen
    seen.add(digest.digest())
    return fresh


class Said:
    """The reports that a process has sent, out of what went through its sockets."""

    def __init__(self) -> None:
        self._streams: dict[int, bytearray] = {}
        self.reports: set[tuple[str, int]] = set()

    def follow(self, change: Change) -> None:
        if change.kind != "S":
            return
        stream = self._streams.setdefault(change.inode, bytearray())
        if change.payload[:1] == b"\x10":  # a connection begins
            stream.clear()
        stream += change.payload
        for head, body in _packets(stream):
            if head >> 4 == PUBLISH:
                self._published(body, head >> 1 & 3)

    def _published(self, body: bytes, qos: int) -> None:
        length = int.from_bytes(body[:2])
        topic, rest = body[2 : 2 + length].decode(), body[2 + length + (2 if qos else 0) :]
        properties, used = _number(rest)
        if topic == Topics(FLEET).build(FromDevice(DEVICES[0], Report.KIND)):
            report = wire.decode(rest[used + properties :])
            assert isinstance(report, Report)
            self.reports.add((report.run, report.round))


def _packets(stream: bytearray) -> Iterator[tuple[int, bytes]]:
    """Take the whole MQTT packets out of a stream: their first byte, and what follows the length."""
    while len(stream) >= 2:
        length, used = _number(bytes(stream[1:5]))
        end = 1 + used + length
        if not used or len(stream) < end:
            return
        yield stream[0], bytes(stream[1 + used : end])
        del stream[:end]


def _number(data: bytes) -> tuple[int, int]:
    """MQTT's variable byte integer, and how many bytes it has; 0 if it is cut off."""
    value = 0
    for place, byte in enumerate(data[:4]):
        value |= (byte & 127) << (7 * place)
        if byte < 128:
            return value, place + 1
    return 0, 0


@pytest.mark.parametrize("after", [False, True])
def test_an_agent_that_dies_one_fsync_later_at_every_start_takes_part_with_the_same_bits(
    tmp_path: Path,
    broker: BrokerHandle,
    matrix: list[Row],
    *,
    after: bool,
) -> None:
    """From the making of its database on, with all that a first round needs: each start dies one fsync later."""
    theatre = KilledAgent(tmp_path.resolve(), broker.url)
    victim, rows = theatre.victim, list[tuple[Cut, str]]()

    async def opening() -> None:
        victim.kill()
        shutil.rmtree(victim.watch.root)
        for number, left in zip(count(1), _cycle(sorted(LEFT))):
            victim.doom = Cut(number, after=after, left=left)
            victim.start()
            await theatre.until(lambda: not victim.is_alive or theatre.is_quiet(1), even_dead=True)
            victim.watch.disarm()
            if victim.is_alive:
                return
            rows.append((victim.doom, named(victim.watch, len(DEVICES))))
            victim.watch.cut(LEFT[left](victim.watch.disk(), number))

    async def scenario() -> tuple[Peace, Peace]:
        async with theatre.playing():
            peace, _ = await theatre.train(ALGORITHM, ())
            victim.kill()
            found, _ = await theatre.train(ALGORITHM, (), opening=opening)
            return peace, found

    peace, found = asyncio.run(scenario())
    assert found.states == peace.states
    assert found.results == peace.results
    assert len(rows) >= 5
    for cut, point in rows:
        matrix.append(theatre.row(cut, ALGORITHM, f"first round: {point}", None, same=True))


def _cycle(names: list[str]) -> Iterator[str]:
    while True:
        yield from names
