"""Named tensors with the arithmetic of a vector space.

A :class:`Tree` is what the papers write as one letter: all the tensors of a model, or of a part of it, by
name.  The tensors may be NumPy arrays (device, wire) or torch tensors (tracing, server); nothing here cares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from edgepfl.errors import PlanError

Tensor: TypeAlias = Any
"""A NumPy array or a torch tensor."""

Number: TypeAlias = Any
"""A Python number or a tensor without dimensions."""

VALUE = ""
"""The name of a scalar slot's only tensor."""


class Tree(Mapping[str, Tensor]):
    """An immutable mapping from tensor name to tensor, in the order of the names.

    ``+``, ``-``, ``*`` and ``/`` work tensor by tensor with a tree of the same names, or with a number.

    >>> import numpy as np
    >>> w = Tree({"bias": np.ones(2), "weight": np.full((2, 2), 3.0)})
    >>> (w - 0.5 * w)["bias"].tolist()
    [0.5, 0.5]
    """

    __slots__ = ("_tensors",)
    __array_ufunc__ = None  # NumPy scalars on the left leave the product to __rmul__

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = {name: tensors[name] for name in sorted(tensors)}

    @classmethod
    def scalar(cls, value: Number) -> Tree:
        """The tree of a scalar slot."""
        return cls({VALUE: value})

    @property
    def value(self) -> Tensor:
        """The only tensor of a scalar slot."""
        if len(self._tensors) != 1:
            raise PlanError(
                f"value is for a slot of one tensor, and this one has {len(self._tensors)}",
                remedy="Index it by tensor name",
            )
        return next(iter(self._tensors.values()))

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}: {tuple(getattr(t, 'shape', ()))}" for name, t in self._tensors.items())
        return f"Tree({inside})"

    def map(self, function: Callable[[Tensor], Tensor]) -> Tree:
        """A tree of the same names with ``function`` applied to each tensor."""
        return Tree({name: function(tensor) for name, tensor in self._tensors.items()})

    def zip(self, function: Callable[[Tensor, Tensor], Tensor], other: Tree) -> Tree:
        """Apply ``function`` to the tensors of the same name; the names must be equal."""
        if self._tensors.keys() != other._tensors.keys():
            apart = sorted(self._tensors.keys() ^ other._tensors.keys())
            raise PlanError(
                f"two trees with different tensors met: {', '.join(apart[:4])}",
                remedy="Take the common part with like() first",
            )
        return Tree({name: function(tensor, other[name]) for name, tensor in self._tensors.items()})

    def _combine(self, function: Callable[[Tensor, Tensor], Tensor], other: Tree | Number) -> Tree:
        if isinstance(other, Tree):
            return self.zip(function, other)
        return self.map(lambda tensor: function(tensor, other))

    def __add__(self, other: Tree | Number) -> Tree:
        return self._combine(lambda a, b: a + b, other)

    def __sub__(self, other: Tree | Number) -> Tree:
        return self._combine(lambda a, b: a - b, other)

    def __mul__(self, other: Tree | Number) -> Tree:
        return self._combine(lambda a, b: a * b, other)

    def __rmul__(self, other: Number) -> Tree:
        return self.map(lambda tensor: other * tensor)

    def __truediv__(self, other: Tree | Number) -> Tree:
        return self._combine(lambda a, b: a / b, other)

    def __neg__(self) -> Tree:
        return self.map(lambda tensor: -tensor)

    def __or__(self, other: Tree) -> Tree:
        """Both trees' tensors; where a name is in both, the right one's."""
        return Tree({**self._tensors, **other._tensors})

    def like(self, other: Iterable[str]) -> Tree:
        """The part of this tree that has the names of ``other``."""
        return Tree({name: self._tensors[name] for name in other})

    def dot(self, other: Tree) -> Tensor:
        """The inner product over all tensors, a tensor without dimensions."""
        products = self.zip(lambda a, b: (a * b).sum(), other)
        return sum(products.values())


Trees: TypeAlias = Mapping[str, Tree]
"""Slot name to named tensors."""
