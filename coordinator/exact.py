"""Sums of weighted tensors that are the same bits in any order and however they are grouped.

Each product ``p = weight x`` is cut into three parts, each a multiple of its own grid (Demmel and Nguyen 2015,
"Parallel reproducible summation"; here with grids that are fixed beforehand)::

    q_i = (r_i + M_i) - M_i      r_1 = p, r_(i+1) = r_i - q_i      M_i = 1.5 2^52 g_i

``M_i`` is so large that adding it rounds ``r_i`` to a multiple of ``g_i``.  With ``|p| <= T`` and at most ``N = 2^20``
products, and::

    g_1 = 2^-33 T       g_2 = 2^-34 g_1       g_3 = 2^-34 g_2 = 2^-101 T

no sum of parts leaves the range in which float64 holds every multiple of its grid: ``N T = 2^53 g_1`` and, since a rest
is at most half a grid, ``N g_1 / 2 = 2^53 g_2``, likewise for ``g_3``.  So no addition rounds, and additions that do
not round may be done in any order.  What is lost is the last rest of each product, at most ``g_3 / 2``: an absolute
error of ``2^-102 T`` a product, which follows from the product alone.  With norms up to 1e6 and up to 1e6 examples,
``T = 2^40`` and ``g_3 = 2^-61``, that is 4e-19.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor

from edgepfl.errors import ConfigError, RunError
from edgepfl.tree import Tree

MOST = 1 << 20
"""The most products in one sum."""

BINS = 3
_SPANS = (33, 67, 101)  # -log2(g_i / T)
_REACH = 53  # bits of a part's multiple in a sum of MOST
_TOPS = range(-500, 500)  # of T = 2^top: every grid and every M is a normal number
_BLOCK = 1 << 16  # elements at a time: what is cut stays in the second-level cache


class Shaped(Protocol):
    """Whatever says the shape of a tensor: a tensor, an array or a :class:`~edgepfl.plan.TensorSpec`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its dimensions."""
        ...


@dataclass(frozen=True)
class Grid:
    """Where the bins lie.  Sums can be merged only on the same grid.

    Attributes:
        top: ``T = 2^top`` bounds every weighted number.

    Raises:
        ConfigError: float64 has no such grids.
    """

    top: int

    def __post_init__(self) -> None:
        if self.top not in _TOPS:
            raise ConfigError(f"numbers up to 2^{self.top} cannot be summed exactly", where="max_norm")

    @classmethod
    def of(cls, max_norm: float, max_weight: float) -> Grid:
        """The grid of a run: no number of a screened upload is above its norm."""
        return cls(math.frexp(max_norm)[1] + math.frexp(max_weight)[1])

    @property
    def steps(self) -> tuple[float, ...]:
        """``g_1``, ``g_2`` and ``g_3``."""
        return tuple(math.ldexp(1.0, self.top - span) for span in _SPANS)


class Exact:
    """The exact sum of trees of the same tensors.  It is mutable.

    Args:
        bins: the three sums of parts, float64.
        grid: of the parts.
        count: how many trees were added.
    """

    def __init__(self, bins: Sequence[Tree], grid: Grid, count: int = 0) -> None:
        self._bins = tuple(bins)
        self._grid = grid
        self._count = count

    @classmethod
    def zeros(cls, like: Mapping[str, Shaped], grid: Grid, device: torch.device | str = "cpu") -> Self:
        """The empty sum of trees with tensors of these names and shapes."""

        def empty() -> Tree:
            shapes = {name: tuple(each.shape) for name, each in like.items()}
            return Tree(
                {name: torch.zeros(shape, dtype=torch.float64, device=device) for name, shape in shapes.items()}
            )

        return cls([empty() for _ in range(BINS)], grid)

    @classmethod
    def from_bins(cls, bins: Sequence[Tree], grid: Grid, count: int) -> Self:
        """What :meth:`bins` gave, perhaps by somebody else.

        Args:
            bins: int64 tensors, or what torch makes one of.
            grid: of the sum.
            count: how many trees were added.

        Raises:
            RunError: no sum of so many trees has such bins.
        """
        if len(bins) != BINS or not 0 <= count <= MOST:
            raise RunError(f"{len(bins)} bins of {count} uploads are no sum", where="exact sum")
        whole = [tree.map(torch.as_tensor) for tree in bins]
        most = count << (_REACH - 20)
        for tree in whole:
            for name, tensor in tree.items():
                if tensor.dtype != torch.int64 or (
                    tensor.numel() and not bool(((tensor >= -most) & (tensor <= most)).all())
                ):
                    raise RunError(f"{name} is no sum of {count} uploads", where="exact sum")
        return cls(
            [tree.map(torch.Tensor.double) * step for tree, step in zip(whole, grid.steps, strict=True)], grid, count
        )

    @property
    def count(self) -> int:
        """How many trees were added."""
        return self._count

    @property
    def grid(self) -> Grid:
        """Where the bins lie."""
        return self._grid

    def add(self, tree: Tree, weight: float = 1.0) -> None:
        """Add ``weight``, which is not below 0, times a tree of float32 or float64 tensors on the same device.

        Raises:
            RunError: a number is above the grid's bound or not finite, or there are too many trees; nothing was added.
        """
        greatest = dict(self._bins[0].zip(lambda _, x: self._greatest(x, weight), tree))
        self._counted(1)
        for name, x in tree.items():
            flat = [bin_[name].view(-1) for bin_ in self._bins]
            scratch = x.new_empty((2, min(_BLOCK, x.numel())), dtype=torch.float64)
            for start in range(0, x.numel(), _BLOCK):
                block = x.reshape(-1)[start : start + _BLOCK]
                rest, part = scratch[:, : len(block)]
                rest.copy_(block).mul_(weight)
                self._deposit([each[start : start + _BLOCK] for each in flat], rest, part, greatest[name])

    def merge(self, other: Exact) -> None:
        """Add what another one summed.

        Raises:
            RunError: it has another grid or too many trees; nothing was added.
        """
        if other.grid != self._grid:
            raise RunError("two exact sums have different grids", where="exact sum", remedy="Give both the same run")
        self._counted(other.count)
        for own, more in zip(self._bins, other._bins, strict=True):
            own.zip(torch.Tensor.add_, more)

    def bins(self) -> tuple[Tree, ...]:
        """The sums of parts in units of their grids, int64: the same for every order and grouping."""
        return tuple(
            (tree / step).map(lambda whole: whole.to(torch.int64))
            for tree, step in zip(self._bins, self._grid.steps, strict=True)
        )

    def total(self, weight: float = 1.0) -> Tree:
        """The sum over ``weight``, float64: the sum is rounded once, and the quotient."""
        first, second, third = self._bins
        return Tree({name: _rounded(a, *_two_sum(second[name], third[name])) / weight for name, a in first.items()})

    def _counted(self, more: int) -> None:
        if self._count + more > MOST:
            raise RunError(f"more than {MOST} uploads", where="exact sum", remedy="Choose fewer devices a round")
        self._count += more

    def _greatest(self, x: Tensor, weight: float) -> float:
        """The greatest weighted size; a tensor whose own the grid has no room for is refused, and NaN has no size."""
        if not x.numel():
            return 0.0
        low, high = (float(each) * weight for each in x.aminmax())
        most = math.ldexp(1.0, self._grid.top)
        if not (-most <= low and high <= most):
            raise RunError(f"a weighted number is above {most:g}", where="exact sum", remedy="Lower max_norm")
        return max(-low, high)

    def _deposit(self, bins: Sequence[Tensor], rest: Tensor, part: Tensor, greatest: float) -> None:
        """Cut ``rest`` into the bins.  A bin whose grid is twice as wide as anything would only get zeros."""
        for bin_, step in zip(bins, self._grid.steps, strict=True):
            if greatest > step / 2:
                magic = math.ldexp(1.5 * step, 52)
                torch.add(rest, magic, out=part).sub_(magic)
                bin_.add_(part)
                rest.sub_(part)


def _two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The rounded sum and what rounding lost (Knuth)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _rounded(a: Tensor, high: Tensor, low: Tensor) -> Tensor:
    """``a + high + low``, rounded once, where ``high + low`` do not overlap (Boldo and Melquiond 2008, figure 5)."""
    top, rest = _two_sum(a, high)
    odd, lost = _two_sum(rest, low)
    return top + _to_odd(odd, lost)


def _to_odd(x: Tensor, lost: Tensor) -> Tensor:
    """``x + lost`` rounded to odd: of the two numbers around it, the one whose last bit is 1."""
    even = (x.view(torch.int64) & 1) == 0
    towards = torch.copysign(torch.full_like(x, math.inf), lost)
    return torch.where((lost != 0) & even, torch.nextafter(x, towards), x)
