"""Devices that see the same things differently."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from _inputs import only

from device_agent.data import Examples
from edgepfl.errors import ConfigError
from edgepfl.seeds import generator
from simulators.partition_shift import Noise, Offset, Rotation, Scale, Shift, Turn, shifted

Input = npt.NDArray[np.float32]


def examples(*shape: int, train: int = 40, test: int = 20) -> Examples:
    x = generator(0, "x", *shape).normal(2, 1, (train + test, *shape)).astype(np.float32)
    y = np.arange(train + test) % 3
    return Examples(x[:train], y[:train], x[train:], y[train:])


def changed(shift: Shift, before: Examples, number: int = 1, devices: int = 4, seed: int = 5) -> tuple[Input, Input]:
    """All inputs before and after, those to train on first."""
    after = shifted([shift], before, number, devices, seed)
    assert np.array_equal(after.train_y, before.train_y)
    assert np.array_equal(after.test_y, before.test_y)
    assert only(after.train_x).dtype == np.float32
    old, new = (np.concatenate([only(each.train_x), only(each.test_x)]) for each in (before, after))
    assert new.shape == old.shape
    return old, new


@pytest.mark.parametrize("make", [Rotation, Scale, Offset, Noise])
@pytest.mark.parametrize("shape", [(7,), (6, 9), (2, 5, 5)])
def test_a_shift_is_the_devices_own_and_always_the_same(make: Callable[[float], Shift], shape: tuple[int, ...]) -> None:
    before, shift = examples(*shape), make(20.0)
    old, new = changed(shift, before)
    assert not np.allclose(old, new)
    assert np.array_equal(new, changed(shift, before)[1])
    assert not np.allclose(new, changed(shift, before, number=2)[1])
    assert not np.allclose(new, changed(shift, before, seed=6)[1])


@pytest.mark.parametrize("shape", [(6, 9), (3, 4), (8,), (7,), (4, 5)])
def test_a_rotation_keeps_lengths_and_angles(shape: tuple[int, ...]) -> None:
    old, new = changed(Rotation(180.0), examples(*shape))
    assert np.einsum("nc...,mc...->nm...", new, new) == pytest.approx(
        np.einsum("nc...,mc...->nm...", old, old), rel=1e-4
    )


def test_a_motion_sensors_axes_are_rotated_together() -> None:
    old, new = changed(Rotation(90.0), examples(6, 9))
    for sensor in (slice(0, 3), slice(3, 6)):
        matrix, *_ = np.linalg.lstsq(
            old[:, sensor].transpose(0, 2, 1).reshape(-1, 3),
            new[:, sensor].transpose(0, 2, 1).reshape(-1, 3),
            rcond=None,
        )
        assert matrix @ matrix.T == pytest.approx(np.eye(3), abs=1e-5)
        assert np.linalg.det(matrix) == pytest.approx(1, abs=1e-5)
        angle = np.degrees(np.arccos((np.trace(matrix) - 1) / 2))
        assert 1 < angle <= 90
    lengths = [np.linalg.norm(each[:, :3], axis=1) for each in (old, new)]
    assert np.allclose(lengths[0], lengths[1], rtol=1e-4)


def test_pictures_are_turned_by_quarters() -> None:
    before = examples(16)
    turned = [changed(Turn(), before, number)[1] for number in range(5)]
    picture = turned[0].reshape(-1, 4, 4)
    assert np.array_equal(picture, changed(Turn(), before, 0)[0].reshape(-1, 4, 4))
    for number in range(5):
        assert np.array_equal(turned[number].reshape(-1, 4, 4), np.rot90(picture, number, (1, 2)))
    upside_down = changed(Turn(2), before, 1)[1].reshape(-1, 4, 4)
    assert np.array_equal(upside_down, picture[:, ::-1, ::-1])
    colour = changed(Turn(), examples(3, 5, 5), 1)
    assert np.array_equal(colour[1], np.rot90(colour[0], 1, (2, 3)))
    for shape in ((15,), (6, 9)):
        with pytest.raises(ConfigError, match="no square pictures"):
            shifted([Turn()], examples(*shape), 0, 4, 0)


def test_gains_and_offsets_are_one_number_a_channel() -> None:
    old, new = changed(Scale(0.5), examples(6, 9))
    gain = new / old
    assert np.ptp(gain, axis=(0, 2)) == pytest.approx(0, abs=1e-3)
    assert np.ptp(gain[0, :, 0]) > 0.1
    old, new = changed(Offset(0.5), examples(6, 9))
    assert np.ptp(new - old, axis=(0, 2)) == pytest.approx(0, abs=1e-5)
    spread = [changed(Offset(0.5), examples(2000, train=2, test=0), n)[1].std() for n in range(4)]
    assert spread != pytest.approx([0] * 4)


def test_noise_grows_from_device_to_device() -> None:
    before = examples(2000)
    variances = []
    for number in range(4):
        old, new = changed(Noise(0.8), before, number)
        variances.append(float((new - old).var()))
    assert variances == pytest.approx([0.2, 0.4, 0.6, 0.8], rel=0.05)


def test_shifts_follow_one_another() -> None:
    before = examples(6)
    both = shifted([Scale(0.5), Offset(1.0)], before, 1, 4, 5)
    other = shifted([Offset(1.0), Scale(0.5)], before, 1, 4, 5)
    assert not np.allclose(only(both.train_x), only(other.train_x))
    assert shifted([], before, 1, 4, 5) is before


def test_what_is_no_floating_point_input_is_refused() -> None:
    words = np.ones((4, 5), np.int64)
    y = np.zeros(4, np.int64)
    with pytest.raises(ConfigError, match="floating-point"):
        shifted([Scale(1.0)], Examples(words, y, words, y), 0, 2, 0)
    pair = (np.ones((4, 2), np.float32), np.ones((4, 3), np.float32))
    with pytest.raises(ConfigError, match="floating-point"):
        shifted([Scale(1.0)], Examples(pair, y, pair, y), 0, 2, 0)
