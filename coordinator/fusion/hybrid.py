"""The engine to use: uploads while they are fewer, then vectors of pairs."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from coordinator.fusion._materialise import lean_state
from coordinator.fusion.history import History
from coordinator.fusion.lean import Lean
from edgepfl.algorithms._fusion import Columns, Form, form_of
from edgepfl.algorithms._scad import Scad
from edgepfl.tree import Trees

_SLACK = 1.1
"""Uploads may outnumber vectors by this before they are given up: there is no way back."""


class Hybrid:
    """See :class:`~edgepfl.algorithms._fusion.Engine`.

    It begins in the history form.  Where more uploads are kept than the lean form would keep vectors, of pairs and of
    the devices' models, it goes over to that one for good.

    Attributes:
        inside: the engine that does the work.
    """

    def __init__(self, columns: Columns, state: Trees) -> None:
        self._columns = columns
        self.inside: History | Lean = (Lean if form_of(state) is Form.LEAN else History)(columns, state)

    @property
    def count(self) -> int:
        return self.inside.count

    @property
    def kept(self) -> int:
        """How many vectors there are: uploads, or those of pairs."""
        return self.inside.kept

    def join(self, newcomers: int) -> None:
        self.inside.join(newcomers)

    def move(self, active: Sequence[int], uploaded: Tensor, scad: Scad, *, both: bool) -> None:
        self.inside.move(active, uploaded, scad, both=both)
        if isinstance(self.inside, History):
            pairs = int(self.inside.needed.sum()) // 2
            if self.inside.kept > _SLACK * (pairs + self.count):
                self.inside = Lean(self._columns, lean_state(self.inside))

    def centres(self, places: Sequence[int], rho: float) -> Tensor:
        return self.inside.centres(places, rho)

    def mean(self) -> Tensor:
        return self.inside.mean()

    def omega(self, places: Sequence[int]) -> Tensor:
        return self.inside.omega(places)

    def omega_norms(self) -> Tensor:
        return self.inside.omega_norms()

    def theta_norms(self) -> Tensor:
        return self.inside.theta_norms()

    def pair(self, i: int, j: int) -> tuple[Tensor, Tensor]:
        return self.inside.pair(i, j)

    def dump(self) -> Trees:
        return self.inside.dump()
