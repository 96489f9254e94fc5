"""Ranks that find each other in a store where others left what they wrote."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
from torch import distributed

from coordinator.aggregator.crew import Scattered
from coordinator.aggregator.meeting import Keys, agreed


def store() -> Keys:
    kept: Keys = distributed.HashStore()  # type: ignore[attr-defined]  # torch exports it without saying so
    return kept


def come(keys: Keys, rank: int, ranks: int, nonce: str, patience: float = 60.0) -> str:
    return agreed(
        keys, rank, ranks, nonce=nonce, patience=patience, clock=time.monotonic, pause=lambda: time.sleep(0.001)
    )


def meet(keys: Keys, ranks: int, start: str) -> set[str]:
    """The names that all ranks of one start come to."""
    with ThreadPoolExecutor(ranks) as pool:
        return set(pool.map(lambda rank: come(keys, rank, ranks, f"{start}-{rank}"), range(ranks)))


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_every_start_has_a_name_of_its_own(ranks: int) -> None:
    keys = store()
    names = [meet(keys, ranks, f"start {number}") for number in range(4)]
    assert all(len(name) == 1 for name in names)
    assert len(set.union(*names)) == 4


def test_other_numbers_of_ranks_may_have_been_there() -> None:
    keys = store()
    names = [meet(keys, ranks, f"of {ranks}") for ranks in (3, 2, 4)]
    assert [len(name) for name in names] == [1, 1, 1]


def test_a_rank_that_is_early_takes_nobody_of_before_for_the_others() -> None:
    keys = store()
    meet(keys, 3, "before")
    with ThreadPoolExecutor(3) as pool:
        early = [pool.submit(come, keys, rank, 3, f"now-{rank}") for rank in (0, 2)]
        while keys.get("meeting/list").decode() != "now-0,before-1,now-2":  # rank 0 looks again and again
            time.sleep(0.001)
        assert not any(each.done() for each in early)
        late = pool.submit(come, keys, 1, 3, "now-1")
        assert len({each.result(60) for each in (*early, late)}) == 1


def test_whoever_waits_in_vain_says_so() -> None:
    ticks = count()
    stopped = threading.Event()
    with pytest.raises(Scattered, match="not all of the 2 ranks came within 5 s"):
        agreed(store(), 0, 2, nonce="a", patience=5.0, clock=lambda: float(next(ticks)), pause=stopped.set)
    assert stopped.is_set()
    with pytest.raises(Scattered):
        agreed(store(), 1, 2, nonce="b", patience=5.0, clock=lambda: float(next(ticks)), pause=stopped.set)
