"""The engine that keeps uploads instead of pairs.

The recursion of a pair is linear, so ``delta_ij`` is a combination of uploads of ``i`` and of ``j``::

    delta_ij = sum_{r of i} A[r, j] W_r - sum_{r of j} A[r, i] W_r

with displacements ``W_r`` from ``omega^0``: the sums of ``A`` on both sides are equal, so the shift changes nothing.
Each update scales the old coefficients and adds 1 to those of the two models of now.  The norms follow from inner
products, of which a round needs those of its uploads with all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from coordinator.fusion._blocks import combined, products, squares
from coordinator.fusion._ledger import Ledger, lanes_of, with_rows
from coordinator.fusion._pages import Page, Pages
from edgepfl.algorithms._fusion import Columns, Form, expect
from edgepfl.algorithms._scad import Scad
from edgepfl.tree import Trees

_FADED = 2.0**-80
"""A coefficient up to this is nothing beside the 1 of the newest upload, even squared over many devices."""


class History:
    """See :class:`~edgepfl.algorithms._fusion.Engine`.

    Attributes:
        ledger: the numbers of devices and pairs.
        pages: the uploads and the coefficients.
    """

    form = Form.HISTORY

    def __init__(self, columns: Columns, state: Trees) -> None:
        expect(state, self.form)
        self.columns = columns
        self.pages = Pages(columns.first, state)
        self.ledger = Ledger.load(state["numbers"]) if state else Ledger.empty(columns.first.device)

    @property
    def count(self) -> int:
        return self.ledger.count

    @property
    def kept(self) -> int:
        """How many uploads are kept."""
        return self.pages.live

    @property
    def needed(self) -> Tensor:
        """Which pairs would need a vector if uploads were not kept, ``(m, m)``."""
        return self.ledger.met & ~self.ledger.plain

    def join(self, newcomers: int) -> None:
        if newcomers:
            self.ledger = self.ledger.grown(newcomers)
            self.pages.join(newcomers)

    def move(self, active: Sequence[int], uploaded: Tensor, scad: Scad, *, both: bool) -> None:
        places = torch.tensor(active, device=uploaded.device)
        self.pages.append(places, uploaded)
        gram = products(uploaded, [page.rows for page in self.pages], self.columns)
        gram, moved, start = self.columns.summed(gram, squares(uploaded), squares(self.columns.first[None]))
        between = self.pages.learn(places, gram)
        on = torch.zeros(self.count, dtype=torch.bool, device=uploaded.device)
        on[places] = True
        hit = (on if both else torch.ones_like(on)).expand(len(places), -1).clone()
        hit[torch.arange(len(places), device=places.device), places] = False  # nobody is a pair with itself
        self._update(places, between, hit, scad)
        norms = self.ledger.moved(places, moved, start)
        self.ledger = replace(self.ledger, norms=norms)
        self.pages.drop()

    def _update(self, places: Tensor, between: Tensor, hit: Tensor, scad: Scad) -> None:
        """The numbers and coefficients of the pairs of some devices, of those that are hit ``(s, m)``.

        ::

            |delta|^2 <- |omega_i - omega_j|^2 + 2 f <omega_i - omega_j, delta> + f^2 |delta|^2
        """
        ledger = self.ledger
        f = ledger.dual[places] / scad.rho
        own = between[torch.arange(len(places), device=places.device), places]
        squared = ledger.squares.index_copy(0, places, own)
        apart = squared[places][:, None] + squared - 2 * between
        q = (apart + 2 * f * self._inner(places) + f * f * ledger.q[places]).clamp_(min=0)
        mutual = q.index_select(1, places)
        q.index_copy_(1, places, (mutual + mutual.T) / 2)
        c = scad.factor(q.sqrt())
        plain = hit & (f == 0) & (c == 1)
        self.pages.reweigh(places, f.where(hit, 1.0), hit.to(f.dtype), _FADED)
        self.ledger = replace(
            ledger,
            c=with_rows(ledger.c, places, c.where(hit, ledger.c[places])),
            dual=with_rows(ledger.dual, places, (scad.rho * (1 - c)).where(hit, ledger.dual[places])),
            q=with_rows(ledger.q, places, q.where(hit, ledger.q[places])),
            met=with_rows(ledger.met, places, hit | ledger.met[places]),
            plain=with_rows(ledger.plain, places, plain),
            squares=squared,
        )

    def _inner(self, places: Tensor) -> Tensor:
        """``<omega_i - omega_j, delta_ij>`` of some devices' models of now and their pairs' last ``delta``, ``(s, m)``.

        It has a part from the uploads of ``i`` and one from those of ``j``.
        """
        found = self.ledger.c.new_zeros((len(places), self.count))
        lanes = lanes_of(places, self.count)
        for page in self.pages:
            with_owner = page.products.gather(1, page.whose[:, None])  # <omega_owner, W_r>
            apart = page.weights[:, places] * (with_owner - page.products[:, places])
            found += _summed_by(page.whose, apart, self.count).T
            own = (lanes[page.whose] >= 0).nonzero()[:, 0]
            apart = page.weights[own] * (with_owner[own] - page.products[own])
            found += _summed_by(lanes[page.whose[own]], apart, len(places))
        return found

    def centres(self, places: Sequence[int], rho: float) -> Tensor:
        at = torch.tensor(places, device=self.ledger.c.device)
        signed, lanes = self.ledger.signed(at, rho), lanes_of(at, self.count)
        pages, like = list(self.pages), self.ledger.c
        shares = [_shares(page, at, lanes, signed) for page in pages]
        means = [page.newest.to(like.dtype) for page in pages]
        weights = torch.cat([like.new_empty((len(at), 0)), *shares], 1)
        mean = torch.cat([like.new_empty(0), *means]) / self.count
        return combined(weights / self.count + mean, mean, [page.rows for page in pages], self.columns)

    def mean(self) -> Tensor:
        pages = list(self.pages)
        mean = torch.cat([self.ledger.c.new_empty(0), *(page.newest.to(torch.float64) for page in pages)]) / self.count
        return combined(mean[None], mean, [page.rows for page in pages], self.columns)[0]

    def omega(self, places: Sequence[int]) -> Tensor:
        at = torch.tensor(places, dtype=torch.int64, device=self.ledger.c.device)
        return self.pages.models(at, self.columns.first)

    def omega_norms(self) -> Tensor:
        return self.ledger.norms

    def theta_norms(self) -> Tensor:
        return self.ledger.lengths()

    def pair(self, i: int, j: int) -> tuple[Tensor, Tensor]:
        first = self.columns.first
        delta = torch.zeros_like(first, dtype=torch.float64)
        for page in self.pages:
            weights = page.weights[:, j] * (page.owners == i) - page.weights[:, i] * (page.owners == j)
            delta += weights @ (page.rows.to(torch.float64) - first)
        if self.columns.unpaired is not None:
            delta.masked_fill_(self.columns.unpaired, 0)
        return (self.ledger.c[i, j] * delta).to(first.dtype), (self.ledger.dual[i, j] * delta).to(first.dtype)

    def dump(self) -> Trees:
        return {
            "form": self.form.slot(self.columns.first),
            "numbers": self.ledger.dump(),
            **self.pages.dump(),
        }


def _summed_by(groups: Tensor, rows: Tensor, count: int) -> Tensor:
    """The rows of each group added up, ``(k, n)`` to ``(count, n)``, in the same order on every machine."""
    member = groups == torch.arange(count, device=groups.device)[:, None]
    return member.to(rows.dtype) @ rows


def _shares(page: Page, at: Tensor, lanes: Tensor, signed: Tensor) -> Tensor:
    """The coefficients of a page's rows in ``sum_j signed_ij delta_ij`` of some devices, ``(p, k)``."""
    shares = -signed[:, page.whose] * page.weights[:, at].T
    own = (lanes[page.whose] >= 0).nonzero()[:, 0]
    lane = lanes[page.whose[own]]
    shares[lane, own] = (page.weights[own] * signed[lane]).sum(1)
    return shares
