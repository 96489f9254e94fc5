"""Random inputs that tell a right graph from a wrong one.

Parameters are drawn near the initial ones, hyperparameters near 1: with a step size of 0.05 an error in the gradient
would drown in the parameters it is subtracted from.  But a threshold of 1 leaves nothing of what it is compared with,
so in one kind of minibatch they are near their defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepfl.plan import Kind, Port, Role
from edgepfl.tree import Tree
from exporters.binding import Binding

Array = NDArray[Any]


class Padding(Enum):
    """What a minibatch's weights look like."""

    NONE = "every row counts"
    SOME = "the last third is padding"
    RAGGED = "unequal weights"
    ALL = "nothing but padding"


class Draws:
    """Draws a graph's inputs.

    Args:
        binding: the algorithm and the model.
        rng: the generator.
    """

    def __init__(self, binding: Binding, rng: np.random.Generator) -> None:
        self._binding = binding
        self._rng = rng
        self._params: Tree = binding.model.parameters.map(lambda tensor: tensor.numpy())

    def feeds(self, ports: tuple[Port, ...], padding: Padding) -> dict[str, Array]:
        """One array for each port, by name; float32 with eight significant bits, which pack well."""
        weight = self._weight(padding)
        feeds = {port.name: self._draw(port, weight) for port in ports}
        if padding is Padding.RAGGED:
            feeds |= {port.name: feeds[port.name] * self._default(port) for port in ports if port.kind is Kind.HYPER}
        return {name: _rounded(array) for name, array in feeds.items()}

    def nudged(self, feeds: dict[str, Array], amount: float) -> dict[str, Array]:
        """The same inputs moved by this relative amount, at random; integers and exact zeros stay."""
        return {
            name: array * (1 + amount * self._rng.standard_normal(array.shape)) if array.dtype == np.float32 else array
            for name, array in feeds.items()
        }

    def other_padding(self, feeds: Mapping[str, Array]) -> tuple[int, dict[str, Array]]:
        """The same inputs with other rows where :attr:`Padding.SOME` has padding, and how many rows stay."""
        kept = self._real
        other = dict(feeds)
        for port in self._binding.batch_ports:
            if port.name in feeds and port.group != "weight":
                fresh = _rounded(self._example(port))
                other[port.name] = np.concatenate([feeds[port.name][:kept], fresh[kept:]])
        return kept, other

    @property
    def _real(self) -> int:
        """The rows that :attr:`Padding.SOME` leaves."""
        size = self._binding.model.batch
        return size - max(size // 3, int(size > 1))

    def _draw(self, port: Port, weight: Array) -> Array:
        shape = port.spec.shape
        match port.kind:
            case Kind.HYPER:
                return self._rng.uniform(0.5, 1.5, shape)
            case Kind.BATCH:
                return self._batch(port, weight)
            case Kind.MODEL:
                return self._served(port)
            case _:
                return self._slot(port)

    def _slot(self, port: Port) -> Array:
        role = self._binding.slots[port.group].role
        if role is Role.GIVEN:
            return self._rng.integers(1, 100, port.spec.shape).astype(np.float64)
        if role is Role.NOISE:
            return self._rng.standard_normal(port.spec.shape)
        if port.tensor in self._params:
            return self._near(self._params[port.tensor])
        return self._rng.uniform(0.1, 0.9, port.spec.shape)

    def _default(self, port: Port) -> float:
        """A hyperparameter's default, or 1 where that would switch something off."""
        return self._binding.hyper[port.group] or 1.0

    def _served(self, port: Port) -> Array:
        """A tensor to predict with: a model's, or one of several models' (``0.head.bias``), or a number beside them."""
        name = port.tensor if port.tensor in self._params else port.tensor.partition(".")[2]
        return self._near(self._params[name]) if name in self._params else self._rng.uniform(0.1, 0.9, port.spec.shape)

    def _near(self, params: Array) -> Array:
        scale = float(np.sqrt(np.mean(params.astype(np.float64) ** 2))) or 1.0
        return params + 0.1 * scale * self._rng.standard_normal(params.shape)

    def _batch(self, port: Port, weight: Array) -> Array:
        counts = weight.reshape(-1, *[1] * (len(port.spec.shape) - 1)) > 0  # padding rows are zeros here
        return weight if port.group == "weight" else self._example(port) * counts

    def _example(self, port: Port) -> Array:
        model = self._binding.model
        spec = model.inputs[int(port.tensor)] if port.group == "x" else model.target
        if spec.dtype == "int64":
            return self._rng.integers(0, spec.high or 2, port.spec.shape)
        return self._rng.standard_normal(port.spec.shape)

    def _weight(self, padding: Padding) -> Array:
        size = self._binding.model.batch
        match padding:
            case Padding.NONE:
                return np.ones(size)
            case Padding.SOME:
                return (np.arange(size) < self._real).astype(np.float64)
            case Padding.RAGGED:
                return self._rng.uniform(0.5, 2.0, size)
            case Padding.ALL:
                return np.zeros(size)


def _rounded(array: Array) -> Array:
    if array.dtype == np.int64:
        return array
    bits = np.asarray(array, np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    return np.asarray(bits).view(np.float32)  # without dimensions, & gave a scalar
