"""A blob that does not fit is refused before its first chunk."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from edgepfl.bus import blobs as module
from edgepfl.bus.blobs import BlobStore, Room
from edgepfl.bus.chunks import CHUNK, Receiver, Sender
from edgepfl.errors import StoreError, TransferError

SIZE = 10 * CHUNK


def test_a_quota_counts_what_is_here_what_is_coming_and_what_lies_beside(tmp_path: Path) -> None:
    source, beside = BlobStore(tmp_path / "source"), BlobStore(tmp_path / "beside")
    refs = [source.put(Random(k).randbytes(SIZE)) for k in range(4)]
    beside.put(bytes(CHUNK))
    target = BlobStore(tmp_path / "target", Room(quota=3 * SIZE + CHUNK, beside=(beside.directory,)))
    receiver = Receiver(target)
    for ref in refs[:3]:
        assert not receiver.want(ref, 0.0)
    assert not receiver.want(refs[0], 0.0)  # it is counted once
    with pytest.raises(TransferError, match="does not fit") as caught:
        receiver.want(refs[3], 0.0)
    assert "quota_mib" in caught.value.remedy
    assert not target.part(refs[3].sha256).exists()
    again = Receiver(target)  # after a restart what is coming is still promised its room
    assert not again.want(refs[0], 0.0)
    with pytest.raises(TransferError, match="does not fit"):
        again.want(refs[3], 0.0)
    beside.put(bytes(9))
    target.delete(refs[1].sha256)
    with pytest.raises(TransferError, match="does not fit"):
        again.want(refs[3], 0.0)  # for nine bytes beside it
    beside.keep_only(())
    assert not again.want(refs[3], 0.0)


def test_a_disk_keeps_its_reserve_and_what_it_has_promised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = [3 * SIZE]
    monkeypatch.setattr(module, "free_bytes", lambda _: free[0])
    source = BlobStore(tmp_path / "source")
    refs = [source.put(Random(k).randbytes(SIZE)) for k in range(3)]
    receiver = Receiver(BlobStore(tmp_path / "target", Room(reserve=CHUNK)))
    assert not receiver.want(refs[0], 0.0)
    assert not receiver.want(refs[1], 0.0)  # both are promised, and nothing is written yet
    with pytest.raises(TransferError, match=f"{SIZE - CHUNK} bytes to spare"):
        receiver.want(refs[2], 0.0)
    for index, data in Sender(source).requested(receiver.due(0.0)[0], 0.0):
        receiver.chunk(refs[0].sha256[:16], index, data, 0.0)
        free[0] -= len(data)
    with pytest.raises(TransferError, match=f"{SIZE - CHUNK} bytes to spare"):
        receiver.want(refs[2], 0.0)  # what is written is promised no longer
    receiver.cancel(refs[1].sha256)
    assert not receiver.want(refs[2], 0.0)


def test_there_is_no_limit_where_none_is_set_but_the_disk(tmp_path: Path) -> None:
    BlobStore(tmp_path).check_room("0" * 64, CHUNK)
    with pytest.raises(StoreError, match="does not fit"):
        BlobStore(tmp_path).check_room("0" * 64, 1 << 60)
