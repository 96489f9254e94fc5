"""Partitions as text and as values: nothing dealt twice, nobody below the minimum, and the limits that they promise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepfl.errors import ConfigError
from edgepfl.seeds import generator
from simulators.data_command import PARTS_TEXT
from simulators.partition import Indices
from simulators.partition_choice import PARTS, Classes, Dirichlet, Partition
from simulators.partition_shift import Noise, Rotation
from simulators.partition_sizes import Lognormal, Power, Sizes

SEEDS = st.integers(0, 2**32)


def labels_of(*counts: int) -> Indices:
    return generator(0, "labels").permutation(np.repeat(np.arange(len(counts)), counts))


EQUAL = labels_of(*[400] * 5)


def mixes(labels: Indices, hands: list[Indices]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """(devices, classes), each row's sum is 1."""
    counts = np.stack([np.bincount(labels[hand], minlength=labels.max() + 1) for hand in hands])
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))


@given(
    text=st.sampled_from(
        [
            "iid",
            "iid+power:1.5,least=5",
            "iid+sizes:0.2,least=5",
            "lognormal:2,least=5",
            "dirichlet:0.2",
            "dirichlet:0.05+power:2,least=5",
            "dirichlet:5+sizes:0.3,least=5",
            "classes:2",
            "classes:2+lognormal:1,least=5",
            "classes:1+power:0,least=5",
            "mixes:0.1",
            "mixes:1+power:1.5,least=5",
        ]
    ),
    counts=st.lists(st.integers(40, 200), min_size=2, max_size=5),
    devices=st.integers(5, 8),
    seed=SEEDS,
)
def test_nothing_is_dealt_twice_and_nobody_is_left_without(
    text: str, counts: list[int], devices: int, seed: int
) -> None:
    labels, partition = labels_of(*counts), Partition.parse(text)
    hands = partition.deal(labels, devices, seed)
    together = np.concatenate(hands)
    assert len(np.unique(together)) == len(together)
    assert len(hands) == devices
    assert all(np.all(np.diff(hand) > 0) for hand in hands)
    assert min(map(len, hands)) >= 4
    both = isinstance(partition.labels, Dirichlet | Classes) and partition.law is not None
    if both:
        assert min(map(len, hands)) >= 5
        assert len(together) <= len(labels)
    else:
        assert len(together) == len(labels)
    assert all(np.array_equal(a, b) for a, b in zip(hands, partition.deal(labels, devices, seed), strict=True))


def test_the_seed_decides() -> None:
    for text in ("iid", "iid+sizes:0.5", "mixes:1", "dirichlet:1", "classes:2", "dirichlet:1+power:1"):
        one, other = (Partition.parse(text).deal(EQUAL, 10, seed) for seed in (1, 2))
        assert any(not np.array_equal(a, b) for a, b in zip(one, other, strict=True)), text


@pytest.mark.parametrize("text", ["iid", "dirichlet:1e6", "mixes:1e6", "iid+power:1"])
def test_in_the_limit_of_no_skew_everybody_has_the_same_mix(text: str) -> None:
    found = mixes(EQUAL, Partition.parse(text).deal(EQUAL, 4, 3))
    assert np.abs(found - 0.2).max() < 0.1
    assert np.abs(mixes(EQUAL, Partition.parse("dirichlet:1e6").deal(EQUAL, 4, 3)) - 0.2).max() < 0.01


def test_in_the_limit_of_all_skew_everybody_has_one_class() -> None:
    for seed in range(5):  # of a few devices' classes others have taken all
        most = np.sort(mixes(EQUAL, Partition.parse("mixes:1e-3").deal(EQUAL, 20, seed)).max(axis=1))
        assert np.median(most) > 0.99
    # The other way round every class has one owner, but for what devices with nothing are given of it.
    hands = Partition.parse("dirichlet:1e-3").deal(EQUAL, 5, 3)
    owners = np.stack([np.bincount(EQUAL[hand], minlength=5) for hand in hands])
    assert np.count_nonzero(owners.max(axis=0) == 400) >= 3


