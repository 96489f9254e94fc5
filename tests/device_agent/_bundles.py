"""A real bundle, exported once."""

from __future__ import annotations

from functools import cache

from edgepfl.algorithms.ditto import Ditto
from edgepfl.bundle import Bundle
from exporters.build import build
from exporters.zoo import mlp

INPUTS, CLASSES = 20, 3


@cache
def ditto_bundle(hidden: int = 1500) -> Bundle:
    """Ditto on a model whose uploads are, unless it is told otherwise, too long for a message."""
    return build(Ditto(), mlp(inputs=INPUTS, hidden=hidden, classes=CLASSES, batch=4))
