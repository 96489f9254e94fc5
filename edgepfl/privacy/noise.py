"""Gaussian noise on numbers of which one device can have changed a vector of bounded norm, and nothing in low bits.

Floating-point noise can tell what it hides: of two neighbouring sums, one may not be able to give some result at all
(Mironov 2012, "On significance of the least significant bits for differential privacy").  So the numbers are put onto
a grid of ``2^-32`` of the noise first, and the noisy numbers again: as the numbers are on the grid already, that is
the same as rounding what an exact Gaussian mechanism gives.  Rounding two sums can part them by one step of the grid
in each of ``d`` numbers, which is added to the sensitivity.  What remains is that the normals are made from 53-bit
uniforms.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepfl.privacy.clipping import clipped
from edgepfl.privacy.normals import normals
from edgepfl.privacy.terms import Terms
from edgepfl.tree import Tree, Trees

_GRID_BITS = 32  # below the noise


@dataclass(frozen=True)
class Gaussian:
    """A Gaussian mechanism.

    Attributes:
        sensitivity: the greatest L2 norm by which one device can change the numbers.
        multiplier: standard deviation of the noise over that; 0 adds none.
    """

    sensitivity: float
    multiplier: float

    @property
    def grid(self) -> float:
        """The distance of the numbers that can come out, a power of two."""
        return float(2.0 ** (math.floor(math.log2(self.sensitivity * self.multiplier)) - _GRID_BITS))

    def deviation(self, count: int) -> float:
        """The standard deviation of the noise on each of ``count`` numbers."""
        return self.multiplier * (self.sensitivity + self.grid * math.sqrt(count))


def contribution(upload: Trees, terms: Terms, key: Callable[[], bytes]) -> Trees:
    """What a device gives: its UP slots clipped, and with noise of its own where the terms say so.

    Args:
        upload: NumPy.
        terms: of the task.
        key: gives what the noise is made of, see :func:`noised`; asked only where there is noise.

    Raises:
        CodecError: a number is not finite.
    """
    bounded, _ = clipped(upload, terms.clip)
    if not terms.noise:
        return bounded
    wide = noised(bounded, Gaussian(terms.clip, terms.noise / terms.clip), key())
    return {slot: tree.map(lambda x: np.asarray(x, np.float32)) for slot, tree in wide.items()}


def noised(trees: Trees, mechanism: Gaussian, key: bytes) -> Trees:
    """Numbers with noise, float64; as they are where the multiplier is 0.

    Args:
        trees: NumPy.
        mechanism: how much noise.
        key: see :func:`edgepfl.privacy.normals.normals`; for these numbers alone.
    """
    places = [(slot, name) for slot in sorted(trees) for name in trees[slot]]
    vectors = [np.asarray(trees[slot][name], np.float64).reshape(-1) for slot, name in places]
    if mechanism.multiplier == 0 or not vectors:
        return trees
    vector = _blurred(np.concatenate(vectors), mechanism, key)
    parts = np.split(vector, np.cumsum([len(each) for each in vectors])[:-1])
    found: dict[str, dict[str, NDArray[Any]]] = {slot: {} for slot in trees}
    for (slot, name), part in zip(places, parts, strict=True):
        found[slot][name] = part.reshape(np.shape(trees[slot][name]))
    return {slot: Tree(tensors) for slot, tensors in found.items()}


def _blurred(vector: NDArray[np.float64], mechanism: Gaussian, key: bytes) -> NDArray[np.float64]:
    grid = mechanism.grid
    on_grid = np.rint(vector / grid)
    noise = normals(key, len(vector)) * (mechanism.deviation(len(vector)) / grid)
    return np.rint(on_grid + noise) * grid
