"""What FPFC's server needs of whatever keeps its pairs of devices: an engine.

A device's *place* is its number in the order in which the devices joined, from 0; it never changes.  Of ``m`` devices
with ``d`` fused parameters, in ``d`` columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from edgepfl.algorithms._scad import Scad
from edgepfl.tree import Tensor, Trees


class Engine(Protocol):
    """The pairs of one server.  It is mutable: :meth:`move` changes tensors that an earlier :meth:`dump` gave."""

    @property
    def count(self) -> int:
        """``m``, how many devices there are."""
        ...

    def join(self, newcomers: int) -> None:
        """Let devices join: they start at ``omega^0`` with ``theta = v = 0``."""
        ...

    def move(self, active: Sequence[int], uploaded: Tensor, scad: Scad, *, both: bool) -> None:
        """One round: take the uploads and update each pair that has to be, once.

        Args:
            active: the places of those who uploaded, ascending.
            uploaded: their parameters, ``(len(active), d)``.
            scad: the round's penalty; its ``rho`` may differ from the last round's.
            both: only pairs of two active devices, instead of all with an active one, are updated.
        """
        ...

    def centres(self, places: Sequence[int]) -> Tensor:
        """``zeta_i`` of some devices, ``(len(places), d)``."""
        ...

    def omega(self, places: Sequence[int]) -> Tensor:
        """Their models as the server last heard of them, ``(len(places), d)``."""
        ...

    def omega_norms(self) -> Tensor:
        """``|omega_i|`` of every device over all columns of all shards, ``(m,)``, float64."""
        ...

    def theta_norms(self) -> Tensor:
        """``|theta_ij|`` likewise, ``(m, m)``, float64, symmetric, 0 where ``i = j``."""
        ...

    def dump(self) -> Trees:
        """The whole state by slot, without copies; a new object for each tensor that changed since the last dump."""
        ...
