"""The clusters of a run, from FPFC's state."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coordinator.clusters import Clusters, clusters_of, describe
from coordinator.fusion import ENGINES, with_engine
from edgepfl.algorithms import Cohort
from edgepfl.algorithms._clusters import clusters, components, fused_below, histogram
from edgepfl.algorithms.ditto import Ditto
from edgepfl.algorithms.fpfc import FPFC
from edgepfl.errors import RunError
from edgepfl.tree import Tree, Trees

DEVICES = ("ant", "bee", "cat", "dog", "elk")


def state_of(norms: dict[tuple[str, str], float], *, apart: float = 2.0, devices: tuple[str, ...] = DEVICES) -> Trees:
    """A state of the plain engine in which these pairs have these norms of theta, and the others ``apart``."""
    places = {device: torch.tensor(place) for place, device in enumerate(reversed(devices))}
    state = dict(FPFC().init(Tree({"w": torch.zeros(3)})))
    state |= {"places": Tree(places), "form": Tree.scalar(torch.tensor(0))}
    state["norms"] = Tree.scalar(torch.full((len(devices),), 5.0, dtype=torch.float64))
    state["omega"] = Tree.scalar(torch.zeros(len(devices), 3))
    if len(devices) > 1:
        pairs = [(high, low) for high in range(len(devices)) for low in range(high)]
        known = {tuple(pair): norm for pair, norm in norms.items()}
        named = [tuple(sorted(devices[len(devices) - 1 - place] for place in pair)) for pair in pairs]
        state["lengths"] = Tree.scalar(torch.tensor([known.get(each, apart) for each in named], dtype=torch.float64))
    return state


def found_in(state: Trees, nu: float = 0.0, **settings: float) -> Clusters:
    """The clusters of a state of the plain engine."""
    return clusters_of(FPFC(**settings), state, nu=nu)  # type: ignore[arg-type]  # floats by name


def test_a_cluster_needs_no_transitivity() -> None:
    found = found_in(state_of({("ant", "cat"): 1e-4, ("cat", "elk"): 1e-5, ("bee", "dog"): 0.0}), xi=1e-3)
    assert found.groups == (("ant", "cat", "elk"), ("bee", "dog"))
    assert sum(count for _, count in found.histogram) == 10
    assert found.histogram[0] == (0.0, 1)
    assert found.histogram[-1] == (3.16, 7)
    assert {bound for bound, count in found.histogram if count} == {0.0, 1e-5, 1e-4, 3.16}


def test_nu_is_the_greater_of_xi_and_a_thousandth_of_the_median_norm() -> None:
    state = state_of({})
    assert found_in(state, xi=1e-4).nu == pytest.approx(5e-3)
    assert found_in(state, xi=0.5).nu == 0.5
    assert found_in(state, xi=0.5, nu=3.0) == msgspec.structs.replace(
        found_in(state, xi=0.5), nu=3.0, groups=(DEVICES,)
    )
    assert clusters_of(FPFC(nu=0.7), state).nu == 0.7
    assert fused_below(0.2, np.zeros(0)) == 0.2


@pytest.mark.parametrize("devices", [(), ("ant",)])
def test_fewer_than_two_devices_have_no_pairs(devices: tuple[str, ...]) -> None:
    state = state_of({}, devices=devices) if devices else FPFC().init(Tree({"w": torch.zeros(3)}))
    found = found_in(state, xi=1e-4)
    assert found.groups == tuple((device,) for device in devices)
    assert found.histogram == ()
    assert describe(found).startswith(f"{len(devices)} clusters")


def test_another_algorithms_state_is_refused() -> None:
    with pytest.raises(RunError, match="knows no clusters") as caught:
        clusters_of(Ditto(), {"w": Tree({"bias": np.zeros(2)})})
    assert "fpfc" in caught.value.remedy


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_tells_the_clusters_that_formed(name: str) -> None:
    """Two groups in which devices end up close, 5 apart."""
    algorithm = with_engine(FPFC(lam=0.5, xi=0.1), name)
    state: Trees = algorithm.init(Tree({"w": torch.zeros(3)}))
    rows = torch.tensor([[0.0, 0, 0], [5, 0, 0], [0.01, 0, 0], [5.01, 0, 0], [0, 0.01, 0]])
    for number in (1, 2):
        state = algorithm.update(state, everybody(rows, number))
    found = clusters_of(algorithm, numpy_of(state))
    assert found.groups == (("ant", "cat", "elk"), ("bee", "dog"))
    assert found.nu == 0.1
    assert sum(count for _, count in found.histogram) == 10


def everybody(rows: torch.Tensor, number: int) -> Cohort:
    """What all devices upload."""
    stack = {"fused": Tree({"w": rows})}
    return Cohort(DEVICES, (5,) * 5, (1,) * 5, {"delta": Tree({})}, stack, number, DEVICES)


def numpy_of(state: Trees) -> Trees:
    """The state as a checkpoint may hold it."""
    return {slot: tree.map(lambda tensor: tensor.numpy()) for slot, tree in state.items()}


def test_the_text_has_the_clusters_and_a_bar_for_each_bin() -> None:
    many = tuple(f"pi-{k}" for k in range(8))
    text = describe(Clusters(0.01, (many, ("owl",)), ((0.001, 5), (1.0, 20))))
    assert text.splitlines() == [
        "2 clusters (pairs with |theta| <= 0.01 are fused)",
        "     8  pi-0, pi-1, pi-2, pi-3, pi-4, pi-5, and 2 more",
        "     1  owl",
        "|theta| up to   pairs",
        "       0.001        5  ##########",
        "           1       20  " + "#" * 40,
    ]


def reached(count: int, edges: list[tuple[int, int]]) -> set[tuple[int, ...]]:
    """The components, by the closure of the relation."""
    joined = np.eye(count, dtype=bool)
    for i, j in edges:
        joined[i, j] = joined[j, i] = True
    for _ in range(count):
        joined = (joined.astype(int) @ joined) > 0
    return {tuple(np.flatnonzero(row).tolist()) for row in joined}


@given(st.integers(1, 9), st.data())
def test_components_are_the_closure_of_the_relation(count: int, data: st.DataObject) -> None:
    vertex = st.integers(0, count - 1)
    edges = data.draw(st.lists(st.tuples(vertex, vertex), max_size=12))
    found = components(count, edges)
    assert set(found) == reached(count, edges)
    assert [each[0] for each in found] == sorted(each[0] for each in found)
    assert sorted(itertools.chain(*found)) == list(range(count))


@given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=30))
def test_every_norm_is_in_one_bin_of_the_histogram(norms: list[float]) -> None:
    bins = histogram(np.array(norms))
    bounds = [bound for bound, _ in bins]
    assert sum(count for _, count in bins) == len(norms)
    assert bounds == sorted(bounds)
    assert bounds[-1] >= max(norms) * 0.99
    assert bins[0][1] > 0


def test_the_pairs_are_those_of_the_names_in_order() -> None:
    norms = np.ones(10)
    norms[[2, 6]] = 0.1  # ant-dog, bee-elk
    assert clusters(DEVICES, norms, 0.1) == (("ant", "dog"), ("bee", "elk"), ("cat",))
    assert clusters(DEVICES, norms, 0.05) == tuple((device,) for device in DEVICES)
