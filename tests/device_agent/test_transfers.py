"""An agent's transfers: what it keeps for the next one, what it remembers, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from device_agent.store import Store
from device_agent.transfers import Transfers
from edgepfl.bus.blobs import BlobStore, Room
from edgepfl.bus.chunks import CHUNK, CHUNK_SIZES, Sender
from edgepfl.bus.loopback import LoopbackBroker, LoopbackBus
from edgepfl.bus.transfer import Transfer
from edgepfl.errors import StoreError, TransferError
from edgepfl.topics import Topics
from edgepfl.wire import BlobRef

TOPICS = Topics("home")
BASE = Random(1).randbytes(30 * CHUNK)


class NarrowBus(LoopbackBus):
    """A bus to a broker that takes messages of a certain length."""

    longest = 1 << 20

    @property
    def largest(self) -> int:
        return self.longest


class Board:
    """A device whose transfers are answered by the test."""

    def __init__(self, folder: Path, *, quota: int = 0, settings: Transfer = Transfer()) -> None:  # noqa: B008  frozen
        self.now = 0.0
        self.bus = NarrowBus(LoopbackBroker(), "pi")
        self.store = Store(folder / "store.db")
        self.fetched = BlobStore(folder / "fetched", Room(quota))
        self.offered = BlobStore(folder / "offered", Room(quota))
        self.transfers = Transfers(
            "pi",
            TOPICS,
            self.bus,
            self.store,
            self.fetched,
            self.offered,
            settings=settings,
            clock=lambda: self.now,
        )

    def fetch(self, source: BlobStore, ref: BlobRef, *needed: BlobRef, pace: float = 0.0) -> int:
        """Bytes that cross until a blob is here; each chunk takes ``pace`` seconds."""
        if self.transfers.fetch(ref, {each.sha256 for each in (ref, *needed)}):
            return 0
        crossed, whole, sender = 0, False, Sender(source)
        while not whole:
            for need in self.transfers._receiver.due(self.now):
                for index, data in sender.requested(need, self.now):
                    self.now += pace
                    crossed += len(data)
                    whole |= self.transfers.chunk_came(ref.sha256[:16], index, data) is not None
            self.now = max(self.now, self.transfers.next_due or self.now)
        return crossed


def downloads(source: BlobStore) -> list[BlobRef]:
    """Of three rounds: a base that stays, and a head that changes."""
    return [source.put(BASE + Random(k).randbytes(CHUNK // 2)) for k in range(3)]


def test_what_the_last_round_had_does_not_cross_again(tmp_path: Path) -> None:
    source = BlobStore(tmp_path / "source")
    board, crossed = Board(tmp_path / "pi"), []
    for ref in downloads(source):
        board.transfers.make_way({ref.sha256})
        crossed.append(board.fetch(source, ref))
        board.transfers.keep_only({ref.sha256})  # the work begins
        assert board.fetched.whole() == {ref.sha256}
    assert crossed == [len(BASE) + CHUNK // 2, CHUNK // 2, CHUNK // 2]


def test_nor_does_it_after_a_restart_or_when_the_task_is_replaced_before_it_began(tmp_path: Path) -> None:
    source = BlobStore(tmp_path / "source")
    first, second, third = downloads(source)
    board = Board(tmp_path / "pi")
    board.fetch(source, first)
    board.transfers.keep_only({first.sha256})
    board.store.close()
    board = Board(tmp_path / "pi")
    board.transfers.make_way({second.sha256})
    assert not board.transfers.fetch(second, {second.sha256})
    board.transfers.fetch_no_more()
    board.transfers.make_way({third.sha256})
    assert not board.fetched.part(second.sha256).exists()
    assert board.fetch(source, third) == CHUNK // 2


def test_where_there_is_no_room_for_both_the_old_blob_goes_first(tmp_path: Path) -> None:
    source = BlobStore(tmp_path / "source")
    first, second, _ = downloads(source)
    board = Board(tmp_path / "pi", quota=first.size + CHUNK)
    board.fetch(source, first)
    board.transfers.keep_only({first.sha256})
    board.transfers.make_way({second.sha256})
    assert board.fetch(source, second) == second.size
    assert board.fetched.whole() == {second.sha256}
    large = source.put(bytes(2 * first.size))
    with pytest.raises(TransferError, match="does not fit"):
        board.transfers.fetch(large, {large.sha256})
    with pytest.raises(StoreError, match="does not fit"):
        board.transfers.offer(bytes(2 * first.size))


def test_the_pace_of_the_link_is_remembered_over_restarts(tmp_path: Path) -> None:
    source = BlobStore(tmp_path / "source")
    first, second, _ = downloads(source)
    board = Board(tmp_path / "pi")
    assert board.transfers.chunk == CHUNK
    board.fetch(source, first, pace=1.5)  # 43 KiB a second
    assert board.transfers.chunk == CHUNK // 2
    assert board.transfers.offer(BASE).chunk == CHUNK // 2
    board.store.close()
    board = Board(tmp_path / "pi")
    assert board.transfers.chunk == CHUNK // 2
    board.store.close()
    fixed = Board(tmp_path / "pi", settings=Transfer(chunk_kib=256))
    assert fixed.transfers.chunk == CHUNK_SIZES[-1]
    fixed.fetch(source, second, pace=2.0)
    assert fixed.transfers.chunk == CHUNK_SIZES[-1]


def test_no_chunk_is_longer_than_the_broker_takes(tmp_path: Path) -> None:
    board = Board(tmp_path / "pi", settings=Transfer(chunk_kib=256))
    board.bus.longest = 50_000
    assert board.transfers.offer(BASE).chunk == CHUNK // 2
    board.bus.longest = 10_000
    with pytest.raises(TransferError, match="10000 bytes") as caught:
        board.transfers.offer(BASE)
    assert "max_packet_size" in caught.value.remedy
