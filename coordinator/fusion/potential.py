"""The engine for rounds in which every device takes part: one vector a device while pairs move alike.

In the penalty's first region ``c`` is the same number for all pairs, so those that never left it share the recursion:
``delta_ij = U_i - U_j`` with ``U_i <- omega_i + (1 - c) U_i``.  A pair that leaves becomes one as the lean form has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from coordinator.fusion._blocks import combined, products
from coordinator.fusion.lean import Lean
from edgepfl.algorithms._fusion import Columns, Form
from edgepfl.algorithms._scad import Scad
from edgepfl.errors import RunError
from edgepfl.tree import Tree, Trees


class Potential(Lean):
    """See :class:`~edgepfl.algorithms._fusion.Engine`.

    Attributes:
        shared: the pairs that have moved alike, ``(m, m)``.
    """

    form = Form.POTENTIAL

    def __init__(self, columns: Columns, state: Trees) -> None:
        super().__init__(columns, state)
        first = columns.first
        self._sums = state["sums"].value if state else first.new_empty((0, len(first)))
        self.shared = state["shared"].value if state else torch.empty((0, 0), dtype=torch.bool, device=first.device)
        self._plain_columns = replace(columns, first=torch.zeros_like(first))  # sums are displacements already

    def join(self, newcomers: int) -> None:
        if not newcomers:
            return
        fresh = not bool(self.ledger.met.any())
        super().join(newcomers)
        self._sums = pad(self._sums, (0, 0, 0, newcomers))
        self.shared = pad(self.shared, (0, newcomers, 0, newcomers))
        if fresh:
            self.shared = ~torch.eye(self.count, dtype=torch.bool, device=self.shared.device)

    def move(self, active: Sequence[int], uploaded: Tensor, scad: Scad, *, both: bool) -> None:
        """See :class:`~edgepfl.algorithms._fusion.Engine`.

        Raises:
            RunError: some device did not take part.
        """
        if len(active) != self.count:
            raise RunError(
                f"{len(active)} of {self.count} devices took part, and the potential form needs them all",
                where="fusion",
                remedy="Take another engine: hybrid",
            )
        factor = self._common(self.ledger.dual) / scad.rho
        super().move(active, uploaded, scad, both=both)
        self._sums.mul_(factor).add_(uploaded).sub_(self._columns.first)
        self._sums = self._sums.view_as(self._sums)  # a new object tells that it changed
        self._leave(scad)

    def _hit(self, on: Tensor, *, both: bool) -> tuple[Tensor, Tensor]:
        i, j = super()._hit(on, both=both)
        apart = ~self.shared[i, j]
        return i[apart], j[apart]

    def _common(self, numbers: Tensor) -> float:
        """The number that all shared pairs have in a matrix of pairs."""
        found = numbers[self.shared]
        return float(found[0]) if len(found) else 0.0

    def _leave(self, scad: Scad) -> None:
        """The numbers of the shared pairs; those whose ``c`` is no longer the common one get a vector."""
        gram = products(self._sums, [self._sums], self._plain_columns)
        (gram,) = self._columns.summed(gram)
        own = gram.diagonal()
        q = (own[:, None] + own - gram - gram.T).clamp_(min=0)
        c = scad.factor(q.sqrt())
        left = self.shared & (c != scad.factor(torch.zeros_like(own[:1])))
        i, j = left.triu(1).nonzero().T
        self._assign(i, j, self._allotted(len(i)))
        self._write(self._sums, i, j, self.slots[i, j], self.ledger.q.new_zeros(len(i)))
        ledger = self.ledger
        self.ledger = replace(
            ledger,
            c=c.where(self.shared, ledger.c),
            dual=(scad.rho * (1 - c)).where(self.shared, ledger.dual),
            q=q.where(self.shared, ledger.q),
            met=ledger.met | self.shared,
        )
        self.shared = self.shared & ~left

    def centres(self, places: Sequence[int], rho: float) -> Tensor:
        out, at = super().centres(places, rho), torch.tensor(places, device=self.slots.device)
        weights = -self.shared[at].to(torch.float64)
        weights[torch.arange(len(at), device=at.device), at] = -weights.sum(1)
        moved = bool(self.ledger.met.any())
        weights *= (self._common(self.ledger.c) - self._common(self.ledger.dual) / rho) * moved / self.count
        return out + combined(weights, torch.zeros_like(weights[0]), [self._sums], self._plain_columns)

    def _delta(self, i: int, j: int) -> Tensor:
        if not bool(self.shared[i, j]):
            return super()._delta(i, j)
        delta = self._sums[i] - self._sums[j]
        return delta if self._columns.unpaired is None else delta.masked_fill(self._columns.unpaired, 0)

    def dump(self) -> Trees:
        return {**super().dump(), "sums": Tree.scalar(self._sums), "shared": Tree.scalar(self.shared)}
