"""Bounding what one device can change of a sum.

McMahan et al. 2018, "Learning differentially private recurrent language models", arXiv:1710.06963, section 2 ("flat
clipping"): ``D min(1, C / |D|)`` with the norm over all layers together.
"""

from __future__ import annotations

import math

import numpy as np

from edgepfl.errors import CodecError
from edgepfl.tree import Trees

SLACK = 2.0**-20
"""Relative: how far below the bound what is clipped stays, so that rounding to float32 cannot lift it above."""


def norm_of(trees: Trees) -> float:
    """The L2 norm over every tensor of every slot together, NumPy, added up in float64."""
    return math.hypot(*(_norm(tensor) for tree in trees.values() for tensor in tree.values()))


def clipped(trees: Trees, clip: float) -> tuple[Trees, float]:
    """The contribution with an L2 norm of at most ``clip``, and the norm that it had.

    One that is within the bound is given back as it is, to the bit.

    Args:
        trees: the UP slots, NumPy, float32.
        clip: the bound, above 0.

    Raises:
        CodecError: a number is not finite, so no factor would bound it.
    """
    norm = norm_of(trees)
    if not math.isfinite(norm):
        raise CodecError("a number is not finite, so it cannot be clipped", where="upload")
    if norm <= clip:
        return trees, norm
    factor = clip / norm * (1 - SLACK)
    return {slot: tree.map(lambda x: _scaled(x, factor)) for slot, tree in trees.items()}, norm


def _norm(tensor: object) -> float:
    """Of one tensor; float32 squares cannot overflow in float64."""
    return float(np.linalg.norm(np.asarray(tensor, np.float64).reshape(-1)))


def _scaled(tensor: object, factor: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """``factor`` times a tensor, rounded once."""
    return (np.asarray(tensor, np.float64) * factor).astype(np.float32)
