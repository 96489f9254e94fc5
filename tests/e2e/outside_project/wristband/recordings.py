"""What a wristband has recorded."""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

AXES, GESTURES = 6, 4
_TRAIN, _TEST = 48, 24


def recordings(device: str, seed: int = 0) -> dict[str, NDArray[np.float32] | NDArray[np.int64]]:
    """One wearer's labelled gestures, as an agent's data plug-in gives them."""
    wearer = np.random.default_rng([seed, zlib.crc32(device.encode())])
    gestures = wearer.integers(0, GESTURES, _TRAIN + _TEST)
    habit = 0.3 * wearer.standard_normal(AXES)
    moved = 2 * np.eye(GESTURES, AXES)[gestures] + habit + 0.3 * wearer.standard_normal((len(gestures), AXES))
    x = moved.astype(np.float32)
    return {
        "train_x": x[:_TRAIN],
        "train_y": gestures[:_TRAIN],
        "test_x": x[_TRAIN:],
        "test_y": gestures[_TRAIN:],
    }
