"""The engine that stores ``theta`` and ``v`` of every pair, as the published algorithm does."""

from __future__ import annotations

from edgepfl.algorithms._pairs import Plain
from edgepfl.tree import Tensor


class Naive(Plain):
    """The plain engine, which changes its tensors in place."""

    def _writable(self, tensor: Tensor) -> Tensor:
        return tensor.view_as(tensor)  # a new object tells that it changed
