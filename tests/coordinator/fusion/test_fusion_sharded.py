"""Engines that hold some of the columns each, in lockstep, against one that holds all."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from _fusing import Fleet, Run, Turn, columns_of, flattened, sampled

from coordinator.fusion import ENGINES
from coordinator.fusion.hybrid import Hybrid
from coordinator.fusion.lean import Lean
from edgepfl.algorithms._fusion import Columns, Engine

FLEET = Fleet.of(9, 13, unpaired=4)  # an odd number of columns, and shards with and without columns that stay out
ENTRIES = 1e-12

pytestmark = pytest.mark.usefixtures("small_slabs")


@dataclass
class Lockstep:
    """Adds what all ranks give, as an all-reduce does: the same bits for every rank."""

    ranks: int
    calls: int = 0
    _given: dict[int, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._met, self._read = threading.Barrier(self.ranks, timeout=30), threading.Barrier(self.ranks, timeout=30)

    def across(self, rank: int, partial: torch.Tensor) -> torch.Tensor:
        self._given[rank] = partial
        self._met.wait()
        total = torch.stack([self._given[each] for each in range(self.ranks)]).sum(0)
        self._read.wait()
        if rank == 0:
            self.calls += 1
        return total


class Sharded:
    """One engine a rank: rank ``r`` of ``R`` has the columns ``d r // R`` to ``d (r + 1) // R``."""

    def __init__(self, name: str, ranks: int) -> None:
        d = len(FLEET.first)
        self.parts = [slice(d * rank // ranks, d * (rank + 1) // ranks) for rank in range(ranks)]
        self.lockstep = Lockstep(ranks)
        self.engines = [ENGINES[name](self._columns(rank), {}) for rank in range(ranks)]

    def _columns(self, rank: int) -> Columns:
        columns = columns_of(FLEET, "cpu", self.parts[rank])
        return replace(columns, across=lambda partial: self.lockstep.across(rank, partial))

    def move(self, turn: Turn, uploaded: torch.Tensor) -> None:
        def one(rank: int) -> None:
            engine = self.engines[rank]
            engine.join(turn.newcomers)
            engine.move(turn.active, uploaded[:, self.parts[rank]].contiguous(), turn.scad, both=turn.both)

        with ThreadPoolExecutor(len(self.engines)) as pool:
            list(pool.map(one, range(len(self.engines))))

    def centres(self, places: Sequence[int], rho: float) -> torch.Tensor:
        return torch.cat([engine.centres(places, rho) for engine in self.engines], 1)

    def pair(self, i: int, j: int) -> tuple[torch.Tensor, torch.Tensor]:
        theta, v = zip(*(engine.pair(i, j) for engine in self.engines), strict=True)
        return torch.cat(theta), torch.cat(v)


def assert_near(one: Engine, shards: Sharded, rho: float) -> None:
    everyone = range(one.count)
    np.testing.assert_allclose(shards.centres(everyone, rho), one.centres(everyone, rho), rtol=0, atol=ENTRIES)
    for i in everyone:
        for j in range(i):
            for got, expected in zip(shards.pair(i, j), one.pair(i, j), strict=True):
                np.testing.assert_allclose(got, expected, rtol=0, atol=ENTRIES)
    for engine in shards.engines:
        np.testing.assert_allclose(engine.omega_norms(), one.omega_norms(), rtol=ENTRIES)
        np.testing.assert_allclose(engine.theta_norms(), one.theta_norms(), rtol=0, atol=1e-7)  # a root of a difference


@pytest.mark.parametrize(("name", "ranks"), [*((name, 2) for name in ENGINES), ("hybrid", 4)])
def test_shards_do_what_the_whole_does(name: str, ranks: int) -> None:
    shards, run = Sharded(name, ranks), Run(FLEET, ENGINES[name](columns_of(FLEET, "cpu"), {}))
    turns = [
        replace(turn, both=number % 5 == 4, rho=2.0 if number > 9 else 1.0)
        for number, turn in enumerate(sampled(9, 1.0 if name == "potential" else 0.35, 18))
    ]
    for turn in turns:
        run.turn(turn)
        shards.move(turn, run.engine.omega(turn.active))
    assert_near(run.engine, shards, 1.3)
    if isinstance(run.engine, Hybrid):
        assert {type(engine.inside) for engine in shards.engines} == {type(run.engine.inside)} == {Lean}  # type: ignore[attr-defined]  # hybrids
    assert shards.lockstep.calls <= 2 * len(turns)


@pytest.mark.parametrize("name", ENGINES)
def test_what_is_no_row_is_the_same_on_every_rank(name: str) -> None:
    shards, run = Sharded(name, 2), Run(FLEET, ENGINES[name](columns_of(FLEET, "cpu"), {}))
    for turn in sampled(9, 1.0, 6):
        run.turn(turn)
        shards.move(turn, run.engine.omega(turn.active))
    left, right = (flattened(engine.dump()) for engine in shards.engines)
    wide = {"omega", "theta", "v", "rows", "vectors", "sums"}
    for key in left:
        if key.partition("/")[0] not in wide:
            assert torch.equal(left[key], right[key]), key
