"""A task's blobs come in the chunks that the slowest link of its cohort wishes."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from _scripted import config, coordinating, hands, play, told

from coordinator.describing import Describer
from edgepfl import wire
from edgepfl.bundle import Bundle, pack
from edgepfl.bus.blobs import BlobStore
from edgepfl.bus.chunks import CHUNK, CHUNK_SIZES, check_ref
from edgepfl.bus.loopback import LoopbackBroker
from edgepfl.wire import MESSAGE_LIMIT, BlobRef, Hello, Member, Task

FINEST = CHUNK_SIZES[0]


def task(bundle: BlobRef, download: BlobRef, members: int = 2) -> Task:
    cohort = tuple(Member(f"{k:036}", 1) for k in range(members))
    return Task("run", 1, 0, cohort, bundle, download, {}, 1, 1, False, 0, False, 60.0, 1.0)  # noqa: FBT003  as they are


@pytest.mark.parametrize("wish", CHUNK_SIZES)
def test_both_blobs_are_described_as_wished(tmp_path: Path, wish: int) -> None:
    blobs = BlobStore(tmp_path)
    bundle, download = blobs.put(Random(1).randbytes(400_000)), blobs.put(Random(2).randbytes(500_000))
    fitted = Describer(blobs).fitted(task(bundle, download), wish)
    assert (fitted.bundle, fitted.download) == (blobs.ref(bundle.sha256, wish), blobs.ref(download.sha256, wish))
    check_ref(fitted.download)


def test_a_blob_that_was_described_in_small_chunks_stays_so(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path)
    one, other = blobs.put(bytes(400_000)), blobs.put(bytes(500_000))
    describer = Describer(blobs)
    assert describer.fitted(task(one, one), 4 * CHUNK).bundle.chunk == 4 * CHUNK
    assert describer.fitted(task(one, one), FINEST).bundle.chunk == FINEST
    fitted = describer.fitted(task(one, other), 4 * CHUNK)
    assert (fitted.bundle.chunk, fitted.download.chunk) == (FINEST, 4 * CHUNK)


def test_what_is_inline_or_gone_stays_as_it_is(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path)
    gone = blobs.put(bytes(400_000))
    blobs.delete(gone.sha256)
    before = task(gone, BlobRef("0" * 64, 3, b"abc"))
    assert Describer(blobs).fitted(before, FINEST) == before


def test_digests_that_do_not_fit_into_the_task_are_left_out(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path)
    large = blobs.put(bytes(50 << 20))
    before = task(large, large, members=1500)
    assert Describer(blobs).fitted(before, FINEST) == before
    assert len(wire.encode(before)) < MESSAGE_LIMIT
    assert Describer(blobs).fitted(task(large, large), FINEST).bundle.chunk == FINEST


def test_a_cohort_gets_what_its_slowest_link_wishes(wide: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with coordinating(broker, tmp_path) as service, hands(broker, "ant", "bee", "cat") as devices:
            slow = Hello("bee", devices[1].session, ("onnx",), 5, 1024, "test", chunk=FINEST)
            devices[1].say(slow)
            while "bee" not in service.fleet.devices or service.fleet.devices["bee"].hello != slow:
                await service._changed.wait()
            service.start_run(config(), pack(wide))
            task = await told(devices)
            assert task.download.chunk == FINEST
            assert task.download == service.vault.offered.local.ref(task.download.sha256, FINEST)

    play(scenario())
