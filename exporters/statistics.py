"""Running statistics: tensors of a model that its forward pass moves, and no gradient.

They are in the model's tree beside its parameters, so an algorithm sends, keeps, mixes and averages them by the same
equations.  Only in a step do the two differ: a parameter goes against its gradient, a statistic goes where the forward
pass measured.  So in a gradient the place of a statistic is taken by :class:`Measured`, which arithmetic carries along
and sums leave out: ``x - lr * gradient`` has the parameters' step and the new statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from edgepfl.errors import PlanError

_SUMS: Final = ("add", "sub", "rsub")
_PRODUCTS: Final = ("mul", "div", "true_divide", "neg")


class Measured:
    """A statistic in a gradient.

    Attributes:
        value: the statistic after the forward pass.
        placed: whether it was combined with a tensor, and so stands for the next value of one; by itself, as in a
            gradient that is kept, it counts as zero.
    """

    __slots__ = ("placed", "value")

    def __init__(self, value: Tensor, *, placed: bool = False) -> None:
        self.value = value
        self.placed = placed

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Measured:
        """A tensor on the left of an operator leaves it to this."""
        name = func.__name__.strip("_").removeprefix("r")
        if name not in _SUMS + _PRODUCTS:
            raise PlanError(f"a running statistic has no gradient to take {func.__name__} of")
        found = next(each for each in args if isinstance(each, cls))
        return found.plus(*args) if name in _SUMS else found

    def plus(self, *others: object) -> Measured:
        """The same value, beside what it was added to."""
        return Measured(self.value, placed=self.placed or any(_is_place(other) for other in others))

    def resolved(self) -> Tensor:
        """What is stored for it."""
        return self.value.clone() if self.placed else torch.zeros_like(self.value)

    def clip(self, *_: object) -> Measured:
        """Itself: what bounds or shrinks a parameter says nothing about a statistic."""
        return self

    def sum(self) -> Tensor:
        """Nothing, for inner products and norms of gradients."""
        return self.value.new_zeros(())

    def __add__(self, other: object) -> Measured:
        return self.plus(other)

    __radd__ = __sub__ = __rsub__ = __add__

    def __mul__(self, other: object) -> Measured:
        return self

    __rmul__ = __truediv__ = __mul__

    def __neg__(self) -> Measured:
        return self


def _is_place(other: object) -> bool:
    if isinstance(other, Measured):
        return other.placed
    return isinstance(other, Tensor)
