"""Chunks of every size: in all of them a blob is the same blob."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepfl import wire
from edgepfl.bus.blobs import BlobStore
from edgepfl.bus.chunks import (
    BLOB_LIMIT,
    CHUNK,
    CHUNK_SIZES,
    DIGEST,
    Fetch,
    Receiver,
    Sender,
    check_ref,
    chunk_count,
    chunk_fitting,
    digests,
    window_of,
)
from edgepfl.errors import TransferError
from edgepfl.wire import BlobRef, Need, Report


def carry(sender: Sender, receiver: Receiver, sha256: str, now: float) -> bool:
    """Whether the blob is whole after one exchange."""
    whole = False
    for need in receiver.due(now):
        for index, data in sender.requested(need, now):
            whole |= receiver.chunk(sha256[:16], index, data, now) == sha256
    return whole


@settings(max_examples=30, deadline=None)
@given(size=st.integers(1, 1 << 20), first=st.sampled_from(CHUNK_SIZES), then=st.sampled_from(CHUNK_SIZES))
def test_a_fetch_goes_on_in_chunks_of_another_size(size: int, first: int, then: int) -> None:
    """A part that was gathered in chunks of one size is verified, and kept, in those of another."""
    data = Random(size).randbytes(size)
    with tempfile.TemporaryDirectory() as folder:
        source, target = BlobStore(Path(folder) / "from"), BlobStore(Path(folder) / "to")
        sender, receiver = Sender(source), Receiver(target)
        ref = source.put(data, first)
        assert not receiver.want(ref, 0.0)
        whole, now, before = carry(sender, receiver, ref.sha256, 0.0), 1.0, receiver.here(ref.sha256) * first
        if not whole:
            whole = receiver.want(source.ref(ref.sha256, then), now)
            assert receiver.here(ref.sha256) * then > before - then  # all but what is cut in two
        while not whole:
            assert now < 100
            whole, now = carry(sender, receiver, ref.sha256, now), now + 1.0
        assert target.read(ref.sha256) == data


@pytest.mark.parametrize("chunk", CHUNK_SIZES)
def test_a_reference_says_the_size_of_its_chunks_and_describes_each(tmp_path: Path, chunk: int) -> None:
    data = Random(1).randbytes(3 * chunk + 5)
    blobs = BlobStore(tmp_path)
    ref = blobs.put(data, chunk)
    assert (
        ref
        == blobs.ref(ref.sha256, chunk)
        == BlobRef(hashlib.sha256(data).hexdigest(), len(data), chunks=digests(data, chunk), chunk_size=chunk)
    )
    assert (ref.chunk, len(ref.chunks), chunk_count(ref.size, ref.chunk)) == (chunk, 4 * DIGEST, 4)
    check_ref(ref)
    pieces = Sender(blobs).requested(Need(ref.sha256, ((0, 9),), chunk), 0.0)
    assert [len(piece) for _, piece in pieces] == [chunk, chunk, chunk, 5]
    assert b"".join(piece for _, piece in pieces) == data
    other = blobs.ref(ref.sha256, CHUNK_SIZES[chunk == CHUNK_SIZES[0]])
    for index, piece in pieces:
        assert Fetch(ref).accepts(index, piece)
        assert not Fetch(other).accepts(index, piece)


def test_a_reference_in_the_usual_size_is_as_it_always_was(tmp_path: Path) -> None:
    ref = BlobStore(tmp_path).put(bytes(3 * CHUNK))
    assert ref == BlobRef(ref.sha256, ref.size, chunks=ref.chunks, chunk_size=CHUNK)
    assert set(msgspec.to_builtins(ref, builtin_types=(bytes,))) == {"sha256", "size", "inline", "chunks"}


@pytest.mark.parametrize("chunk", [1, CHUNK - 1, 3 * CHUNK, 1 << 20])
def test_chunks_of_a_strange_size_are_refused_and_never_sent(tmp_path: Path, chunk: int) -> None:
    blobs = BlobStore(tmp_path)
    ref = blobs.put(bytes(4 * CHUNK))
    with pytest.raises(TransferError, match=f"chunks of {chunk} bytes"):
        check_ref(msgspec.structs.replace(ref, chunk_size=chunk, chunks=bytes(DIGEST * chunk_count(ref.size, chunk))))
    assert Sender(blobs).requested(Need(ref.sha256, ((0, 16),), chunk), 0.0) == []


def test_a_receiver_has_half_a_megabyte_under_way_or_four_chunks() -> None:
    assert [window_of(chunk) for chunk in CHUNK_SIZES] == [16, 16, 8, 4, 4]


def test_the_digests_always_fit_into_a_message() -> None:
    for size in (1, CHUNK_SIZES[0], 8 << 20, 71_680_000, 71_680_001, 300 << 20, BLOB_LIMIT):
        for wish in CHUNK_SIZES:
            chunk = chunk_fitting(size, wish)
            assert chunk >= wish
            assert DIGEST * chunk_count(size, chunk) <= wire.BINARY_LIMIT
            smaller = [other for other in CHUNK_SIZES if wish <= other < chunk]
            assert all(DIGEST * chunk_count(size, other) > wire.BINARY_LIMIT for other in smaller)
    with pytest.raises(TransferError, match="at most"):
        chunk_fitting(BLOB_LIMIT + 1)
    longest = BlobRef("0" * 64, BLOB_LIMIT, chunks=bytes(wire.BINARY_LIMIT // DIGEST * DIGEST), chunk_size=1 << 18)
    check_ref(longest)
    wire.encode(Report("a", 1, "r", 1, 1, 1, 1, longest, {}, {}, "0" * 64))
