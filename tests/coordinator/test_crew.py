"""Ranks that talk to each other: same sums everywhere, and nobody waits for one that failed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from _crews import Seat, Table, in_ranks
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.aggregator.crew import Alone, Crew, Scattered
from coordinator.aggregator.job import ERROR_LIMIT
from edgepfl.errors import ConfigError, EdgepflError, RunError, StoreError

RANKS = 3


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64])
def test_a_sum_is_the_same_bits_in_every_rank(dtype: torch.dtype) -> None:
    source = np.random.default_rng(0)
    terms = [torch.tensor(source.normal(0, 1e3, (4, 5))).to(dtype) for _ in range(RANKS)]
    found = in_ranks(RANKS, lambda crew: crew.across(terms[crew.rank]))
    expected = ((terms[0].double() + terms[1].double()) + terms[2].double()).to(dtype)
    assert all(torch.equal(each, expected) and each.dtype == dtype for each in found)


def test_one_rank_is_a_crew() -> None:
    crew = Crew(Alone())
    assert torch.equal(crew.across(torch.tensor([1.5])), torch.tensor([1.5]))
    assert crew.collect(b"abc") == [b"abc"]
    assert crew.share(b"abc") == b"abc"
    assert crew.together(lambda: crew.told(b"x")) == b"x"
    with pytest.raises(RunError, match="no luck"):
        crew.together(lambda: fail(RunError("no luck")))


@settings(max_examples=20)
@given(st.lists(st.binary(max_size=40), min_size=RANKS, max_size=RANKS), st.binary(max_size=40))
def test_bytes_come_whole(parts: list[bytes], said: bytes) -> None:
    def part(crew: Crew) -> tuple[list[bytes], bytes, bytes]:
        word = said if crew.rank == 0 else b""
        return crew.together(lambda: (crew.collect(parts[crew.rank]), crew.told(word), crew.share(word)))

    first, *others = in_ranks(RANKS, part)
    assert first == (parts, said, said)
    assert all(other == ([], said, said) for other in others)


def fail(error: Exception) -> None:
    raise error


def errors(part: Callable[[Crew], object]) -> list[EdgepflError]:
    """What each rank is told."""

    def told(crew: Crew) -> EdgepflError:
        with pytest.raises(EdgepflError) as caught:
            crew.together(lambda: part(crew))
        assert torch.equal(
            crew.across(torch.ones(1)), torch.full((1,), float(RANKS))
        )  # they still understand each other
        return caught.value

    return in_ranks(RANKS, told)


WAITING: dict[str, Callable[[Crew], object]] = {
    "in a sum": lambda crew: crew.across(torch.ones(7)),
    "in a gathering": lambda crew: crew.collect(b"much"),
    "for rank 0": lambda crew: crew.told(b"word"),
    "at the end": lambda _: None,
}


@pytest.mark.parametrize("where", WAITING)
@pytest.mark.parametrize("failing", [{0}, {1}, {0, 2}])
def test_a_failure_is_every_ranks_and_the_first_says_why(where: str, failing: set[int]) -> None:
    def part(crew: Crew) -> None:
        crew.across(torch.ones(2))
        if crew.rank in failing:
            fail(ConfigError(f"rank {crew.rank} cannot"))
        WAITING[where](crew)

    for error in errors(part):
        assert (type(error), str(error)) == (RunError, f"ConfigError: rank {min(failing)} cannot")


def test_a_store_that_failed_is_told_from_a_run_that_did() -> None:
    found = errors(lambda crew: fail(StoreError("disk full")) if crew.rank == 2 else crew.across(torch.ones(1)))
    assert {(type(error), str(error)) for error in found} == {(StoreError, "disk full")}
    long = errors(lambda crew: fail(ValueError("\u00e9" * 5000)) if crew.rank == 1 else None)
    assert all(type(error) is RunError and str(error).startswith("ValueError: \u00e9\u00e9") for error in long)
    assert all(len(str(error)) <= ERROR_LIMIT for error in long)


@pytest.mark.parametrize("where", WAITING)
def test_who_waits_for_a_rank_that_is_gone_is_told(where: str) -> None:
    table = Table(2)
    crew = Crew(Seat(table, 0))
    table.leave()
    with pytest.raises(Scattered):
        crew.together(lambda: WAITING[where](crew))
    with pytest.raises(Scattered):
        crew.share(b"")


def test_ranks_that_do_not_do_the_same_are_scattered() -> None:
    def apart(crew: Crew) -> str:
        with pytest.raises(Scattered, match="not do the same"):
            crew.together(lambda: crew.across(torch.ones(2 + crew.rank)))
        with pytest.raises(Scattered, match="not do the same"):
            crew.together(lambda: crew.across(torch.ones(2)) if crew.rank else crew.told(b""))
        return "done"

    assert in_ranks(2, apart) == ["done", "done"]
