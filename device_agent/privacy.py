"""What a device does for its privacy before anything of a round leaves it: see :mod:`edgepfl.privacy`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from device_agent.sending import Encoder
from edgepfl.coding import Encoded
from edgepfl.privacy.noise import contribution
from edgepfl.privacy.normals import KEY_BYTES
from edgepfl.privacy.terms import Terms
from edgepfl.tree import Trees
from edgepfl.wire import Task

if TYPE_CHECKING:
    from device_agent.work import Product

WEIGHT = 1
"""The examples that a device claims under privacy: all weigh the same, and how many it has is its own affair."""

_NO_DIGEST = "0" * 64


@dataclass(frozen=True)
class Bounded:
    """An encoder that clips a contribution and, where the terms say so, adds noise before another encodes it.

    Attributes:
        then: the run's codec, or its secure aggregation.
        terms: of the task.
        draw: so many random bytes that nobody can guess.
    """

    then: Encoder
    terms: Terms
    draw: Callable[[int], bytes] = os.urandom

    def encode(self, upload: Trees, seed: int, residual: Trees) -> Encoded:
        """See :class:`~device_agent.sending.Encoder`.

        Raises:
            CodecError: a number is not finite.
        """
        return self.then.encode(contribution(upload, self.terms, lambda: self.draw(KEY_BYTES)), seed, residual)


def bounded(encoder: Encoder, task: Task) -> Encoder:
    """The encoder of a task's upload, by its terms of privacy."""
    return encoder if task.privacy is None else Bounded(encoder, task.privacy)


def discreet(product: Product, task: Task) -> Product:
    """A product without the numbers that no noise covers: metrics, times and the digest of the personal state."""
    if task.privacy is None or task.privacy.metrics:
        return product
    return replace(product, metrics={}, seconds={}, kept=_NO_DIGEST)


def weight_of(task: Task, examples: int) -> int:
    """The examples that a report claims."""
    return examples if task.privacy is None else WEIGHT
