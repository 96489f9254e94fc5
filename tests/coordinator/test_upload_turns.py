"""Uploads are asked for a few at a time, and those that cannot be taken are refused at once."""

from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec

from coordinator.uploads import Uploads
from edgepfl.bus.blobs import BlobStore, Room
from edgepfl.bus.chunks import CHUNK, Sender, window_of
from edgepfl.wire import BlobRef, Report

SIZE = 20 * CHUNK
WINDOW = window_of(CHUNK) * CHUNK  # bytes


def report(device: str, ref: BlobRef) -> Report:
    return Report(device, 1, "run", 1, 0, 1, 1, ref, {}, {}, "0" * 64)


class Fleet:
    """Devices with uploads that answer at once."""

    def __init__(self, folder: Path, count: int) -> None:
        self.sources = {f"pi-{k}": BlobStore(folder / f"pi-{k}") for k in range(count)}
        self.senders = {name: Sender(blobs) for name, blobs in self.sources.items()}
        self.refs = {n: blobs.put(Random(n).randbytes(SIZE)) for n, blobs in self.sources.items()}

    def answer(self, uploads: Uploads, now: float) -> tuple[set[str], set[str]]:
        """Whom was asked, and whose upload is here now."""
        asked, here = set(), set()
        for device, need in uploads.due(now):
            asked.add(device)
            for index, data in self.senders[device].requested(need, now):
                news = uploads.chunk(device, need.sha256[:16], index, data, now)
                here |= {each.device for each in news.complete}
        return asked, here


def test_no_more_is_under_way_than_may_be_and_all_have_their_turn(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 6)
    uploads = Uploads(BlobStore(tmp_path / "here"), under_way=2 * WINDOW)
    for device, ref in fleet.refs.items():
        assert uploads.take(report(device, ref), ref, 0.0).alive
    assert uploads.waiting == 4
    now, here = 0.0, set[str]()
    while len(here) < 6:
        assert now < 100
        waiting = uploads.waiting
        asked, complete = fleet.answer(uploads, now)
        assert len(asked) <= 2
        here |= complete
        assert uploads.waiting <= waiting
        now += 1.0
    assert uploads.waiting == 0


def test_an_upload_without_room_is_refused_before_its_first_chunk(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 3)
    uploads = Uploads(BlobStore(tmp_path / "here", Room(quota=2 * SIZE)))
    first, second, third = fleet.refs.items()
    for device, ref in (first, second):
        assert not uploads.take(report(device, ref), ref, 0.0).wrong
    news = uploads.take(report(*third), third[1], 0.0)
    assert [each.device for each in news.wrong] == [third[0]]
    assert "does not fit" in news.why
    assert "quota_mib" in news.why
    assert fleet.answer(uploads, 0.0)[0] == {first[0], second[0]}


def test_a_device_that_comes_back_is_asked_again_at_once(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 1)
    uploads = Uploads(BlobStore(tmp_path / "here"))
    ((device, ref),) = fleet.refs.items()
    uploads.take(report(device, ref), ref, 0.0)
    assert uploads.due(0.0)
    assert not uploads.due(0.2)  # the Need went to nobody: the device was cut off
    uploads.take(report(device, ref), ref, 0.3)
    assert uploads.due(0.3)


def test_equal_uploads_in_chunks_of_two_sizes_are_one(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 1)
    uploads = Uploads(BlobStore(tmp_path / "here"))
    ((device, ref),) = fleet.refs.items()
    fine = fleet.sources[device].ref(ref.sha256, CHUNK // 4)
    uploads.take(report(device, ref), ref, 0.0)
    assert not uploads.take(report("other", fine), fine, 0.0).wrong
    assert {need.chunk for _, need in uploads.due(0.0)} == {CHUNK}
    lie = msgspec.structs.replace(ref, chunks=bytes(len(ref.chunks)))
    assert uploads.take(report("liar", lie), lie, 0.0).wrong


def test_chunks_of_strangers_mean_nothing(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 1)
    uploads = Uploads(BlobStore(tmp_path / "here"))
    ((device, ref),) = fleet.refs.items()
    uploads.take(report(device, ref), ref, 0.0)
    ((_, need),) = uploads.due(0.0)
    for index, data in fleet.senders[device].requested(need, 0.0):
        uploads.chunk("stranger", need.sha256[:16], index, data, 0.0)
    assert (tmp_path / "here" / f"{ref.sha256}.part").stat().st_blocks == 0
