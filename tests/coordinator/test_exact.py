"""Sums whose bits do not depend on order or grouping, against rational numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from coordinator.exact import BINS, MOST, Exact, Grid
from edgepfl.errors import ConfigError, RunError
from edgepfl.plan import TensorSpec
from edgepfl.tree import Tree

GRID = Grid.of(1e6, 1e6)
STEP = Fraction(GRID.steps[-1])
LIKE = {"w": TensorSpec((1,))}
NUMBERS = st.one_of(
    st.floats(-1e6, 1e6, width=32),
    st.floats(-(2.0**-20), 2.0**-20, width=32),
    st.sampled_from([1e6, -1e6, 2.0**-40, -(2.0**-60), 2.0**-61, 3.0 * 2.0**-62, 2.0**-62, -(2.0**-62), 2.0**-149]),
)
UPLOADS = st.lists(st.tuples(st.integers(1, 1_000_000), NUMBERS), min_size=1, max_size=5)
Uploads = Sequence[tuple[int, float]]


def row(x: float, dtype: torch.dtype = torch.float32) -> Tree:
    return Tree({"w": torch.tensor([x], dtype=dtype)})


def summed(uploads: Uploads) -> Exact:
    exact = Exact.zeros(LIKE, GRID)
    for weight, x in uploads:
        exact.add(row(x), weight)
    return exact


def bits(exact: Exact) -> tuple[int, ...]:
    return tuple(int(tree["w"]) for tree in exact.bins())


def rational(uploads: Uploads) -> Fraction:
    """Each product is rounded to the grid, to even at a tie, and nothing else is."""
    return sum((round(weight * Fraction(x) / STEP) * STEP for weight, x in uploads), Fraction(0))


@given(UPLOADS)
@example([(1, 1.0), (1, 2.0**-53)])  # a tie of the final rounding, that the third bin decides
@example([(1, 1.0), (1, 2.0**-53), (1, 2.0**-61)])
@example([(1, 1.0), (1, 2.0**-53), (1, -(2.0**-61))])
@example([(1, 3 * 2.0**-62), (1, 2.0**-62)])
def test_the_sum_is_that_of_rational_numbers_rounded_once(uploads: Uploads) -> None:
    total = float(summed(uploads).total()["w"])
    assert total == float(rational(uploads))  # Python rounds a fraction correctly
    assert abs(Fraction(total) - sum(w * Fraction(x) for w, x in uploads)) <= (
        len(uploads) * STEP / 2 + Fraction(math.ulp(total)) / 2
    )


@given(UPLOADS)
def test_every_order_gives_the_same_bits(uploads: Uploads) -> None:
    assert len({bits(summed(order)) for order in itertools.permutations(uploads)}) == 1


@given(st.lists(UPLOADS, min_size=2, max_size=4), st.randoms())
def test_every_grouping_gives_the_same_bits(groups: list[Uploads], random: object) -> None:
    flat = summed([upload for group in groups for upload in group])
    parts = [summed(group) for group in groups]
    random.shuffle(parts)  # type: ignore[attr-defined]  # hypothesis's own Random
    whole = Exact.zeros(LIKE, GRID)
    for part in parts:
        sent = [tree.map(lambda tensor: tensor.numpy()) for tree in part.bins()]  # as it crosses
        whole.merge(Exact.from_bins(sent, GRID, part.count))
    assert (bits(whole), whole.count) == (bits(flat), flat.count)
    assert whole.total(3.0)["w"].tolist() == flat.total(3.0)["w"].tolist()


@given(st.floats(-1e12, 1e12))
def test_a_double_is_rounded_to_the_grid(x: float) -> None:
    exact = Exact.zeros(LIKE, GRID)
    exact.add(row(x, torch.float64))
    assert Fraction(float(exact.total()["w"])) == float(round(Fraction(x) / STEP) * STEP)


def test_the_grids_are_where_the_proof_puts_them() -> None:
    assert GRID.top == 40
    assert GRID.steps == (2.0**7, 2.0**-27, 2.0**-61)


PARTS = st.one_of(
    st.integers(-(1 << 53), 1 << 53),
    st.sampled_from([sign << bit for bit in (0, 1, 20, 32, 33, 34, 52, 53) for sign in (1, -1)]),
)


@given(PARTS, PARTS, PARTS)
@example(1 << 52, 1 << 33, 1)  # half a last place, and a little more that two roundings would lose
@example(1 << 52, 1 << 33, -1)
@example((1 << 52) + 1, 1 << 33, -1)
@example(-(1 << 52), -(1 << 33), -1)
def test_whatever_the_bins_hold_is_rounded_once(first: int, second: int, third: int) -> None:
    bins = [Tree({"w": torch.tensor([part])}) for part in (first, second, third)]
    total = Exact.from_bins(bins, GRID, MOST).total()["w"]
    parts = zip((first, second, third), GRID.steps, strict=True)
    assert total.tolist() == [float(sum((part * Fraction(step) for part, step in parts), Fraction(0)))]


def test_bins_at_their_limits_are_exact() -> None:
    """As many of the greatest products as there may be; half of what a bin can hold lies on either side."""
    greatest = math.ldexp(1.0, GRID.top)
    most = [torch.tensor([MOST << 33, 0]) for _ in range(BINS)]
    full = Exact.from_bins([Tree({"w": each}) for each in most], GRID, MOST)
    assert full.total()["w"].tolist() == [float(sum(Fraction(s) * (MOST << 33) for s in GRID.steps)), 0.0]
    with pytest.raises(RunError, match=r"more than 1048576 uploads"):
        full.add(Tree({"w": torch.zeros(2)}))
    exact = Exact.zeros(LIKE, GRID)
    exact.add(row(greatest))
    with pytest.raises(RunError, match="is above"):
        exact.add(row(greatest), 1.0001)
    assert (exact.count, bits(exact)) == (1, (1 << 33, 0, 0))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e30, -1e30])
def test_what_does_not_fit_is_refused_and_changes_nothing(bad: float) -> None:
    exact = Exact.zeros({"a": TensorSpec((2,)), "w": TensorSpec((3, 1))}, GRID)
    exact.add(Tree({"a": torch.ones(2), "w": torch.ones(3, 1)}))
    with pytest.raises(RunError, match="a weighted number"):
        exact.add(Tree({"a": torch.ones(2), "w": torch.tensor([[1.0], [bad], [0.0]])}))
    assert exact.count == 1
    assert exact.total()["a"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("bins", "count"),
    [
        ([[1 << 34], [0], [0]], 1),
        ([[0], [-(1 << 34)], [0]], 1),
        ([[0], [0], [-(1 << 63)]], 1),
        ([[0], [0]], 1),
        ([[0], [0], [0]], MOST + 1),
        ([[0], [0], [0]], -1),
        ([[1], [0], [0]], 0),
        ([[0.0], [0.0], [0.0]], 1),
    ],
)
def test_bins_that_no_sum_has_are_refused(bins: list[list[float]], count: int) -> None:
    with pytest.raises(RunError):
        Exact.from_bins([Tree({"w": np.array(each)}) for each in bins], GRID, count)


def test_only_sums_on_one_grid_meet() -> None:
    with pytest.raises(RunError, match="different grids"):
        summed([(1, 1.0)]).merge(Exact.zeros(LIKE, Grid(GRID.top + 1)))
    for top in (-501, 500):
        with pytest.raises(ConfigError, match="cannot be summed exactly"):
            Grid(top)
    assert Grid.of(1e30, 1 << 31).top == 132  # what the settings allow at most


def test_tensors_longer_than_a_block_and_of_every_shape() -> None:
    shapes = {"long": (70_001, 2), "none": (0,), "one": ()}
    like = {name: np.empty(shape) for name, shape in shapes.items()}
    source = np.random.default_rng(3)
    trees = [
        Tree({n: torch.tensor(source.standard_normal(s), dtype=torch.float32) for n, s in shapes.items()}) for _ in "ab"
    ]
    exact = Exact.zeros(like, GRID)
    for tree in trees:
        exact.add(tree, 5)
    for name, total in exact.total(10.0).items():
        wanted = (trees[0][name].double() * 5 + trees[1][name].double() * 5) / 10
        assert total.shape == shapes[name]
        np.testing.assert_allclose(total, wanted, rtol=1e-15, atol=1e-16)
