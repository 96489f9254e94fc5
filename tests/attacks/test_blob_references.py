"""Threat: a reference that lies about its blob, to make the receiver reserve memory or disk, or take other bytes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from edgepfl import wire
from edgepfl.bus.blobs import BlobStore
from edgepfl.bus.chunks import BLOB_LIMIT, Receiver, check_ref
from edgepfl.errors import TransferError, WireError
from edgepfl.wire import BlobRef, Report

DATA = b"an upload"
SHA = hashlib.sha256(DATA).hexdigest()

LIES: dict[str, BlobRef] = {
    "a terabyte": BlobRef(SHA, 1 << 40, chunks=bytes(16)),
    "one byte past the limit": BlobRef(SHA, BLOB_LIMIT + 1, chunks=bytes(16)),
    "more than its digests cover": BlobRef(SHA, 1 << 20, chunks=bytes(16)),
    "fewer bytes than its digests cover": BlobRef(SHA, 1, chunks=bytes(160)),
    "half a digest": BlobRef(SHA, 1, chunks=bytes(8)),
    "more than is inline": BlobRef(SHA, 1 << 20, inline=DATA),
    "less than is inline": BlobRef(SHA, 1, inline=DATA),
    "both inline and in chunks": BlobRef(SHA, len(DATA), inline=DATA, chunks=bytes(16)),
    "nothing at all": BlobRef(SHA, 9),
}


def report(upload: BlobRef) -> Report:
    return Report("pi-07", 1, "run", 1, 0, 10, 10, upload, {}, {}, SHA)


@pytest.mark.parametrize("ref", LIES.values(), ids=LIES.keys())
def test_a_reference_that_lies_is_refused_before_anything_is_stored(ref: BlobRef, tmp_path: Path) -> None:
    arrived = wire.decode(wire.encode(report(ref)))
    assert isinstance(arrived, Report)
    assert arrived.upload is not None
    receiver = Receiver(BlobStore(tmp_path))
    with pytest.raises(TransferError):
        check_ref(arrived.upload)
    with pytest.raises(TransferError):
        receiver.want(arrived.upload, now=0.0)
    assert receiver.wanted == frozenset()
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size > 0] == []


def test_inline_bytes_of_another_digest_are_refused(tmp_path: Path) -> None:
    receiver = Receiver(BlobStore(tmp_path))
    with pytest.raises(TransferError):
        receiver.want(BlobRef(SHA, 9, inline=b"an uplOad"), now=0.0)
    assert receiver.want(BlobRef(SHA, 9, inline=DATA), now=0.0)


@pytest.mark.parametrize("size", [-1, (1 << 40) + 1, 1 << 63, 1 << 64])
def test_a_size_that_no_blob_has_does_not_even_decode(size: int) -> None:
    with pytest.raises(WireError):
        wire.encode(report(BlobRef(SHA, size)))
    assert wire.decode(wire.encode(report(BlobRef(SHA, 0)))) == report(BlobRef(SHA, 0))


@pytest.mark.parametrize("digest", ["../../etc/passwd", "0" * 63, "0" * 65, "G" * 64, "0" * 64 + "\n", "0" * 63 + "/"])
def test_a_digest_that_could_be_a_path_does_not_decode(digest: str) -> None:
    with pytest.raises(WireError):
        wire.encode(report(BlobRef(digest, 9, inline=DATA)))
    assert wire.decode(wire.encode(report(BlobRef(SHA, 9, inline=DATA)))).KIND == "report"
