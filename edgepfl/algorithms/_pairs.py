"""FPFC's pairs, every one stored: the plain engine.

A pair ``(i, j)`` of places with ``i < j`` is one row, in the order (0, 1), (0, 2), (1, 2), (0, 3), ..., so that a
newcomer's pairs come last; the other half is its negative: ``theta_ji = -theta_ij``, ``v_ji = -v_ij``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from edgepfl.algorithms._fusion import Columns, Form, expect
from edgepfl.algorithms._scad import Scad
from edgepfl.tree import Tensor, Tree, Trees

BLOCK = 1 << 18
"""Numbers to work on at a time, so that they stay in the processor's cache."""


def ends(count: int, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """``i`` and ``j`` of each row, ``i < j``."""
    j, i = torch.tril_indices(count, count, -1, device=device)
    return i, j


def row_of(i: Tensor, j: Tensor) -> Tensor:
    """The rows of the pairs ``(i, j)``, in either order."""
    low, high = torch.minimum(i, j), torch.maximum(i, j)
    return high * (high - 1) // 2 + low


class Plain:
    """The :class:`~edgepfl.algorithms._fusion.Engine` that is easiest to believe: what the paper's algorithm stores.

    It copies what it changes, so whatever it dumped stays as it was.

    Attributes:
        omega_rows: each device's parameters as the server last heard of them, ``(m, d)``.
        theta: each pair's shrunken difference, ``(m (m - 1) / 2, d)``.
        v: each pair's dual, likewise.
    """

    def __init__(self, columns: Columns, state: Trees) -> None:
        expect(state, Form.PLAIN)
        first = columns.first
        none, scalars = first.new_empty((0, len(first))), first.new_empty(0, dtype=torch.float64)
        self._columns = columns
        self.omega_rows, self.theta, self.v, self._norms, self._lengths = (
            state[name].value if state.get(name) else default
            for name, default in {
                "omega": none, "theta": none, "v": none, "norms": scalars, "lengths": scalars
            }.items()
        )  # fmt: skip

    @property
    def count(self) -> int:
        return len(self.omega_rows)

    def join(self, newcomers: int) -> None:
        if not newcomers:
            return
        first, count = self._columns.first, self.count + newcomers
        rows = count * (count - 1) // 2 - len(self.theta)
        self.omega_rows = torch.cat([self.omega_rows, first.expand(newcomers, -1)])
        self.theta, self.v = (torch.cat([kept, first.new_zeros((rows, len(first)))]) for kept in (self.theta, self.v))
        self._norms, self._lengths = (
            torch.cat([kept, kept.new_full((more,), fill)])
            for kept, more, fill in ((self._norms, newcomers, -1.0), (self._lengths, rows, 0.0))
        )

    def move(self, active: Sequence[int], uploaded: Tensor, scad: Scad, *, both: bool) -> None:
        """See :class:`~edgepfl.algorithms._fusion.Engine`.

        With ``delta = omega_i - omega_j + v_ij / rho``: ``theta_ij = c(|delta|) delta``, and the dual step
        ``v_ij + rho (omega_i - omega_j - theta_ij)`` is ``rho (delta - theta_ij)``, which is 0 without rounding where
        ``c = 1``.
        """
        places = torch.tensor(active, device=uploaded.device)
        takes_part = torch.zeros(self.count, dtype=torch.bool, device=uploaded.device)
        takes_part[places] = True
        i, j = ends(self.count, uploaded.device)
        hit = takes_part[i] & takes_part[j] if both else takes_part[i] | takes_part[j]
        rows = hit.nonzero()[:, 0]
        self.omega_rows, self.theta, self.v = (self._writable(kept) for kept in (self.omega_rows, self.theta, self.v))
        self.omega_rows[places] = uploaded
        squares = self._differ(rows, i, j, scad)
        squares, moved, start = self._columns.summed(squares, _squares(uploaded), _squares(self._columns.first[None]))
        lengths = squares.sqrt()
        factors = scad.factor(lengths)
        self._shrink(rows, factors, scad)
        self._lengths = self._lengths.index_copy(0, rows, factors * lengths)
        self._norms = self._norms.index_copy(0, places, moved.sqrt())
        self._norms = self._norms.where(self._norms >= 0, start.sqrt())

    def _writable(self, tensor: Tensor) -> Tensor:
        return tensor.clone()

    def _differ(self, rows: Tensor, i: Tensor, j: Tensor, scad: Scad) -> Tensor:
        """Let ``delta`` stand where ``theta`` was; its squared norms in the columns here."""
        squares = []
        for some in self._blocks(rows):
            delta = self.omega_rows[i[some]] - self.omega_rows[j[some]] + self.v[some] / scad.rho
            if self._columns.unpaired is not None:
                delta[:, self._columns.unpaired] = 0
            self.theta[some] = delta
            squares.append(_squares(delta))
        return torch.cat(squares) if squares else self._lengths.new_empty(0)

    def _shrink(self, rows: Tensor, factors: Tensor, scad: Scad) -> None:
        """``theta`` and ``v`` of ``delta``."""
        shares = iter(self._blocks(factors))
        for some in self._blocks(rows):
            delta = self.theta[some]
            shrunken = next(shares).to(delta.dtype)[:, None] * delta
            self.theta[some] = shrunken
            self.v[some] = scad.rho * (delta - shrunken)

    def _blocks(self, values: Tensor) -> Iterator[Tensor]:
        yield from values.split(BLOCK // max(len(self._columns.first), 1) or 1) if len(values) else ()

    def centres(self, places: Sequence[int], rho: float) -> Tensor:
        return torch.stack([self._centre(place, rho) for place in places])

    def _centre(self, place: int, rho: float) -> Tensor:
        everyone = torch.arange(self.count, device=self.theta.device)
        others = everyone[everyone != place]
        rows = row_of(others, torch.full_like(others, place))
        sign = torch.where(others > place, 1.0, -1.0).to(self.theta.dtype)[:, None]
        shares = sign * (self.theta[rows] - self.v[rows] / rho)
        return (self.omega_rows.sum(0) + shares.sum(0)) / self.count

    def mean(self) -> Tensor:
        return self.omega_rows.mean(0)

    def omega(self, places: Sequence[int]) -> Tensor:
        return self.omega_rows[torch.tensor(places, dtype=torch.int64, device=self.omega_rows.device)]

    def omega_norms(self) -> Tensor:
        return self._norms

    def theta_norms(self) -> Tensor:
        i, j = ends(self.count, self._lengths.device)
        found = self._lengths.new_zeros((self.count, self.count))
        found[i, j] = found[j, i] = self._lengths
        return found

    def pair(self, i: int, j: int) -> tuple[Tensor, Tensor]:
        row = max(i, j) * (max(i, j) - 1) // 2 + min(i, j)
        sign = 1 if i < j else -1
        return sign * self.theta[row], sign * self.v[row]

    def dump(self) -> Trees:
        several = self.count > 1
        return {
            "form": Form.PLAIN.slot(self.omega_rows),
            "omega": Tree.scalar(self.omega_rows),
            "norms": Tree.scalar(self._norms),
            **({"theta": Tree.scalar(self.theta), "v": Tree.scalar(self.v)} if several else {}),
            **({"lengths": Tree.scalar(self._lengths)} if several else {}),
        }


def _squares(rows: Tensor) -> Tensor:
    return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).square()
