"""Graphs of neighbours: regular, mutual, connected after dropouts, and thresholds that no lie gets around."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest
from _exchange import names

from edgepfl.secagg.graph import DROPOUT, FAILURE, degree, failure, neighbours, threshold


@pytest.mark.parametrize(("count", "k"), [(3, 2), (10, 9), (40, 12), (41, 16), (100, 60)])
def test_everyone_has_k_neighbours_who_have_it(count: int, k: int) -> None:
    graph = neighbours(names(count), k, np.random.default_rng(count))
    assert set(graph) == set(names(count))
    for name, near in graph.items():
        assert near == tuple(sorted(set(near) - {name}))
        assert len(near) == k
        assert all(name in graph[other] for other in near)


def reached(graph: dict[str, tuple[str, ...]], alive: set[str]) -> set[str]:
    found, edge = set[str](), {min(alive)}
    while edge:
        found |= edge
        edge = {other for name in edge for other in graph[name] if other in alive} - found
    return found


def test_the_survivors_are_connected() -> None:
    """Else there would be two sums that say more than one: of as many graphs, none falls apart."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        graph = neighbours(names(60), degree(60), rng)
        alive = set(rng.permutation(names(60))[: round(60 * (1 - DROPOUT))].tolist())
        assert reached(graph, alive) == alive
    sparse = neighbours(names(60), 2, np.random.default_rng(1))  # planted: a ring falls apart
    alive = set(names(60)) - {sparse[name][0] for name in names(60)[::7]} - set(names(60)[::9])
    assert reached(sparse, alive) != alive


def test_a_ring_depends_on_its_seed() -> None:
    first, again, other = (neighbours(names(40), 8, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize("count", [3, 4, 5, 9, 10, 32, 33, 40, 100, 257, 1000, 2000])
def test_no_two_groups_of_neighbours_open_both_secrets(count: int) -> None:
    k = degree(count)
    t = threshold(count, k)
    assert k // 2 < t <= k
    assert k <= 254
    if k == count - 1:  # two thirds of the devices leave two thirds of the others, or one fewer
        left = -(-2 * count // 3)
        assert left - 1 >= t or count == 3
    else:
        assert k % 2 == 0
        assert failure(count, k, t, int(DROPOUT * count)) <= FAILURE
        assert failure(count, k - 2, threshold(count, k - 2), int(DROPOUT * count)) > FAILURE


def test_known_degrees() -> None:
    assert [degree(count) for count in (20, 32, 50, 100, 1000)] == [19, 31, 32, 60, 174]
    assert degree(100, 13) == 14
    assert degree(10, 14) == 9


def test_the_bound_is_the_hypergeometric_tail() -> None:
    """Counted by hand: of 9 others 3 are gone, and of 4 neighbours fewer than 2 are left if 3 or more of them are."""
    wanted = 10 * (comb(6, 1) * comb(3, 3)) / comb(9, 4)
    assert float(failure(10, 4, 2, 3)) == pytest.approx(wanted)