def test_mixes_have_exact_sizes_and_follow_the_published_distribution() -> None:
    labels = labels_of(*[20_000] * 5)
    hands = Partition.parse("mixes:1").deal(labels, 200, 0)
    assert set(map(len, hands)) == {500}
    first = mixes(labels, hands[:100])  # before any class runs out
    assert first.mean(axis=0) == pytest.approx([0.2] * 5, abs=0.08)
    # The variance of a share of Dirichlet(alpha p) is p (1 - p) / (alpha + 1).
    assert first.var(axis=0).mean() == pytest.approx(0.2 * 0.8 / 2, rel=0.15)


def test_classes_and_sizes_go_together() -> None:
    partition = Partition.parse("classes:2+power:1,least=20")
    hands = partition.deal(EQUAL, 10, 0)
    assert [len(np.unique(EQUAL[hand])) for hand in hands] == [2] * 10
    sizes = sorted(map(len, hands), reverse=True)
    assert sizes[0] > 4 * sizes[-1]
    assert sizes[-1] >= 20


def test_sizes_follow_their_law_where_labels_allow_it() -> None:
    exact = sorted(map(len, Partition.parse("iid+power:1,least=1").deal(EQUAL, 10, 5)), reverse=True)
    harmonic = sum(1 / rank for rank in range(1, 11))
    for rank, size in enumerate(exact, 1):
        assert size == pytest.approx(1 + (2000 - 10) / rank / harmonic, abs=1)
    mild = sorted(map(len, Partition.parse("dirichlet:100+power:1,least=1").deal(EQUAL, 10, 5)), reverse=True)
    assert mild == pytest.approx(exact, abs=2)
    assert sum(mild) == 2000


def test_text_is_read_as_it_is_written() -> None:
    found = Partition.parse("noise:0.5+ dirichlet:0.3 +sizes:2,least=30+rotation:10")
    assert found == Partition(Dirichlet(0.3), Sizes(2.0, 30), (Noise(0.5), Rotation(10.0)))
    assert Partition.parse("classes:2+power:1") == Partition(Classes(2), Power(1.0))
    assert Partition.parse("lognormal:2") == Partition(None, Lognormal(2.0))
    assert Partition.parse("dirichlet,alpha=0.3") == Partition(Dirichlet(0.3))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "names nothing"),
        ("iid+", "names nothing"),
        ("shards:2", "no 'shards'"),
        ("iid+classes:2", "twice how labels"),
        ("power:1+sizes:1", "twice how sizes"),
        ("dirichlet", "needs alpha"),
        ("dirichlet:much", "alpha is 'much'"),
        ("dirichlet:0.3,beta=1", "no option beta"),
        ("iid:1", "one value too many"),
        ("dirichlet:1,alpha=2", "one value too many"),
        ("classes:1.5", "classes is '1.5'"),
        ("power:-1", "-1"),
        ("power:nan", "nan"),
        ("sizes:0", "0"),
        ("mixes:0", "alpha is 0"),
        ("power:1,least=0", "at least 0 examples"),
        ("turn:3", "3 ways"),
        ("noise:0", "0"),
        ("rotation:inf", "inf"),
    ],
)
def test_what_is_no_partition_is_refused(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        Partition.parse(text)
    assert "partition" in caught.value.where
    assert caught.value.remedy


@pytest.mark.parametrize("text", ["iid", "iid+power:1", "dirichlet:1+power:1", "classes:1", "mixes:1"])
@pytest.mark.parametrize("devices", [0, 300])
def test_a_fleet_that_is_none_or_too_large_is_refused(text: str, devices: int) -> None:
    with pytest.raises(ConfigError) as caught:
        Partition.parse(text).deal(EQUAL, devices, 0)
    assert caught.value.remedy


def test_every_part_has_a_name_and_an_end_in_help() -> None:
    assert all(f"\n  {name}" in PARTS_TEXT for name in PARTS)
