from __future__ import annotations

import hashlib
import resource
from pathlib import Path

import pytest

from edgepfl import wire
from edgepfl.bus.blobs import BlobStore
from edgepfl.bus.chunks import BLOB_LIMIT, CHUNK
from edgepfl.errors import StoreError
from edgepfl.wire import BlobRef

DATA = bytes(range(256)) * 700  # two whole chunks and a part of one
SHA256 = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "new" / "blobs")


def test_what_is_put_is_read_again(blobs: BlobStore) -> None:
    ref = blobs.put(DATA)
    assert (ref.sha256, ref.size, ref.inline, len(ref.chunks)) == (SHA256, len(DATA), b"", 3 * 16)
    assert ref.chunks[16:32] == hashlib.blake2b(DATA[CHUNK : 2 * CHUNK], digest_size=16).digest()
    assert blobs.has(SHA256)
    assert blobs.read(SHA256) == blobs.path(SHA256).read_bytes() == DATA
    assert BlobStore(blobs.directory).put(DATA) == ref
    assert [path.name for path in blobs.directory.iterdir()] == [SHA256]


def test_small_blobs_ride_in_their_messages(blobs: BlobStore) -> None:
    small, edge, big = (blobs.put(bytes(size)) for size in (1, wire.INLINE_LIMIT, wire.INLINE_LIMIT + 1))
    assert blobs.ref_inline(small) == BlobRef(small.sha256, 1, inline=bytes(1))
    assert blobs.ref_inline(edge).inline == bytes(wire.INLINE_LIMIT)
    assert blobs.ref_inline(big) == big
    blobs.delete(small.sha256)
    with pytest.raises(StoreError):
        blobs.ref_inline(small)


def test_an_empty_blob_is_a_blob(blobs: BlobStore) -> None:
    ref = blobs.put(b"")
    assert (ref.size, ref.chunks) == (0, b"")
    assert blobs.ref_inline(ref) == ref
    assert blobs.read(ref.sha256) == b""


@pytest.mark.parametrize("size", [0, 1, 70_000])
def test_a_blob_is_read_into_memory_that_the_caller_gives(blobs: BlobStore, size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    sha256 = blobs.put(data[:size]).sha256
    rooms: list[bytearray] = []

    def room(count: int) -> bytearray:
        rooms.append(bytearray(count))
        return rooms[-1]

    found = blobs.read_into(sha256, room)
    assert bytes(found) == data[:size] == bytes(rooms[0])
    assert not found.readonly
    assert found.obj is rooms[0]
    assert bytes(blobs.read_into(sha256)) == blobs.read(sha256)


def test_a_damaged_blob_is_not_read_into_memory_either(blobs: BlobStore) -> None:
    sha256 = blobs.put(b"as it was").sha256
    blobs.path(sha256).write_bytes(b"as it is ")
    with pytest.raises(StoreError, match="damaged"):
        blobs.read_into(sha256)
    assert not blobs.has(sha256)
    with pytest.raises(StoreError):
        blobs.read_into(sha256)


def test_a_damaged_blob_is_reported_and_removed(blobs: BlobStore) -> None:
    ref = blobs.put(DATA)
    blobs.path(SHA256).write_bytes(DATA[:-1] + b"?")
    with pytest.raises(StoreError, match="damaged"):
        blobs.read(SHA256)
    assert not blobs.has(SHA256)
    blobs.path(SHA256).write_bytes(DATA[:1000])
    assert blobs.put(DATA) == ref  # replaces what is wrong
    assert blobs.read(SHA256) == DATA


def test_leftovers_of_a_crash_are_removed_and_parts_kept(tmp_path: Path) -> None:
    for name in (f"{SHA256[:16]}-x1y2.tmp", f"{SHA256}.part", "README"):
        (tmp_path / name).write_bytes(b"half")
    blobs = BlobStore(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([f"{SHA256}.part", "README"])
    assert not blobs.has(SHA256)
    blobs.delete(SHA256)
    assert [path.name for path in tmp_path.iterdir()] == ["README"]


def test_keep_only_deletes_the_rest(blobs: BlobStore) -> None:
    kept, gone = blobs.put(b"kept"), blobs.put(b"gone")
    blobs.part(SHA256).write_bytes(b"part")
    (blobs.directory / "notes.txt").write_bytes(b"not ours")
    blobs.keep_only([kept.sha256])
    assert blobs.has(kept.sha256)
    assert not blobs.has(gone.sha256)
    assert sorted(path.name for path in blobs.directory.iterdir()) == sorted([kept.sha256, "notes.txt"])


def test_adoption_verifies(blobs: BlobStore) -> None:
    blobs.part(SHA256).write_bytes(DATA + b"!")
    assert not blobs.adopt(SHA256)
    assert not list(blobs.directory.iterdir())
    blobs.part(SHA256).write_bytes(DATA)
    assert blobs.adopt(SHA256)
    assert blobs.read(SHA256) == DATA


@pytest.mark.parametrize("name", ["", "../" + "0" * 61, "0" * 63, "G" * 64, "0" * 64 + "\n"])
def test_a_name_that_is_no_digest_leaves_the_directory_alone(blobs: BlobStore, name: str) -> None:
    for act in (blobs.path, blobs.has, blobs.read, blobs.delete):
        with pytest.raises(StoreError, match="no SHA-256"):
            act(name)
    assert not list(blobs.directory.iterdir())


def test_a_full_disk_is_a_store_error_and_leaves_nothing(blobs: BlobStore) -> None:
    kept = blobs.put(b"before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(StoreError, match="Raise the limit"):
            blobs.put(DATA)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in blobs.directory.iterdir()] == [kept.sha256]
    assert blobs.put(DATA).sha256 == SHA256


def test_a_directory_that_cannot_be_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError) as caught:
        BlobStore(tmp_path / "file" / "blobs")
    assert str(tmp_path / "file") in caught.value.where
    with pytest.raises(StoreError, match="are possible"):
        BlobStore(tmp_path / "blobs").put(bytes(BLOB_LIMIT + 1))
