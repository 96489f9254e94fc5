"""The experiment that recovers clusters, and its measure."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

from coordinator.clusters import Clusters
from edgepfl.errors import ConfigError
from simulators.recovery import Task, adjusted_rand, main, recover

LABELS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=20)


@given(LABELS)
def test_the_index_is_the_textbooks(labels: list[tuple[int, int]]) -> None:
    found, truth = zip(*labels, strict=True)
    assert adjusted_rand(found, truth) == pytest.approx(adjusted_rand_score(truth, found), abs=1e-12)
    assert adjusted_rand(found, truth) == adjusted_rand(truth, found) <= 1
    assert adjusted_rand([9 - label for label in truth], truth) == 1


def test_the_index_counts_pairs() -> None:
    """By hand: of 10 pairs 2 are together in both, 4 in the one and 4 in the other; chance is 4 * 4 / 10."""
    assert adjusted_rand([0, 0, 0, 1, 1], [0, 0, 1, 1, 1]) == pytest.approx((2 - 1.6) / (4 - 1.6))
    assert adjusted_rand([0], [5]) == 1
    assert adjusted_rand([], []) == 1


def test_random_partitions_are_at_0_in_the_mean() -> None:
    rng = np.random.default_rng(0)
    truth = [0, 0, 0, 1, 1, 2]
    scores = [adjusted_rand([truth[place] for place in order], truth) for order in itertools.permutations(range(6))]
    assert np.mean(scores) == pytest.approx(0, abs=1e-12)
    many = rng.integers(0, 4, 400)
    assert abs(adjusted_rand(many.tolist(), (np.arange(400) % 4).tolist())) < 0.02


def test_a_small_fleet_is_recovered_through_the_exported_graphs() -> None:
    seen: list[tuple[int, float, Clusters]] = []
    task = Task(
        devices=6, clusters=2, most=100, rounds=25, share=0.67, settings={"lam": 1.5, "xi": 0.01, "lr": 0.3, "nu": 0.0}
    )
    outcome = recover(task, lambda *each: seen.append(each))
    assert (outcome.rand, outcome.clusters, outcome.truth) == (1.0, 2, 2)
    assert outcome.found.groups == (
        ("device-000", "device-002", "device-004"),
        ("device-001", "device-003", "device-005"),
    )
    assert [number for number, _, _ in seen] == [20, 25]
    assert seen[-1][1:] == (1.0, outcome.found)
    assert outcome.accuracy > 0.5
    assert outcome.others[0] == (outcome.found.nu, 2, 1.0)
    assert [nu for nu, _, _ in outcome.others[1:]] == [0.1, 3.0]


def test_the_command_prints_text_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--devices", "4", "--clusters", "2", "--most", "60", "--rounds", "2", "--share", "1"]
    assert main([*words, "--set", "nu=1e9"]) == 0
    captured = capsys.readouterr()
    assert "clusters: 1 found, 2 in truth\nadjusted Rand index: 0.000\n" in captured.out
    assert "  with nu = 0.1: " in captured.out
    assert captured.err.startswith("round 2: 1 clusters")
    assert main([*words, "--set", "lam=0", "--set", "nu=0", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["clusters"], told["truth"], told["rand"]) == (4, 2, 0.0)  # nobody is fused without a penalty
    assert told["found"]["groups"] == [[f"device-00{number}"] for number in range(4)]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="0 of the devices in each"):
        Task(share=0)
    with pytest.raises(ConfigError, match="0 clusters"):
        main(["--clusters", "0"])
    with pytest.raises(ConfigError, match="fpfc has no hyperparameter 'mu'"):
        recover(Task(devices=2, rounds=1, settings={"mu": 1.0}))
