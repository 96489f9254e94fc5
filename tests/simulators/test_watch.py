"""The smartwatch data: fetched once, cut in time, normalised by each device's own training part."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _inputs import only
from hypothesis import given
from hypothesis import strategies as st

from edgepfl.errors import ConfigError, DataError
from simulators.datasets import device, load, watch, watch_source
from simulators.datasets.watch import Recording, Windowing

LENGTH = 400


def published(**changes: object) -> bytes:
    """A small file like the published one: every wearer, arm and exercise, each recording telling its own number."""
    kinds = [(w, s, e) for w in range(1, 11) for s in (0.0, 1.0) for e in range(7)]
    recordings = [np.asfortranarray(np.full((LENGTH, 6), float(n)) + np.arange(LENGTH)[:, None]) for n in range(140)]
    content: dict[str, object] = {
        "X": recordings,
        "y": np.array([e for _, _, e in kinds]),
        "side": np.array([s for _, s, _ in kinds]),
        "subject": np.array([w for w, _, _ in kinds]),
        "X_labels": ["ax", "ay", "az", "wx", "wy", "wz"],
        **changes,
    }
    stream = io.BytesIO()
    array = np.empty((), object)
    array[()] = content
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that already holds a wheel, small and with its own digest, and a pip without an index."""
    folder = tmp_path / "cache"
    folder.mkdir()
    wheel = folder / watch_source.WHEEL
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(watch_source.MEMBER, published())
        archive.writestr("seglearn-1.2.5.dist-info/METADATA", "Metadata-Version: 2.1\nName: seglearn\nVersion: 1.2.5\n")
        archive.writestr("seglearn-1.2.5.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
    monkeypatch.setenv("EDGEPFL_CACHE", str(folder))
    monkeypatch.setattr(watch_source, "SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    return folder


def test_the_fleet_is_ten_wearers_with_two_arms(cache: Path) -> None:
    fleet = load("watch", devices=20)
    assert list(fleet.devices) == sorted(fleet.devices)
    assert len(fleet.devices) == 20
    assert (fleet.input_shape, fleet.model, len(fleet.classes)) == ((6, 100), "cnn1d", 7)
    for found in fleet.devices.values():
        assert only(found.train_x).shape == (7, 6, 100)  # 120 samples of 400 train: one window each
        assert only(found.test_x).shape == (7 * 4, 6, 100)  # 280 test: four
        assert only(found.train_x).dtype == np.float32
        assert found.train_y.dtype == np.int64
        assert set(found.train_y) == set(found.test_y) == set(range(7))
    assert (cache / watch_source.CONVERTED).exists()


def test_the_wheel_is_needed_once_only(cache: Path) -> None:
    first = device(data="watch", device="wearer-03-left")
    (cache / watch_source.WHEEL).unlink()
    again = device(data="watch", device="wearer-03-left")
    assert np.array_equal(first.train_x, again.train_x)
    assert np.array_equal(load("watch", devices=5).devices["wearer-03-left"].test_x, first.test_x)
    assert sorted(path.name for path in cache.iterdir()) == [watch_source.CONVERTED]


def test_pip_fetches_what_is_missing(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    (cache / watch_source.WHEEL).rename(shelf / watch_source.WHEEL)
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    assert len(device(data="watch", device="wearer-10-right").train_y) == 7
    assert [path.name for path in cache.iterdir()] == [watch_source.CONVERTED]


def test_without_wheel_and_network_it_says_what_to_put_where(cache: Path) -> None:
    (cache / watch_source.WHEEL).unlink()
    with pytest.raises(DataError, match="could not be fetched") as caught:
        load("watch", devices=1)
    assert watch_source.WHEEL in caught.value.remedy
    assert str(cache) in caught.value.remedy


def test_another_wheel_is_refused(cache: Path) -> None:
    wheel = cache / watch_source.WHEEL
    wheel.write_bytes(wheel.read_bytes() + b"\0")
    with pytest.raises(DataError, match="SHA-256") as caught:
        load("watch", devices=1)
    assert caught.value.where == str(wheel)
    assert not (cache / watch_source.CONVERTED).exists()


def test_a_damaged_cache_is_named(cache: Path) -> None:
    (cache / watch_source.CONVERTED).write_bytes(b"PK half a file")
    with pytest.raises(DataError, match="cannot be read") as caught:
        load("watch", devices=1)
    assert caught.value.where.endswith(watch_source.CONVERTED)
    assert "Delete it" in caught.value.remedy


@pytest.mark.parametrize(
    "changes",
    [{"X": [np.full((9, 6), np.nan)] * 140}, {"X": [np.zeros((9, 5))] * 140}, {"X": [np.zeros(9)] * 140}],
)
def test_recordings_of_another_kind_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(DataError, match="not finite") as caught:
        watch_source.convert(published(**changes))
    assert caught.value.where == watch_source.MEMBER


def numbered(lengths: list[int]) -> list[Recording]:
    """Recordings whose every sample is a number of its own, the same on all axes."""
    starts = np.cumsum([0, *lengths])
    return [
        Recording(kind, np.repeat(np.arange(start, start + size, dtype=np.float32)[:, None], 6, axis=1))
        for kind, (start, size) in enumerate(zip(starts, lengths, strict=False))
    ]


@given(
    lengths=st.lists(st.integers(60, 200), min_size=1, max_size=4),
    length=st.integers(1, 15),
    hop=st.integers(1, 30),
    fraction=st.floats(0.3, 0.7),
)
def test_no_sample_is_on_both_sides_of_the_split(lengths: list[int], length: int, hop: int, fraction: float) -> None:
    recordings = numbered(lengths)
    found = watch.examples(recordings, Windowing(length, hop, fraction), device="d")
    border = {r.exercise: int(fraction * len(r.samples)) for r in recordings}
    seen = np.concatenate([r.samples[: border[r.exercise]] for r in recordings])
    numbers = [
        np.rint(x * seen[:, 0].std() + seen[:, 0].mean()).astype(int) for x in map(only, (found.train_x, found.test_x))
    ]
    train, test = (set(side.ravel().tolist()) for side in numbers)
    assert not train & test
    starts = dict(enumerate(np.cumsum([0, *lengths])))
    for sample_numbers, kinds, early in ((numbers[0], found.train_y, True), (numbers[1], found.test_y, False)):
        for window, kind in zip(sample_numbers, kinds, strict=True):
            assert np.array_equal(np.diff(window[0]), np.ones(length - 1))  # consecutive samples
            within = window[0] - starts[int(kind)]
            assert (within < border[int(kind)]).all() if early else (within >= border[int(kind)]).all()


def test_only_the_training_part_normalises() -> None:
    recordings = [Recording(0, np.random.default_rng(0).normal(3, 2, (1000, 6)).astype(np.float32))]
    windowing = Windowing(100, 100, 0.5)
    found = watch.examples(recordings, windowing, device="d")
    assert np.allclose(only(found.train_x).mean(axis=(0, 2)), 0, atol=1e-5)
    assert np.allclose(only(found.train_x).std(axis=(0, 2)), 1, atol=1e-4)
    recordings[0].samples[500:] *= 100
    changed = watch.examples(recordings, windowing, device="d")
    assert np.array_equal(found.train_x, changed.train_x)
    assert not np.array_equal(found.test_x, changed.test_x)


def test_a_silent_axis_stays_zero() -> None:
    samples = np.random.default_rng(0).normal(size=(300, 6)).astype(np.float32)
    samples[:, 2] = 4.0
    found = watch.examples([Recording(1, samples)], Windowing(length=50), device="d")
    assert np.isfinite(found.test_x).all()
    assert not only(found.train_x)[:, 2].any()


def test_a_recording_too_short_for_its_windows_is_refused() -> None:
    for windowing in (Windowing(length=31), Windowing(length=71, train_fraction=0.71)):
        with pytest.raises(ConfigError, match="too short") as caught:
            watch.examples(numbered([100]), windowing, device="wearer-01-left")
        assert "wearer-01-left" in caught.value.where


@pytest.mark.parametrize("options", [{"hop": 0}, {"length": 0}, {"train_fraction": 1.0}, {"train_fraction": 0.0}])
def test_windowing_refuses_nonsense(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        Windowing(**options)
    assert caught.value.where == "data watch"
    assert caught.value.remedy
