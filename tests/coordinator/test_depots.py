"""Shared stores keep what was put, whoever else is at work; every kind of them passes the same tests."""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from _depots import KINDS, Watch, made
from _s3 import S3
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.store import MemoryStore

from coordinator.storage import objects
from coordinator.storage.depot import GRACE, Depot
from coordinator.storage.directory import DirectoryDepot
from coordinator.storage.objects import ObjectDepot
from edgepfl.errors import StoreError

DATA = bytes(range(256)) * 40
SHA256 = hashlib.sha256(DATA).hexdigest()
OTHER = hashlib.sha256(b"other").hexdigest()
POOL = [b"", b"a", DATA, DATA[::-1]]
NUMBER = itertools.count()

Make = Callable[[str, Watch], Depot]


@pytest.fixture(scope="module")
def make(s3: Callable[[], S3], tmp_path_factory: pytest.TempPathFactory) -> Make:
    folder = tmp_path_factory.mktemp("depots")
    return lambda kind, watch: made(kind, f"depot-{next(NUMBER)}", folder, watch, s3)


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture(params=KINDS)
def depot(request: pytest.FixtureRequest, make: Make, watch: Watch) -> Depot:
    return make(request.param, watch)


def overwrite(depot: Depot, sha256: str, data: bytes) -> None:
    """Put other bytes under a blob's name, as a failing disk would."""
    match depot:
        case DirectoryDepot():
            Path(depot.where, sha256).write_bytes(data)
        case ObjectDepot():
            depot._store.put(sha256, data)


def test_what_is_put_is_read_again(depot: Depot) -> None:
    assert depot.keep(DATA) == depot.keep(bytearray(DATA)) == depot.keep(memoryview(DATA)) == SHA256
    assert depot.read(SHA256) == DATA
    assert (depot.size(SHA256), depot.digests()) == (len(DATA), {SHA256})
    assert depot.read_range(SHA256, 100, 300) == DATA[100:400]
    assert depot.read_ranges(SHA256, [(9000, 7), (0, 1), (5, 0)]) == [DATA[9000:9007], DATA[:1], b""]
    depot.read(SHA256)[0] ^= 1  # the caller's own memory
    assert depot.read(SHA256) == DATA


def test_a_store_belongs_to_one_fleet(depot: Depot, watch: Watch) -> None:
    sha256 = depot.keep(DATA)
    depot.claim("farm")
    with pytest.raises(StoreError, match=r"store of fleet 'farm', and not of 'shed'\. Give each fleet"):
        depot.claim("shed")
    assert depot.digests() == {sha256}
    with watch.later():
        depot.keep_only([])
    depot.claim("farm")
    with pytest.raises(StoreError, match="store of fleet 'farm'"):
        depot.claim("shed")


def test_items_of_more_than_a_byte_are_bytes(depot: Depot) -> None:
    assert depot.keep(memoryview(DATA).cast("I")) == SHA256
    assert depot.size(SHA256) == len(DATA)


def test_an_empty_blob_is_a_blob(depot: Depot) -> None:
    empty = depot.keep(b"")
    assert depot.read(empty) == b""
    assert not depot.read_range(empty, 0, 0)
    assert depot.size(empty) == 0


def test_what_is_missing_is_said_to_be(depot: Depot) -> None:
    depot.keep(DATA)
    depot.delete(OTHER)
    assert depot.has(SHA256)
    assert not depot.has(OTHER)
    for act in (depot.read, depot.size, lambda sha256: depot.read_range(sha256, 0, 1)):
        with pytest.raises(StoreError, match="is missing") as caught:
            act(OTHER)
        assert OTHER[:16] in caught.value.where
    depot.delete(SHA256)
    assert not depot.has(SHA256)
    assert not depot.digests()


@pytest.mark.parametrize("span", [(len(DATA) - 1, 2), (len(DATA), 1), (1 << 40, 1), (-1, 1), (0, -1)])
def test_a_range_outside_of_the_blob_is_refused(depot: Depot, span: tuple[int, int]) -> None:
    depot.keep(DATA)
    with pytest.raises(StoreError, match=r"the blob ends there|are no part of a blob"):
        depot.read_ranges(SHA256, [(0, 1), span])


@pytest.mark.parametrize("name", ["", "../" + "0" * 61, "0" * 63, "G" * 64, "0" * 64 + "\n"])
def test_a_name_that_is_no_digest_is_refused(depot: Depot, name: str) -> None:
    for act in (depot.read, depot.size, depot.has, depot.delete, lambda sha256: depot.read_range(sha256, 0, 1)):
        with pytest.raises(StoreError, match="no SHA-256"):
            act(name)


