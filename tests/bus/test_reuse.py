"""Chunks that are here already do not cross the bus again."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest

from edgepfl import codec
from edgepfl.bus.blobs import BlobStore
from edgepfl.bus.chunks import CHUNK, CHUNK_SIZES, Receiver, Sender
from edgepfl.tree import Tree
from edgepfl.wire import BlobRef

OLD = Random(1).randbytes(20 * CHUNK + 77)


def fetch(source: BlobStore, receiver: Receiver, ref: BlobRef) -> int:
    """Bytes that crossed for one blob."""
    sender, now, crossed = Sender(source), 0.0, 0
    whole = receiver.want(ref, now)
    while not whole:
        assert now < 100
        for need in receiver.due(now):
            for index, data in sender.requested(need, now):
                crossed += len(data)
                whole |= receiver.chunk(ref.sha256[:16], index, data, now) is not None
        now += 1.0
    return crossed


def stores(folder: Path) -> tuple[BlobStore, BlobStore]:
    return BlobStore(folder / "from"), BlobStore(folder / "to")


@pytest.mark.parametrize("chunk", CHUNK_SIZES)
@pytest.mark.parametrize("restarted", [False, True])
def test_only_changed_chunks_cross(tmp_path: Path, chunk: int, restarted: bool) -> None:  # noqa: FBT001  a parameter
    source, target = stores(tmp_path)
    receiver = Receiver(target, reuse=True)
    assert fetch(source, receiver, source.put(OLD, chunk)) == len(OLD)
    new = OLD[: 3 * CHUNK] + bytes([OLD[3 * CHUNK] ^ 1]) + OLD[3 * CHUNK + 1 :]
    if restarted:
        receiver = Receiver(target, reuse=True)
    ref = source.put(new, chunk)
    assert fetch(source, receiver, ref) == chunk
    assert target.read(ref.sha256) == new
    assert receiver.reused == len(OLD) - chunk


def test_a_blob_of_known_chunks_needs_nothing(tmp_path: Path) -> None:
    source, target = stores(tmp_path)
    receiver = Receiver(target, reuse=True)
    fetch(source, receiver, source.put(OLD))
    moved = source.put(OLD[10 * CHUNK : 15 * CHUNK] + OLD[:CHUNK])
    assert receiver.want(moved, 0.0)
    assert target.read(moved.sha256) == OLD[10 * CHUNK : 15 * CHUNK] + OLD[:CHUNK]


def test_damaged_chunks_are_fetched(tmp_path: Path) -> None:
    source, target = stores(tmp_path)
    receiver = Receiver(target, reuse=True)
    old = source.put(OLD)
    fetch(source, receiver, old)
    with target.path(old.sha256).open("r+b") as file:  # after it was verified
        file.seek(5 * CHUNK + 9)
        file.write(b"damage")
    ref = source.put(OLD + b"more")
    assert fetch(source, receiver, ref) == CHUNK + 81  # the damaged one and the last
    assert target.read(ref.sha256) == OLD + b"more"


def test_uploads_take_no_chunk_of_others(tmp_path: Path) -> None:
    source, target = stores(tmp_path)
    target.put(OLD)
    ref = source.put(OLD + b"more")
    assert fetch(source, Receiver(target), ref) == len(OLD) + 4


def test_of_a_model_whose_head_changed_only_the_head_crosses(tmp_path: Path) -> None:
    """A frozen base of 4 MB and a head of 40 KB, as FedPer's or a fine-tuned model's."""
    source, target = stores(tmp_path)
    receiver = Receiver(target, reuse=True)
    random = np.random.default_rng(1)
    base = {f"base.{k}": random.standard_normal((500, 500), dtype=np.float32) for k in range(4)}
    crossed = []
    for _ in range(3):
        head = {"head.weight": random.standard_normal((10, 1000), dtype=np.float32)}
        ref = source.put(codec.encode({"model": Tree({**base, **head})}))
        crossed.append(fetch(source, receiver, ref))
    assert crossed[0] > 4_000_000
    assert max(crossed[1:]) <= 2 * CHUNK
    print(f"{crossed[0]} bytes, then {crossed[1:]}")  # noqa: T201  for docs/transfer.md: pytest -s
