"""Chunks on their way out wait for room, and are not sent twice."""

from __future__ import annotations

import logging
from pathlib import Path
from random import Random
from typing import Literal

import pytest

from edgepfl.bus.blobs import BlobStore
from edgepfl.bus.chunks import CHUNK, QUIET, Sender
from edgepfl.bus.loopback import LoopbackBroker, LoopbackBus
from edgepfl.bus.outflow import AHEAD, Outflow
from edgepfl.errors import BusError
from edgepfl.topics import Chunk, Topics
from edgepfl.wire import BlobRef, Need

TOPICS = Topics("home")
DATA = Random(1).randbytes(20 * CHUNK)


class SlowBus(LoopbackBus):
    """A bus whose messages are acknowledged when the test says so."""

    def __init__(self, *, longest: int = 1 << 20) -> None:
        super().__init__(LoopbackBroker(), "pi")
        self.sent: list[int] = []
        self.room = True
        self._longest = longest
        self._unacknowledged: list[int] = []

    @property
    def backlog(self) -> int:
        return sum(self._unacknowledged)

    def publish(self, topic: str, payload: bytes, *, qos: Literal[0, 1] = 1) -> bool:  # noqa: ARG002  a bus's
        if len(payload) > self._longest:
            raise BusError("it is too long", where="bus")
        if self.room:
            address = TOPICS.parse(topic)
            assert isinstance(address, Chunk)
            assert payload == DATA[address.index * CHUNK : (address.index + 1) * CHUNK]
            self.sent.append(address.index)
            self._unacknowledged.append(len(payload))
        return self.room

    def acknowledge(self, count: int) -> None:
        del self._unacknowledged[:count]


def outflow(folder: Path, bus: SlowBus) -> tuple[Outflow, BlobRef, BlobStore]:
    blobs = BlobStore(folder)
    return Outflow(Sender(blobs), bus, lambda sha16, k: TOPICS.build(Chunk(sha16, k, "pi"))), blobs.put(DATA), blobs


def test_few_chunks_are_with_the_bus_at_a_time_and_all_go_in_the_end(tmp_path: Path) -> None:
    bus = SlowBus()
    out, ref, _ = outflow(tmp_path, bus)
    out.needed(Need(ref.sha256, ((0, 10),)), 1.0)
    assert bus.sent == [0, 1, 2, 3] == list(range(AHEAD))
    for sent in range(5, 11):
        bus.acknowledge(1)
        out.pump(1.0)
        assert bus.sent == list(range(sent))
    assert out.waiting == 0


def test_what_waits_or_is_with_the_bus_is_not_queued_again(tmp_path: Path) -> None:
    bus = SlowBus()
    out, ref, _ = outflow(tmp_path, bus)
    for second in range(20):
        out.needed(Need(ref.sha256, ((0, 6),)), float(second))  # a slow link: the receiver asks again and again
    bus.acknowledge(4)
    out.pump(20.0)
    bus.acknowledge(2)
    assert bus.sent == [0, 1, 2, 3, 4, 5]
    out.needed(Need(ref.sha256, ((0, 1),)), 30.0)  # and now it was lost behind the broker
    assert bus.sent[6:] == [0]


def test_a_bus_without_room_loses_nothing(tmp_path: Path) -> None:
    bus = SlowBus()
    bus.room = False
    out, ref, _ = outflow(tmp_path, bus)
    out.needed(Need(ref.sha256, ((0, 3),)), 1.0)
    assert (bus.sent, out.waiting) == ([], 3)
    bus.room = True
    out.pump(1.1)
    assert (bus.sent, out.waiting) == ([0, 1, 2], 0)


def test_a_repetition_waits_for_others_who_want_it_too(tmp_path: Path) -> None:
    bus = SlowBus()
    out, ref, _ = outflow(tmp_path, bus)
    out.needed(Need(ref.sha256, ((0, 1),)), 1.0)
    bus.acknowledge(1)
    for late in (0.1, 0.2, 0.3):  # three who began to listen after it was sent
        out.needed(Need(ref.sha256, ((0, 1),), quiet=0.05), 1.0 + late)
    assert (bus.sent, out.waiting) == ([0], 1)
    out.pump(1.0 + QUIET)
    assert (bus.sent, out.waiting) == ([0, 0], 0)


def test_a_lost_connection_empties_the_queue_and_everything_may_be_asked_for_again(tmp_path: Path) -> None:
    bus = SlowBus()
    out, ref, _ = outflow(tmp_path, bus)
    out.needed(Need(ref.sha256, ((0, 9),)), 1.0)
    bus.acknowledge(9)
    out.forget()
    assert out.waiting == 0
    out.needed(Need(ref.sha256, ((0, 2),), quiet=9.0), 1.1)
    assert bus.sent == [0, 1, 2, 3, 0, 1]


def test_a_blob_that_went_and_a_chunk_that_is_too_long_block_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bus = SlowBus(longest=CHUNK)
    out, ref, blobs = outflow(tmp_path, bus)
    out.needed(Need(ref.sha256, ((0, 9),), 4 * CHUNK), 1.0)
    out.pump(1.0)
    said = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert (bus.sent, out.waiting, len(said)) == ([], 0, 1)  # said once, not for each chunk
    out.needed(Need(ref.sha256, ((0, 9),)), 1.0)
    blobs.delete(ref.sha256)
    bus.acknowledge(9)
    out.pump(1.0)
    assert (bus.sent, out.waiting) == ([0, 1, 2, 3], 1)
    out.pump(1.0)
    assert out.waiting == 0