@pytest.mark.parametrize("wrong", [DATA[:-1] + b"?", DATA[:100], DATA + b"?"], ids=["other", "short", "long"])
def test_a_damaged_blob_is_told_and_removed_and_can_be_put_again(depot: Depot, wrong: bytes) -> None:
    depot.keep(DATA)
    overwrite(depot, SHA256, wrong)
    assert depot.read_range(SHA256, 0, len(wrong)) == wrong
    with pytest.raises(StoreError, match="damaged"):
        depot.read(SHA256)
    assert not depot.has(SHA256)
    assert depot.read(depot.keep(DATA)) == DATA


def test_putting_a_blob_again_repairs_it(depot: Depot) -> None:
    """A disk's content is compared; a bucket's length must do."""
    depot.keep(DATA)
    overwrite(depot, SHA256, DATA[::-1] if isinstance(depot, DirectoryDepot) else DATA[1:])
    depot.keep(DATA)
    assert depot.read(SHA256) == DATA


def test_a_blob_in_several_pieces(depot: Depot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "PIECE", 1000)
    assert depot.read(depot.keep(DATA)) == DATA
    assert depot.read(depot.keep(DATA[:2000])) == DATA[:2000]


def test_only_what_is_old_and_unneeded_goes(depot: Depot, watch: Watch) -> None:
    needed, unneeded = depot.keep(b"needed"), depot.keep(b"unneeded")
    depot.keep_only([needed, OTHER])
    assert depot.digests() == {needed, unneeded}
    with watch.later():
        depot.keep_only([needed, OTHER])
    assert depot.digests() == {needed}


def test_a_blob_that_is_put_while_another_cleans_up_stays(make: Make) -> None:
    """The one who cleans up has looked at the clock; what is put from then on is not old."""
    shared = DirectoryDepot(Path(make("directory", Watch()).where))
    path = Path(shared.where, shared.keep(DATA))
    os.utime(path, (0, 0))

    def clock() -> float:
        shared.keep(DATA)
        return time.time()

    DirectoryDepot(Path(shared.where), clock=clock).keep_only([])
    assert shared.digests() == {SHA256}
    os.utime(path, (0, 0))
    shared.keep_only([])
    assert not shared.digests()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Is set when somebody asks for the lock of a directory."""
    event, flock = threading.Event(), fcntl.flock

    def ask(handle: int, how: int) -> None:
        event.set()
        flock(handle, how)

    monkeypatch.setattr(fcntl, "flock", ask)
    return event


def test_whoever_puts_a_blob_waits_until_it_is_deleted(tmp_path: Path, asked: threading.Event) -> None:
    """Otherwise it would be told that the blob is there, of which another has just seen that it is old."""
    depot = DirectoryDepot(tmp_path)
    path = Path(tmp_path, depot.keep(DATA))
    with ThreadPoolExecutor(1) as other:
        with depot._locked(fcntl.LOCK_EX):  # as the one who cleans up does
            asked.clear()
            putting = other.submit(depot.keep, DATA)
            assert asked.wait(20)
            path.unlink()
        assert putting.result() == SHA256
    assert depot.read(SHA256) == DATA


def test_whoever_cleans_up_waits_until_a_blob_is_renewed(tmp_path: Path, asked: threading.Event) -> None:
    depot = DirectoryDepot(tmp_path)
    path = Path(tmp_path, depot.keep(DATA))
    os.utime(path, (0, 0))
    with ThreadPoolExecutor(1) as other:
        with depot._locked(fcntl.LOCK_SH):  # as the one who puts it does
            asked.clear()
            cleaning = other.submit(depot.keep_only, [])
            assert asked.wait(20)
            os.utime(path)
        cleaning.result()
    assert depot.read(SHA256) == DATA


def test_a_young_object_is_not_sent_again_and_an_old_one_is(watch: Watch) -> None:
    """An object's age begins anew only when it is written again: at half the grace period, before anyone deletes it."""
    store = MemoryStore()
    depot = ObjectDepot(store, "memory", clock=watch)
    depot.keep(DATA)
    store.put(SHA256, DATA[::-1])  # to see whether it is written
    depot.keep(DATA)
    assert depot.read_range(SHA256, 0, len(DATA)) == DATA[::-1]
    with watch.later(GRACE * 0.6):
        depot.keep_only([])
        assert depot.has(SHA256)
        depot.keep(DATA)
    assert depot.read(SHA256) == DATA


def test_one_reading_that_goes_wrong_costs_nobody_the_blob() -> None:
    """What is damaged only on its way is read again."""

    class Noisy(ObjectDepot):
        reads = 0

        def _whole(self, sha256: str) -> bytearray:
            data = super()._whole(sha256)
            Noisy.reads += 1
            data[0] ^= Noisy.reads == 1
            return data

    depot = Noisy(MemoryStore(), "memory")
    depot.keep(DATA)
    assert depot.read(SHA256) == DATA
    assert Noisy.reads == 2


