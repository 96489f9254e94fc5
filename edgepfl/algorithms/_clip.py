"""Steps of bounded length."""

from __future__ import annotations

from edgepfl.algorithms._base import Scalar
from edgepfl.tree import Tree


def clipped(direction: Tree, most: Scalar) -> Tree:
    """A direction cut to the norm ``most``; a shorter one stays as it is, bit for bit."""
    excess = (direction.dot(direction).sqrt() / most).clip(min=1)
    cut: Tree = direction / excess
    return cut
