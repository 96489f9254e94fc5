"""Uploads and what pairs make of them, in pages: the storage of the history form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from coordinator.fusion._ledger import lanes_of
from coordinator.fusion._slabs import Slabs
from edgepfl.tree import Tree, Trees

_NOBODY = -1
_DEAD = 8  # pages are cleared where one row in so many is dead


@dataclass(frozen=True)
class Page:
    """Of ``k`` uploads.

    Attributes:
        key: the page's number; its row ``r`` has the id ``key * rows + r``.
        rows: the uploads, ``(k, d)``.
        owners: the place of the device that each is from, ``(k,)``; -1 where nobody refers to it.
        weights: ``A[r, j]``, the share of row ``r`` in ``delta`` of its owner and ``j``, ``(k, m)``.
        products: ``<omega_j, W_r>`` of displacements, ``(k, m)``.
        newest: whether the row is its owner's model of now, ``(k,)``.
    """

    key: int
    rows: Tensor
    owners: Tensor
    weights: Tensor
    products: Tensor
    newest: Tensor

    @property
    def whose(self) -> Tensor:
        """The owners, with some place where there is none: the weights are 0 there."""
        return self.owners.clamp(min=0)


class Pages:
    """All pages.  A page is filled from its first row on, and once it is full its uploads never change.

    Attributes:
        current: the id of each device's model of now, ``(m,)``; -1 where it has never uploaded.
    """

    def __init__(self, like: Tensor, state: Trees) -> None:
        """Of devices whose rows are like ``like``, ``(d,)``; what :meth:`dump` gave."""
        self.uploads = Slabs(like, state.get("rows"))
        self._owners, self._weights, self._products = (
            {int(name): tensor for name, tensor in state[slot].items()} if state else {}
            for slot in ("owners", "weights", "products")
        )
        self.current = state["current"].value if state else torch.empty(0, dtype=torch.int64, device=like.device)
        self._next = int(state["next"].value) if state else 0

    def __iter__(self) -> Iterator[Page]:
        """The pages in order, each as far as it is filled."""
        for key, rows in self.uploads.parts.items():
            start, owners = key * self.uploads.rows, self._owners[key]
            filled = min(self._next - start, self.uploads.rows)
            owners = owners[:filled]
            ids = torch.arange(start, start + filled, device=owners.device)
            newest = (owners >= 0) & (self.current[owners.clamp(min=0)] == ids)
            yield Page(key, rows[:filled], owners, self._weights[key][:filled], self._products[key][:filled], newest)

    @property
    def live(self) -> int:
        """How many uploads somebody refers to."""
        return sum(int((owners >= 0).sum()) for owners in self._owners.values())

    def join(self, newcomers: int) -> None:
        """Room for devices that never uploaded: their displacement is 0."""
        pad = torch.nn.functional.pad
        self.current = pad(self.current, (0, newcomers), value=_NOBODY)
        for kept in (self._weights, self._products):
            for key in kept:
                kept[key] = pad(kept[key], (0, newcomers))

    def append(self, places: Tensor, rows: Tensor) -> None:
        """Add the new models of some devices."""
        ids = self._place(len(rows))
        self.current = self.current.index_copy(0, places, ids)
        self.uploads.write(ids, rows)
        for key, where in self.uploads.by_slab(ids):
            self._owners[key] = self._owners[key].index_copy(0, ids[where] - key * self.uploads.rows, places[where])

    def _place(self, count: int) -> Tensor:
        """Ids of so many rows behind all others."""
        size = self.uploads.rows
        ids = torch.arange(self._next, self._next + count, device=self.current.device)
        self._next += count
        while self._next > (max(self.uploads.parts, default=-1) + 1) * size:
            key = self.uploads.add()
            like = self.uploads.parts[key]
            self._owners[key] = self.current.new_full((size,), _NOBODY)
            self._weights[key], self._products[key] = (
                like.new_zeros((size, len(self.current)), dtype=torch.float64) for _ in range(2)
            )
        return ids

    def learn(self, places: Tensor, gram: Tensor) -> Tensor:
        """Take in the inner products of the new models with all rows.

        Args:
            places: whose models are new.
            gram: ``(s, rows of all pages)``, float64.

        Returns:
            those with every device's model of now, ``(s, m)``.
        """
        between = gram.new_zeros((len(places), len(self.current)))
        shares = iter(torch.split(gram, [len(page.rows) for page in self], 1))
        for page in self:
            share, newest = next(shares), page.newest.nonzero()[:, 0]
            between.index_copy_(1, page.owners[newest], share.index_select(1, newest))
            self._written(self._products, page.key)[: len(page.rows)].index_copy_(1, places, share.T)
        ids = self.current[places]
        for key, where in self.uploads.by_slab(ids):
            self._products[key].index_copy_(0, ids[where] - key * self.uploads.rows, between.index_select(0, where))
        return between

    def reweigh(self, places: Tensor, kept: Tensor, hit: Tensor, faded: float) -> None:
        """Scale the old shares of some devices' pairs, and add the models of now to those that are hit.

        Args:
            places: whose pairs.
            kept: what stays of each pair's old shares, ``(s, m)``, as seen from both ends.
            hit: 1 where a pair is updated, likewise.
            faded: shares up to this are nothing.
        """
        shrink, lanes = torch.nn.functional.hardshrink, lanes_of(places, len(self.current))
        for page in self:
            weights = self._written(self._weights, page.key)[: len(page.owners)]
            own = (lanes[page.whose] >= 0).nonzero()[:, 0]
            lane, now = lanes[page.whose[own]], page.newest.to(kept.dtype)[:, None]
            rows = weights[own] * kept[lane] + hit[lane] * now[own]
            columns = weights[:, places] * kept[:, page.whose].T + hit[:, page.whose].T * now
            weights.index_copy_(1, places, shrink(columns, faded)).index_copy_(0, own, shrink(rows, faded))

    def drop(self) -> None:
        """Forget rows that no pair refers to, and clear pages that have become sparse."""
        counts = {}
        for page in self:
            alive = (page.owners >= 0) & ((page.weights != 0).any(1) | page.newest)
            counts[page.key] = int(alive.sum())
            if counts[page.key] < int((page.owners >= 0).sum()):
                self._owners[page.key] = self._owners[page.key].clone()
                self._owners[page.key][: len(alive)] = page.owners.where(alive, _NOBODY)
        sparse = sorted(key for key in counts if (key + 1) * self.uploads.rows <= self._next)
        live, dead = sum(counts.values()), sum(self.uploads.rows - counts[key] for key in sparse)
        for key in sorted(sparse, key=counts.__getitem__):
            if counts[key] and dead * _DEAD <= live:
                break
            dead -= self.uploads.rows - counts[key]
            self._clear(key)

    def _clear(self, key: int) -> None:
        """Move what lives in a page behind all others and give the page up."""
        page = next(page for page in self if page.key == key)
        alive = (page.owners >= 0).nonzero()[:, 0]
        ids = self._place(len(alive))
        self.uploads.write(ids, page.rows[alive])
        for new, where in self.uploads.by_slab(ids):
            at, old = ids[where] - new * self.uploads.rows, alive[where]
            for kept, rows in ((self._weights, page.weights), (self._products, page.products)):
                kept[new].index_copy_(0, at, rows[old])
            self._owners[new] = self._owners[new].index_copy(0, at, page.owners[old])
        moved = page.newest[alive]
        self.current = self.current.index_copy(0, page.owners[alive][moved], ids[moved])
        self.uploads.remove(key)
        for kept in (self._owners, self._weights, self._products):
            del kept[key]
        self._next = min(self._next, (max(self.uploads.parts, default=-1) + 1) * self.uploads.rows)

    def _written(self, kept: dict[int, Tensor], key: int) -> Tensor:
        """A tensor that is about to change in place, as a new object."""
        kept[key] = kept[key].view_as(kept[key])
        return kept[key]

    def sorted_by_owner(self) -> tuple[Tensor, Tensor, Tensor]:
        """The live rows in the order of their owners: ids, owners, weights ``(R, m)``."""
        pages = [(page, (page.owners >= 0).nonzero()[:, 0]) for page in self]
        ids = torch.cat([live + page.key * self.uploads.rows for page, live in pages])
        owners = torch.cat([page.owners[live] for page, live in pages])
        order = torch.argsort(owners, stable=True)
        return ids[order], owners[order], torch.cat([page.weights[live] for page, live in pages])[order]

    def forget(self) -> None:
        """Give up all coefficients and inner products; only the uploads stay."""
        for kept in (self._owners, self._weights, self._products):
            kept.clear()

    def models(self, places: Tensor, first: Tensor) -> Tensor:
        """Some devices' models of now, ``(k, d)``; ``omega^0`` where they never uploaded."""
        ids = self.current[places]
        out = first.expand(len(places), -1).clone()
        known = (ids >= 0).nonzero()[:, 0]
        out[known] = self.uploads.read(ids[known])
        return out

    def dump(self) -> Trees:
        """All of it by slot."""
        kept = {"owners": self._owners, "weights": self._weights, "products": self._products}
        return {
            "rows": self.uploads.dump(),
            **{slot: Tree({f"{key:09d}": tensor for key, tensor in parts.items()}) for slot, parts in kept.items()},
            "current": Tree.scalar(self.current),
            "next": Tree.scalar(torch.tensor(self._next, device=self.current.device)),
        }
