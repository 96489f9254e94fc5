"""Who takes part is drawn by name: reproducible, fair, and nobody's business but one's own."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from coordinator.cohort import choose

NAMES = st.frozensets(st.text("abcdefgh-0123", min_size=1, max_size=6), min_size=1, max_size=12)


@given(
    NAMES, st.integers(0, 15), st.integers(0, (1 << 63) - 1), st.integers(0, 1000), st.randoms(use_true_random=False)
)
def test_the_order_of_arrival_is_of_no_consequence(
    names: frozenset[str], count: int, seed: int, number: int, source: random.Random
) -> None:
    shuffled = sorted(names)
    source.shuffle(shuffled)
    chosen = choose(tuple(shuffled), count, seed, number)
    assert chosen == choose(tuple(sorted(names)), count, seed, number)
    assert list(chosen) == sorted(set(chosen))
    assert len(chosen) == min(count, len(names))


@given(NAMES, st.integers(1, 12), st.data())
def test_who_is_absent_changes_nobody_elses_draw(names: frozenset[str], count: int, data: st.DataObject) -> None:
    everybody = choose(tuple(sorted(names)), count, 5, 1)
    absent = data.draw(st.sampled_from(sorted(names)))
    without = set(choose(tuple(sorted(names - {absent})), count, 5, 1))
    assert without >= set(everybody) - {absent}
    assert absent in everybody or without == set(everybody)


def test_everybody_is_chosen_equally_often() -> None:
    names = tuple(f"pi-{k:02}" for k in range(10))
    counts = dict.fromkeys(names, 0)
    for number in range(2000):
        for name in choose(names, 3, 11, number):
            counts[name] += 1
    assert sum(counts.values()) == 6000
    deviation = 20.5  # of a binomial count with 2000 draws at 3/10
    assert all(abs(count - 600) < 5 * deviation for count in counts.values())


def test_it_depends_on_seed_and_round() -> None:
    names = tuple(f"pi-{k:02}" for k in range(30))
    drawn = {choose(names, 10, seed, number) for seed in range(5) for number in range(5)}
    assert len(drawn) == 25
    assert choose(names, 10, 1, 2) == choose(names, 10, 1, 2)
