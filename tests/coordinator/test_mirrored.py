"""What one coordinator stores is found by whoever shares its store, and comes back when its own disk is lost."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from coordinator.storage.directory import DirectoryDepot
from coordinator.storage.mirrored import Mirrored
from edgepfl.bus.blobs import BlobStore
from edgepfl.bus.chunks import BLOB_LIMIT
from edgepfl.errors import StoreError

DATA = b"weights" * 30_000
SHA256 = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def shared(tmp_path: Path) -> DirectoryDepot:
    return DirectoryDepot(tmp_path / "shared")


@pytest.fixture
def mirrored(tmp_path: Path, shared: DirectoryDepot) -> Mirrored:
    return Mirrored(BlobStore(tmp_path / "local"), shared)


def test_what_is_put_is_in_both(mirrored: Mirrored, shared: DirectoryDepot) -> None:
    ref = mirrored.put(DATA)
    assert ref == mirrored.local.put(DATA)
    assert mirrored.local.read(SHA256) == shared.read(SHA256) == mirrored.read(SHA256) == DATA
    kept = mirrored.keep(memoryview(b"state"))
    assert mirrored.local.read(kept) == shared.read(kept) == b"state"
    assert mirrored.ref_inline(mirrored.put(b"small")).inline == b"small"


def test_an_upload_is_shared(mirrored: Mirrored, shared: DirectoryDepot) -> None:
    mirrored.local.put(DATA)
    assert not shared.has(SHA256)
    mirrored.share(SHA256)
    mirrored.share(SHA256)
    assert shared.read(SHA256) == DATA
    with pytest.raises(StoreError):
        mirrored.share("0" * 64)


def test_what_another_put_comes_here_when_it_is_read(mirrored: Mirrored, shared: DirectoryDepot) -> None:
    shared.keep(DATA)
    assert mirrored.read(SHA256) == mirrored.local.read(SHA256) == DATA


def test_what_the_local_disk_lost_or_damaged_comes_back(mirrored: Mirrored) -> None:
    mirrored.put(DATA)
    mirrored.local.delete(SHA256)
    assert mirrored.read(SHA256) == DATA
    assert mirrored.local.has(SHA256)
    mirrored.local.path(SHA256).write_bytes(DATA[:-1])
    assert mirrored.read(SHA256) == mirrored.local.read(SHA256) == DATA


def test_what_neither_has_is_missing(mirrored: Mirrored) -> None:
    with pytest.raises(StoreError, match="is missing"):
        mirrored.read(SHA256)


def test_without_a_shared_store_it_is_the_local_one(tmp_path: Path) -> None:
    alone = Mirrored(BlobStore(tmp_path))
    assert alone.read(alone.put(DATA).sha256) == alone.read(alone.keep(DATA)) == DATA
    alone.share(SHA256)
    alone.local.delete(SHA256)
    with pytest.raises(StoreError):
        alone.read(SHA256)


def test_what_no_reference_can_describe_is_in_neither(mirrored: Mirrored, shared: DirectoryDepot) -> None:
    with pytest.raises(StoreError, match="are possible"):
        mirrored.put(bytes(BLOB_LIMIT + 1))
    assert not shared.digests()