def test_many_writers_of_the_same_blobs(depot: Depot) -> None:
    blobs = [bytes([number]) * 5000 for number in range(4)]
    with ThreadPoolExecutor(4) as writers:
        shas = list(writers.map(depot.keep, blobs * 4))
    assert depot.digests() == set(shas)
    assert [depot.read(sha256) for sha256 in shas[:4]] == blobs


WRITER = """
import os, sys, time
from pathlib import Path
from coordinator.storage.directory import DirectoryDepot

def hang(handle):
    print("written", flush=True)
    time.sleep(600)

os.fsync = hang
DirectoryDepot(Path(sys.argv[1])).keep(b"half" * 1000)
"""


def test_a_writer_that_is_killed_leaves_nothing_that_stays(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"written\n"
        watch = Watch()
        depot = DirectoryDepot(tmp_path, clock=watch)
        depot.keep_only([])
        assert len(list(tmp_path.glob("*.tmp"))) == 1  # it may still be written
        writer.send_signal(signal.SIGKILL)
    assert not depot.digests()
    with watch.later():
        depot.keep_only([])
    assert not list(tmp_path.glob("*.tmp"))
    assert depot.read(depot.keep(b"half" * 1000)) == b"half" * 1000


def test_an_upload_in_parts_that_was_cut_short_is_invisible(s3: Callable[[], S3], make: Make) -> None:
    depot = make("s3", Watch())
    path = f"/blobs/{depot.where.removeprefix('s3://blobs/')}/{SHA256}"
    begun = s3().ask("POST", f"{path}?uploads").decode()
    upload = begun.partition("<UploadId>")[2].partition("</UploadId>")[0]
    s3().ask("PUT", f"{path}?partNumber=1&uploadId={upload}", DATA)
    assert not depot.has(SHA256)
    assert not depot.digests()
    assert depot.read(depot.keep(DATA)) == DATA


def test_what_is_no_blob_is_left_alone(tmp_path: Path, watch: Watch) -> None:
    depot = DirectoryDepot(tmp_path, clock=watch)
    (tmp_path / "README").write_bytes(b"not ours")
    store = MemoryStore()
    store.put("README", b"not ours")
    with watch.later():
        depot.keep_only([])
        ObjectDepot(store, "memory", clock=watch).keep_only([])
    assert (tmp_path / "README").exists()
    assert store.head("README")["size"] == 8
    assert not depot.digests()


def test_a_directory_is_for_this_user_only(tmp_path: Path) -> None:
    depot = DirectoryDepot(tmp_path / "new")
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert Path(depot.where, depot.keep(DATA)).stat().st_mode & 0o077 == 0


def test_a_directory_that_cannot_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError) as caught:
        DirectoryDepot(tmp_path / "file" / "blobs")
    assert "file" in caught.value.where


BLOB = st.integers(0, len(POOL) - 1)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), BLOB),
        st.tuples(st.just("delete"), BLOB),
        st.tuples(st.just("range"), BLOB, st.integers(0, len(DATA) + 1), st.integers(0, len(DATA) + 1)),
        st.tuples(st.just("keep"), st.frozensets(BLOB), st.booleans()),
    ),
    max_size=12,
)


@pytest.mark.parametrize(("kind", "examples"), [("directory", 40), ("memory", 60), ("s3", 8)])
def test_a_store_is_a_dictionary(kind: str, examples: int, make: Make) -> None:
    @settings(max_examples=examples, database=None)
    @given(STEPS)
    def run(steps: list[tuple[object, ...]]) -> None:
        watch = Watch()
        depot, model = make(kind, watch), dict[str, bytes]()
        for step in steps:
            take(step, depot, model, watch)
        assert depot.digests() == model.keys()
        assert {sha256: depot.read(sha256) for sha256 in model} == model

    run()


def take(step: tuple[object, ...], depot: Depot, model: dict[str, bytes], watch: Watch) -> None:
    """One step of a store and of its model."""
    shas = [hashlib.sha256(data).hexdigest() for data in POOL]
    match step:
        case "put", int(blob):
            assert depot.keep(POOL[blob]) == shas[blob]
            model[shas[blob]] = POOL[blob]
        case "delete", int(blob):
            depot.delete(shas[blob])
            model.pop(shas[blob], None)
        case "range", int(blob), int(start), int(length):
            data = model.get(shas[blob])
            if data is not None and (start + length <= len(data) or not length):
                assert depot.read_range(shas[blob], start, length) == data[start : start + length]
            else:
                with pytest.raises(StoreError, match="is missing" if data is None else "ends there"):
                    depot.read_range(shas[blob], start, length)
        case "keep", frozenset() as blobs, bool(old):
            kept = {sha256 for blob, sha256 in enumerate(shas) if blob in blobs}
            with watch.later(GRACE + 60 if old else 0.0):
                depot.keep_only(kept)
            for sha256 in model.keys() - kept if old else ():
                del model[sha256]
