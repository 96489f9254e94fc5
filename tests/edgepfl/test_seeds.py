from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepfl.seeds import SEED_BITS, derive, generator

PARTS = st.lists(st.one_of(st.text(max_size=8), st.integers(-(1 << 40), 1 << 40)), max_size=4).map(tuple)
SEEDS = st.integers(0, (1 << SEED_BITS) - 1)

# A run's every draw hangs on these: they never change.
KNOWN: list[tuple[int, tuple[str | int, ...], int]] = [
    (0, (), 1887154467326967967),
    (1, ("minibatch", "pi-07", 3), 1073835495912837672),
    ((1 << 63) - 1, ("noise", "z", -1), 5331668840593723386),
    (42, ("",), 1085719436632800374),
]


@pytest.mark.parametrize(("seed", "names", "expected"), KNOWN)
def test_known_seeds_never_change(seed: int, names: tuple[str | int, ...], expected: int) -> None:
    assert derive(seed, *names) == expected
    assert 0 <= expected < 1 << SEED_BITS


def test_known_draws_never_change() -> None:
    drawn = generator(7, "minibatch", "pi-07", 3)
    assert drawn.integers(0, 1000, 5).tolist() == [696, 797, 974, 18, 496]
    assert drawn.permutation(6).tolist() == [5, 3, 0, 4, 2, 1]
    assert drawn.standard_normal(2).tolist() == [0.3669330973397639, -0.3926914429128377]


@given(SEEDS, PARTS, SEEDS, PARTS)
def test_other_paths_give_other_seeds(
    a: int, path: tuple[str | int, ...], b: int, other: tuple[str | int, ...]
) -> None:
    assert (derive(a, *path) == derive(b, *other)) == ((a, path) == (b, other))
    assert derive(a, *path).bit_length() <= SEED_BITS


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (("ab", "c"), ("a", "bc")),
        (("a", ""), ("", "a")),
        (("a/b",), ("a", "b")),
        (("str:a",), ("a",)),
        (("",), ()),
        (("1",), (1,)),
        ((1, 23), (12, 3)),
    ],
)
def test_names_do_not_run_into_each_other(one: tuple[str | int, ...], two: tuple[str | int, ...]) -> None:
    assert derive(5, *one) != derive(5, *two)
    assert derive(5, *one) == derive(5, *one)


def test_streams_do_not_depend_on_what_was_drawn_before() -> None:
    first = generator(1, "minibatch", "pi-07", 3).random(4)
    for device in ("pi-01", "pi-02"):
        generator(1, "minibatch", device, 3).random(100)
    np.testing.assert_array_equal(generator(1, "minibatch", "pi-07", 3).random(4), first)
    assert not np.array_equal(generator(1, "minibatch", "pi-07", 4).random(4), first)


def test_streams_of_neighbours_are_uncorrelated() -> None:
    streams = np.array([generator(1, "minibatch", f"pi-{place:02}", 0).standard_normal(2000) for place in range(8)])
    between = np.corrcoef(streams) - np.eye(8)
    assert np.abs(between).max() < 5 / np.sqrt(2000)
    assert np.abs(streams.mean(1)).max() < 5 / np.sqrt(2000)
