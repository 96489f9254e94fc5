"""Many receivers on slow links: repetitions for one must not choke the links of all."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from _cohort import Cohort

KIB = 1 << 10
RATE = 100_000  # bytes per second
SIZE = 2_000_000


def _alone(rate: float) -> float:
    return SIZE / rate


@pytest.mark.parametrize("devices", [1, 20])
def test_equal_links_get_each_chunk_once(tmp_path: Path, devices: int) -> None:
    random = Random(3)
    cohort = Cohort(tmp_path, random.randbytes(SIZE), [RATE] * devices, chunk=64 * KIB)
    cohort.run([random.uniform(0, 0.05) for _ in range(devices)], limit=1000)
    assert cohort.published <= 1.3 * 31
    assert max(link.done_at or 0 for link in cohort.links) <= 1.3 * _alone(RATE)


def test_links_that_drift_apart_do_not_ask_for_what_is_on_its_way(tmp_path: Path) -> None:
    """Without Need.quiet each chunk was published 27 times, and all took more than three times as long."""
    random = Random(3)
    rates = [random.uniform(0.9, 1.1) * RATE for _ in range(20)]
    cohort = Cohort(tmp_path, random.randbytes(SIZE), rates, chunk=64 * KIB)
    cohort.run([random.uniform(0, 0.05) for _ in rates], limit=1000)
    assert cohort.published <= 1.5 * 31
    assert max(link.done_at or 0 for link in cohort.links) <= 1.5 * _alone(min(rates))


def test_late_ones_follow_the_stream_and_get_its_beginning_together(tmp_path: Path) -> None:
    """Without START and the cursor each chunk was published 92 times."""
    random = Random(4)
    cohort = Cohort(tmp_path, random.randbytes(SIZE), [RATE] * 20, chunk=64 * KIB)
    cohort.run([random.uniform(0, 5) for _ in range(20)], limit=1000)
    assert cohort.published <= 5 * 31


def test_fast_links_do_not_wait_for_slow_ones(tmp_path: Path) -> None:
    rates = [50e6] * 10 + [RATE] * 10
    cohort = Cohort(tmp_path, Random(5).randbytes(SIZE), rates, chunk=64 * KIB)
    cohort.run([0.0] * 20, limit=1000)
    assert cohort.published <= 1.3 * 31
    assert max(link.done_at or 0 for link in cohort.links[:10]) <= 2.0
    assert max(link.done_at or 0 for link in cohort.links) <= 1.3 * _alone(RATE)
