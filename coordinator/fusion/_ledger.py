"""The numbers that every thrifty engine keeps of each device and each pair, float64.

Matrices of pairs change in place, since fresh memory for all of them costs more than a round's arithmetic; every change
gives a new object, which tells a checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from edgepfl.tree import Tree


@dataclass(frozen=True)
class Ledger:
    """Of ``m`` devices; ``delta_ij = omega_i - omega_j + v_ij / rho`` at the pair's last update.

    Then ``theta = c delta`` and ``v = dual delta`` with ``dual = rho (1 - c)``, so ``delta`` and two numbers are all
    there is to a pair, and the next ``delta`` is the new difference and ``dual / rho`` of the old ``delta``.  The
    ``rho`` in ``dual`` is that of the pair's own last update, which may be long ago.

    Attributes:
        c: ``(m, m)``; 1 before the first update.
        dual: ``rho (1 - c)``, ``(m, m)``: ``v = dual * delta``; 0 likewise.
        q: ``|delta|^2``, ``(m, m)``; 0 likewise.
        met: whether the pair was ever updated, ``(m, m)``.
        plain: whether ``delta`` is ``omega_i - omega_j`` of now and ``c = 1``, so that no vector is needed, ``(m, m)``.
        squares: ``|omega_i - omega^0|^2`` over the columns that take part in pairs, ``(m,)``.
        norms: ``|omega_i|`` over all columns, ``(m,)``; -1 before the first round.
    """

    c: Tensor
    dual: Tensor
    q: Tensor
    met: Tensor
    plain: Tensor
    squares: Tensor
    norms: Tensor

    @classmethod
    def empty(cls, device: torch.device) -> Ledger:
        """Of no device."""
        numbers = torch.empty(0, dtype=torch.float64, device=device)
        matrix, flags = numbers.reshape(0, 0), numbers.reshape(0, 0).bool()
        return cls(matrix, matrix, matrix, flags, flags, numbers, numbers)

    @classmethod
    def load(cls, tree: Tree) -> Ledger:
        """What :meth:`dump` gave."""
        return cls(**{field.name: tree[field.name] for field in fields(cls)})

    def dump(self) -> Tree:
        """All of it as one slot."""
        return Tree({field.name: getattr(self, field.name) for field in fields(self)})

    @property
    def count(self) -> int:
        """``m``."""
        return len(self.norms)

    def grown(self, newcomers: int) -> Ledger:
        """With more devices, which no pair has met."""
        both, ends = (0, newcomers, 0, newcomers), (0, newcomers)
        pad = torch.nn.functional.pad
        return replace(
            self,
            c=pad(self.c, both, value=1.0),
            dual=pad(self.dual, both),
            q=pad(self.q, both),
            met=pad(self.met, both),
            plain=pad(self.plain, both),
            squares=pad(self.squares, ends),
            norms=pad(self.norms, ends, value=-1.0),
        )

    def signed(self, places: Tensor, rho: float) -> Tensor:
        """``(p, m)`` of some devices: ``theta - v / rho = signed * delta``, 0 where the pair has not met."""
        return (self.c[places] - self.dual[places] / rho) * self.met[places]

    def lengths(self) -> Tensor:
        """``|theta_ij|``, ``(m, m)``."""
        return self.c * self.q.sqrt()

    def moved(self, places: Tensor, moved: Tensor, start: Tensor) -> Tensor:
        """The norms after a round in which some devices moved.

        Args:
            places: whose.
            moved: their squared norms, ``(s,)``.
            start: that of ``omega^0``, ``(1,)``.
        """
        norms = self.norms.index_copy(0, places, moved.sqrt())
        return norms.where(norms >= 0, start.sqrt())


def lanes_of(places: Tensor, count: int) -> Tensor:
    """Which of ``places`` each of ``count`` devices is, ``(m,)``; -1 where it is none."""
    lanes = torch.full((count,), -1, device=places.device)
    lanes[places] = torch.arange(len(places), device=places.device)
    return lanes


def with_rows(matrix: Tensor, places: Tensor, rows: Tensor) -> Tensor:
    """A symmetric matrix with the rows and columns of some places replaced by ``(s, m)``: in place, as a new object."""
    return matrix.view_as(matrix).index_copy_(0, places, rows).index_copy_(1, places, rows.T)


def with_pairs(matrix: Tensor, i: Tensor, j: Tensor, values: Tensor | float) -> Tensor:
    """A symmetric matrix with the values of some pairs replaced: in place, as a new object."""
    new = matrix.view_as(matrix)
    new[i, j] = new[j, i] = values
    return new
