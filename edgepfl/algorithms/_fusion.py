"""What FPFC's server needs of whatever keeps its pairs of devices: an engine.

A device's *place* is its number in the order in which the devices joined, from 0; it never changes.  Of ``m`` devices
with ``d`` fused parameters, in ``d`` columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import torch

from edgepfl.algorithms._base import Across, whole
from edgepfl.algorithms._scad import Scad
from edgepfl.errors import RunError
from edgepfl.tree import Tensor, Tree, Trees


@dataclass(frozen=True)
class Columns:
    """What is known of the columns, the same in every round.

    Attributes:
        first: ``omega^0``, from which every device starts, ``(d,)``.
        unpaired: columns that are no parameters, bool ``(d,)``: ``theta = v = 0`` there, and ``zeta`` is the mean of
            ``omega``; None where there are none.
        across: makes sums over columns whole where the server is sharded.
    """

    first: torch.Tensor
    unpaired: torch.Tensor | None = None
    across: Across = whole

    def summed(self, *parts: Tensor) -> list[Tensor]:
        """Sums over the columns here, float64 of any shape, made sums over all columns, in one call of ``across``."""
        together = self.across(torch.cat([part.reshape(-1) for part in parts]))
        pieces = together.split([part.numel() for part in parts])
        return [piece.reshape(part.shape) for piece, part in zip(pieces, parts, strict=True)]


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
            uploaded: their parameters, ``(len(active), d)``, of the dtype of ``omega^0``.
            scad: the round's penalty; all of it may differ from the last round's.
            both: only pairs of two active devices, instead of all with an active one, are updated.
        """
        ...

    def centres(self, places: Sequence[int], rho: float) -> Tensor:
        """``zeta_i = 1/m sum_j (omega_j + theta_ij - v_ij / rho)`` of some devices, ``(len(places), d)``."""
        ...

    def mean(self) -> Tensor:
        """The mean of all devices' models, ``(d,)``."""
        ...

    def omega(self, places: Sequence[int]) -> Tensor:
        """Their models as the server last heard of them, ``(len(places), d)``, a copy."""
        ...

    def omega_norms(self) -> Tensor:
        """``|omega_i|`` of every device over all columns of all shards, ``(m,)``, float64; after a :meth:`move`."""
        ...

    def theta_norms(self) -> Tensor:
        """``|theta_ij|`` likewise, ``(m, m)``, float64, symmetric, 0 where ``i = j``."""
        ...

    def pair(self, i: int, j: int) -> tuple[Tensor, Tensor]:
        """``theta_ij`` and ``v_ij``, ``(d,)`` each."""
        ...

    def dump(self) -> Trees:
        """The whole state by slot, without copies; a new object for each tensor that changed since the last dump."""
        ...


class Opening(Protocol):
    """How an engine is made: of what another one dumped, or of nothing, with no device yet."""

    def __call__(self, columns: Columns, state: Trees, /) -> Engine:
        """The engine, which goes on exactly where the other one was.

        Raises:
            RunError: the dump is of an engine of another form.
        """
        ...


class Form(IntEnum):
    """What an engine keeps of pairs; every dump tells its own."""

    PLAIN = 0  # theta and v of every pair
    LEAN = 1  # one vector for each pair that is not flat
    HISTORY = 2  # uploads, of which all pairs are combinations
    POTENTIAL = 3  # one vector for each device, while all pairs have moved alike

    def slot(self, like: Tensor) -> Tree:
        """The form as a slot of a dump."""
        return Tree.scalar(torch.tensor(self.value, device=like.device))


def form_of(state: Trees) -> Form | None:
    """The form of the engine that dumped a state; None where no engine did."""
    return Form(int(state["form"].value)) if "form" in state else None


def expect(state: Trees, form: Form) -> Trees:
    """Refuse another engine's dump.

    Raises:
        RunError: with the form that it has.
    """
    found = form_of(state)
    if found not in (None, form):
        raise RunError(
            f"pairs are stored in the form {found.name.lower()}, and this engine reads {form.name.lower()}",
            where="fusion",
            remedy="Go on with the engine that the run began with",
        )
    return state
