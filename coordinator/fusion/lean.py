"""The engine that keeps one vector for each pair that is not flat.

A pair that is flat twice over is the difference of the two models of now, which needs no vector.  In the one update in
which it becomes flat its ``delta`` still has the old dual in it, so the vector stays until the pair's next update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, pad

from coordinator.fusion._blocks import combined, products, squares, tiles
from coordinator.fusion._ledger import Ledger, lanes_of, with_pairs
from coordinator.fusion._slabs import Slabs
from edgepfl.algorithms._fusion import Columns, Form, expect
from edgepfl.algorithms._scad import Scad
from edgepfl.tree import Tree, Trees

_BLOCK = 1 << 16  # numbers to work on at a time
_NONE = -1  # the slot of a pair without a vector


class Lean:
    """See :class:`~edgepfl.algorithms._fusion.Engine`.

    Attributes:
        ledger: the numbers of devices and pairs.
        slots: which of the vectors is the pair's ``delta_ij`` with ``i < j``, ``(m, m)``, symmetric.
    """

    form = Form.LEAN

    def __init__(self, columns: Columns, state: Trees) -> None:
        expect(state, self.form)
        first = columns.first
        self._columns = columns
        self._models = state["omega"].value if state else first.new_empty((0, len(first)))
        self._vectors = Slabs(first, state.get("vectors"))
        self.slots = state["slots"].value if state else torch.empty((0, 0), dtype=torch.int64, device=first.device)
        self.ledger = Ledger.load(state["numbers"]) if state else Ledger.empty(first.device)

    @property
    def count(self) -> int:
        return self.ledger.count

    @property
    def kept(self) -> int:
        """How many vectors of pairs there are."""
        return int((self.slots >= 0).sum()) // 2

    def join(self, newcomers: int) -> None:
        if not newcomers:
            return
        self.ledger = self.ledger.grown(newcomers)
        self.slots = pad(self.slots, (0, newcomers, 0, newcomers), value=_NONE)
        first = self._columns.first
        models = first.new_empty((self.count, len(first)))
        models[: len(self._models)] = self._models
        models[len(self._models) :] = first
        self._models = models

    def move(self, active: Sequence[int], uploaded: Tensor, scad: Scad, *, both: bool) -> None:
        places = torch.tensor(active, device=uploaded.device)
        on = torch.zeros(self.count, dtype=torch.bool, device=uploaded.device)
        on[places] = True
        if both:
            self._part(on)
        self._models.index_copy_(0, places, uploaded)
        i, j = self._hit(on, both=both)
        self._update(places, uploaded, i, j, scad)
        self._models = self._models.view_as(self._models)  # a new object tells that it changed
        self._compact()

    def _hit(self, on: Tensor, *, both: bool) -> tuple[Tensor, Tensor]:
        """The pairs to update."""
        hit = on[:, None] & on if both else on[:, None] | on
        i, j = hit.triu_(1).nonzero().T
        return i, j

    def _part(self, on: Tensor) -> None:
        """Keep the differences of pairs without a vector of which one end is about to move without the other."""
        parted = self.ledger.plain & (on[:, None] ^ on)
        i, j = parted.triu(1).nonzero().T
        self._assign(i, j, self._allotted(len(i)))
        self._write(self._models, i, j, self.slots[i, j], self.ledger.q.new_zeros(len(i)))
        self.ledger = replace(self.ledger, plain=self.ledger.plain & ~parted)

    def _update(self, places: Tensor, uploaded: Tensor, i: Tensor, j: Tensor, scad: Scad) -> None:
        """All pairs that are hit: in place where there is a dual to carry, else by the models' inner products."""
        ledger, ids, factor = self.ledger, self.slots[i, j], self.ledger.dual[i, j] / scad.rho
        carries = (ids >= 0) & (factor != 0)
        c_at = carries.nonzero()[:, 0]
        lengths = self._write(self._models, i[c_at], j[c_at], ids[c_at], factor[c_at])
        gram = products(uploaded, [self._models], self._columns)
        gram, lengths, moved, start = self._columns.summed(
            gram, lengths, squares(uploaded), squares(self._columns.first[None])
        )
        own = gram[torch.arange(len(places), device=places.device), places]
        squared = ledger.squares.index_copy(0, places, own)
        lanes = lanes_of(places, self.count)
        moves = lanes[i] >= 0  # the first end, else the second
        inner = gram[torch.where(moves, lanes[i], lanes[j]), torch.where(moves, j, i)]
        q = (squared[i] + squared[j] - 2 * inner).clamp_(min=0).index_copy_(0, c_at, lengths)
        c = scad.factor(q.sqrt())
        flat = ~carries & (c == 1)
        self.ledger = replace(
            ledger,
            c=with_pairs(ledger.c, i, j, c),
            dual=with_pairs(ledger.dual, i, j, scad.rho * (1 - c)),
            q=with_pairs(ledger.q, i, j, q),
            met=with_pairs(ledger.met, i, j, True),  # noqa: FBT003  a value to store
            plain=with_pairs(ledger.plain, i, j, flat),
            squares=squared,
            norms=ledger.moved(places, moved, start),
        )
        self._settle(i, j, ids, flat, ~carries & ~flat)

    def _settle(self, i: Tensor, j: Tensor, ids: Tensor, flat: Tensor, fresh: Tensor) -> None:
        """Give up the vectors of flat pairs, and write the differences of those that have nothing to carry."""
        self.slots = with_pairs(self.slots, i[flat], j[flat], _NONE)
        homeless = fresh & (ids < 0)
        self._assign(i[homeless], j[homeless], self._allotted(int(homeless.sum())))
        i, j = i[fresh], j[fresh]
        self._write(self._models, i, j, self.slots[i, j], self.ledger.q.new_zeros(len(i)))

    def _write(self, models: Tensor, i: Tensor, j: Tensor, ids: Tensor, factor: Tensor) -> Tensor:
        """``delta <- models_i - models_j + factor delta`` in place; its squared norms in the columns here."""
        order = ids.argsort()
        found, share = torch.zeros_like(factor), factor[order].to(models.dtype)[:, None]
        groups = self._vectors.groups(ids[order], i[order], j[order], share, found)
        for key, rows, left, right, kept, total in groups:
            slab = self._vectors.written(key)
            for cols in tiles(models.shape[1], len(rows), slab.device, block=_BLOCK):
                old, models_here = slab[:, cols], models[:, cols]
                new = models_here.index_select(0, left).sub_(models_here.index_select(0, right))
                new.addcmul_(old.index_select(0, rows), kept)
                if self._columns.unpaired is not None:
                    new.masked_fill_(self._columns.unpaired[cols], 0)
                old.index_copy_(0, rows, new)
                total.add_(torch.linalg.vector_norm(new, dim=1, dtype=torch.float64).square_())
        return torch.empty_like(found).index_copy_(0, order, found)

    def _allotted(self, count: int) -> Tensor:
        """Ids of vectors that no pair uses, the least ones first."""
        if not count:
            return self.slots.new_empty(0)
        used = self.slots[self.slots >= 0]
        while len(self._vectors.parts) * self._vectors.rows < len(used) // 2 + count:
            self._vectors.add()
        free = torch.ones(len(self._vectors.parts) * self._vectors.rows, dtype=torch.bool, device=used.device)
        free[used] = False
        return free.nonzero()[:count, 0]

    def _assign(self, i: Tensor, j: Tensor, ids: Tensor) -> None:
        self.slots = with_pairs(self.slots, i, j, ids)

    def _compact(self) -> None:
        """Move the last vectors into gaps and give up slabs, where gaps are an eighth of the vectors or more."""
        rows, capacity = self._vectors.rows, self._vectors.rows * len(self._vectors.parts)
        kept = self.kept
        if capacity - kept < max(kept // 8, rows):
            return
        i, j = (self.slots >= kept).triu(1).nonzero().T
        old = self.slots[i, j]
        new = self._allotted(len(i))
        for _, where in self._vectors.by_slab(old):
            self._vectors.write(new[where], self._vectors.read(old[where]))
        self._assign(i, j, new)
        for key in range(-(-kept // rows), len(self._vectors.parts)):
            self._vectors.remove(key)

    def centres(self, places: Sequence[int], rho: float) -> Tensor:
        at, count = torch.tensor(places, device=self.slots.device), self.count
        weights = -self.ledger.plain[at].to(torch.float64)
        weights[torch.arange(len(at), device=at.device), at] = -weights.sum(1)  # n omega_i - sum omega_j, of flat pairs
        mean = weights.new_full((count,), 1 / count)
        out = combined(weights / count + mean, mean, [self._models], self._columns)
        self._add_pairs(out, at, self.ledger.signed(at, rho) / count)
        return out

    def _add_pairs(self, out: Tensor, at: Tensor, signed: Tensor) -> None:
        """Add each pair's share ``(p, m)`` of its vector to the centre of its one end."""
        ids = self.slots[at]
        lane, partner = (ids >= 0).nonzero().T
        ids = ids[lane, partner]
        share = torch.where(at[lane] < partner, 1.0, -1.0) * signed[lane, partner]
        order = torch.argsort(ids // self._vectors.rows, stable=True)
        groups = self._vectors.groups(ids[order], lane[order], share[order].to(out.dtype))
        for key, rows, lanes, weight in groups:
            slab = self._vectors.parts[key]
            whose, counts = torch.unique_consecutive(lanes, return_counts=True)
            summed = embedding_bag(rows, slab, counts.cumsum(0) - counts, mode="sum", per_sample_weights=weight)
            out.index_add_(0, whose, summed)

    def mean(self) -> Tensor:
        weights = self.ledger.norms.new_full((1, self.count), 1 / self.count)
        return combined(weights, weights[0], [self._models], self._columns)[0]

    def omega(self, places: Sequence[int]) -> Tensor:
        return self._models[torch.tensor(places, dtype=torch.int64, device=self._models.device)]

    def omega_norms(self) -> Tensor:
        return self.ledger.norms

    def theta_norms(self) -> Tensor:
        return self.ledger.lengths()

    def pair(self, i: int, j: int) -> tuple[Tensor, Tensor]:
        delta = self._delta(i, j)
        return self.ledger.c[i, j].to(delta.dtype) * delta, self.ledger.dual[i, j].to(delta.dtype) * delta

    def _delta(self, i: int, j: int) -> Tensor:
        if bool(self.ledger.plain[i, j]):
            delta = self._models[i] - self._models[j]
            return delta if self._columns.unpaired is None else delta.masked_fill(self._columns.unpaired, 0)
        if int(self.slots[i, j]) < 0:
            return torch.zeros_like(self._columns.first)
        return (1 if i < j else -1) * self._vectors.read(self.slots[i, j][None])[0]

    def dump(self) -> Trees:
        return {
            "form": self.form.slot(self._models),
            "numbers": self.ledger.dump(),
            "omega": Tree.scalar(self._models),
            "slots": Tree.scalar(self.slots),
            "vectors": self._vectors.dump(),
        }
