"""Robust rules against NumPy, at their limits, and under attack."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from _plans import plan_of
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from coordinator import robust
from coordinator.reduction import Reduction, Upload
from coordinator.robust import Clip, Rule, rule_of
from edgepfl import algorithms
from edgepfl.errors import ConfigError, RunError
from edgepfl.plan import Reduce, TensorSpec, Weighting, resolve, up
from edgepfl.tree import Tree, Trees

Matrix = NDArray[np.float32]
ROWS = arrays.arrays(
    np.float32, st.tuples(st.integers(9, 12), st.integers(1, 5)), elements=st.floats(-100, 100, width=32)
)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
NAMED = ("median", "trimmed_mean:0.25", "krum:2", "multi_krum:2:3", "geometric_median")


def rule(words: str) -> Rule:
    found = rule_of(words)
    assert isinstance(found, Rule)
    return found


def combined(words: str, rows: Matrix, weights: NDArray[np.float64] | None = None, device: str = "cpu") -> Any:  # noqa: ANN401  an array
    weights = np.ones(len(rows)) if weights is None else weights
    return rule(words)(torch.tensor(rows, device=device), torch.tensor(weights, device=device)).cpu().numpy()


def krum_order(rows: Matrix, wild: int) -> NDArray[np.int64]:
    """By the definition, one pair at a time."""
    exact = rows.astype(np.float64)
    scores = []
    for i in range(len(rows)):
        apart = sorted(float(((exact[i] - exact[j]) ** 2).sum()) for j in range(len(rows)) if j != i)
        scores.append(sum(apart[: len(rows) - wild - 2]))
    return np.argsort(np.round(scores, 6), kind="stable")


@pytest.mark.parametrize("device", DEVICES)
def test_they_are_what_numpy_says(device: str) -> None:
    source = np.random.default_rng(1)
    for k, d in itertools.product((9, 10), (1, 7, 300_001 // 10)):
        rows = source.standard_normal((k, d)).astype(np.float32)
        exact = np.sort(rows.astype(np.float64), axis=0)
        np.testing.assert_allclose(combined("median", rows, device=device), np.median(exact, axis=0), rtol=1e-12)
        drop = k // 4
        trimmed = exact[drop : k - drop].mean(axis=0)
        np.testing.assert_allclose(combined("trimmed_mean:0.25", rows, device=device), trimmed, rtol=1e-10, atol=1e-14)
        order = krum_order(rows, 2)
        np.testing.assert_array_equal(combined("krum:2", rows, device=device), rows[order[0]])
        best = rows[np.sort(order[:3])].astype(np.float64).mean(axis=0)
        np.testing.assert_allclose(combined("multi_krum:2:3", rows, device=device), best, rtol=1e-10, atol=1e-14)


@given(ROWS, st.data())
def test_the_geometric_median_has_no_better_neighbour(rows: Matrix, data: st.DataObject) -> None:
    weights = np.array(data.draw(st.lists(st.integers(1, 9), min_size=len(rows), max_size=len(rows))), np.float64)
    found = combined("geometric_median", rows, weights)

    def objective(at: Any) -> float:  # noqa: ANN401  an array
        return float(weights @ np.linalg.norm(rows - at, axis=1))

    source = np.random.default_rng(0)
    scale = float(np.abs(rows).max()) + 1e-3
    allowed = 1e-5 * objective(found) + 1e-9
    for step in (1.0, 0.1, 1e-2, 1e-3):
        for _ in range(20):
            beside = found + step * scale * source.standard_normal(found.shape)
            assert objective(beside) >= objective(found) - allowed


def test_the_geometric_median_of_a_line_is_its_weighted_median_and_of_a_square_its_centre() -> None:
    line = np.array([[0.0], [1.0], [10.0], [11.0], [500.0]], np.float32)
    np.testing.assert_allclose(combined("geometric_median", line), [10.0], atol=1e-3)
    heavy = np.array([9.0, 1.0, 1.0, 1.0, 1.0])
    np.testing.assert_allclose(combined("geometric_median", line, heavy), [0.0], atol=1e-3)
    square = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]], np.float32)
    np.testing.assert_allclose(combined("geometric_median", square), [0.0, 0.0], atol=1e-9)


@given(ROWS, st.permutations(range(9)))
def test_the_order_of_the_devices_does_not_matter(rows: Matrix, order: list[int]) -> None:
    rows = rows[:9] + np.arange(9, dtype=np.float32)[:, None] ** 2  # without ties, which the first device wins
    for words in ("median", "trimmed_mean:0.25", "geometric_median"):
        scale = np.abs(rows).max()
        np.testing.assert_allclose(combined(words, rows[order]), combined(words, rows), rtol=1e-6, atol=1e-5 * scale)


def test_nor_does_it_for_krum() -> None:
    rows = np.random.default_rng(5).standard_normal((9, 4)).astype(np.float32)
    for order in itertools.islice(itertools.permutations(range(9)), 0, 300_000, 3001):
        np.testing.assert_array_equal(combined("krum:2", rows[list(order)]), combined("krum:2", rows))
        wanted = combined("multi_krum:2:5", rows)
        np.testing.assert_allclose(combined("multi_krum:2:5", rows[list(order)]), wanted, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("words", NAMED)
def test_devices_that_agree_are_believed(words: str) -> None:
    row = np.random.default_rng(2).standard_normal(50).astype(np.float32)
    np.testing.assert_allclose(combined(words, np.tile(row, (9, 1))), row, rtol=1e-12)


@given(ROWS)
def test_trimming_nothing_is_the_mean(rows: Matrix) -> None:
    mean = rows.astype(np.float64).mean(axis=0)
    np.testing.assert_allclose(combined("trimmed_mean:0", rows), mean, rtol=1e-12, atol=1e-12)
    assert rule("trimmed_mean:0").fewest == 1


@pytest.mark.parametrize("words", NAMED)
@pytest.mark.parametrize("wild", [1e6, -1e6])
def test_a_minority_moves_the_mean_and_not_the_rule(words: str, wild: float) -> None:
    honest = np.random.default_rng(3).standard_normal((7, 20)).astype(np.float32)
    rows = np.concatenate([np.full((2, 20), wild, np.float32), honest])
    found = combined(words, rows)
    assert np.linalg.norm(rows.mean(axis=0)) > 1e5
    assert np.abs(found).max() <= np.abs(honest).max()
    assert np.linalg.norm(found - honest.mean(axis=0)) < 5


def test_one_honest_neighbourhood_wins() -> None:
    """With f = 2 a score is of 7 - 2 - 2 = 3 squared distances; the third row's are 0.0016, 0.01 and 0.01."""
    rows = np.array([[0.0], [0.1], [0.2], [0.3], [50.0], [-70.0], [0.16]], np.float32)
    np.testing.assert_array_equal(combined("krum:2", rows), rows[2])


@pytest.mark.parametrize("words", NAMED)
@pytest.mark.parametrize("shards", [2, 4])
def test_shards_give_what_one_server_gives(words: str, shards: int) -> None:
    rows = torch.tensor(np.random.default_rng(4).standard_normal((9, 50)), dtype=torch.float32)
    weights = torch.arange(1, 10, dtype=torch.float64)
    parts = [rows[:, 50 * r // shards : 50 * (r + 1) // shards] for r in range(shards)]
    whole = sum(part.double() @ part.double().T for part in parts)
    sent: list[torch.Tensor] = []

    def across(partial: torch.Tensor) -> torch.Tensor:  # as an all-reduce would
        sent.append(partial)
        assert isinstance(whole, torch.Tensor)
        return whole.clone()

    found = torch.cat([rule(words)(part, weights, across) for part in parts])
    np.testing.assert_allclose(found, rule(words)(rows, weights), rtol=1e-12, atol=1e-12)
    coordinatewise = words.startswith(("median", "trimmed"))
    assert len(sent) == (0 if coordinatewise else shards)
    if sent:
        np.testing.assert_allclose(sum(sent), whole, rtol=1e-12, atol=1e-12)


def test_too_few_reports() -> None:
    for words, fewest in {
        "median": 3,
        "trimmed_mean:0.1": 10,
        "trimmed_mean:0.25": 4,
        "krum:2": 7,
        "krum:0": 3,
        "multi_krum:2:5": 9,
        "geometric_median": 3,
    }.items():
        assert rule(words).fewest == fewest
        rows = torch.ones(fewest, 2)
        rule(words)(rows, torch.ones(fewest))
        with pytest.raises(RunError, match=f"needs {fewest}") as caught:
            rule(words)(rows[1:], torch.ones(fewest - 1))
        assert f"minimum to {fewest}" in caught.value.remedy


WRONG = {
    "mode": "no such rule",
    "median:3": "no number",
    "trimmed_mean": "takes FRACTION",
    "trimmed_mean:0.5": "below 0.5",
    "trimmed_mean:-0.1": "below 0.5",
    "trimmed_mean:x": "no number",
    "trimmed_mean:1e-9": "no round has so many",
    "krum": "takes WILD",
    "krum:1.5": "whole numbers",
    "krum:-1": "whole numbers",
    "multi_krum:2": "takes WILD and CHOSEN",
    "multi_krum:2:0": "whole numbers",
    "clip:0": "nothing would be left",
    "clip:nan": "no number",
    "clip:inf": "no number",
}


@pytest.mark.parametrize(("words", "reason"), WRONG.items())
def test_words_that_name_no_rule(words: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        rule_of(words)
    assert caught.value.where == "robust"
    assert "trimmed_mean:0.1" in caught.value.remedy


def test_no_words_name_no_rule() -> None:
    assert rule_of("") is None
    robust.check(algorithms.build("scaffold", {}), plan_of("scaffold"), None, 1)


@pytest.mark.parametrize("name", algorithms.names())
def test_only_algorithms_whose_means_are_all_there_is_take_a_rule(name: str) -> None:
    protected = {"apfl", "ditto", "fedavg", "feddyn", "fedem", "fedper", "fedprox", "l2sgd", "perfedavg"}
    protected |= {"pfedbred", "pfedmac", "pfedme"}
    algorithm, plan, refused = algorithms.build(name, {}), plan_of(name), r"adds up|averages nothing|being their mean"
    for words in ("median", "clip:3"):
        if name in protected:
            robust.check(algorithm, plan, rule_of(words), 3)
        else:
            with pytest.raises(ConfigError, match=refused):
                robust.check(algorithm, plan, rule_of(words), 3)
    with pytest.raises(ConfigError, match=rf"needs 3 reports|{refused}"):
        robust.check(algorithm, plan, rule_of("median"), 2)


def test_a_rule_protects_what_fpfc_averages_if_it_averages_anything() -> None:
    algorithm, plan = algorithms.build("fpfc", {}), plan_of("fpfc")
    with pytest.raises(ConfigError, match="FPFC takes no robust rule: it averages nothing"):
        robust.check(algorithm, plan, rule_of("median"), 3)
    shared = msgspec.structs.replace(plan.slots["delta"], tensors={"body.bias": TensorSpec((2,))})
    plan = msgspec.structs.replace(plan, slots={**plan.slots, "delta": shared})
    robust.check(algorithm, plan, rule_of("median"), 3)


SPECS = {"a": TensorSpec((2,)), "b": TensorSpec((1, 3))}
SLOTS = resolve({"zeta": up(Reduce.MEAN), "mean": up(Reduce.MEAN), "each": up(Reduce.STACK)}, SPECS, ())


def upload(row: Matrix, examples: int = 1) -> Upload:
    def tree(at: int) -> Tree:
        return Tree({"a": row[at : at + 2].copy(), "b": row[at + 2 : at + 5].reshape(1, 3).copy()})

    trees: Trees = {"zeta": tree(5), "mean": tree(0), "each": tree(0)}
    return Upload(examples, 1, lambda: trees)


def reduced(rows: Matrix, chosen: Rule | Clip | None, order: Callable[[Any], Any] = sorted) -> Any:  # noqa: ANN401  a cohort
    names = [f"d{k}" for k in range(len(rows))]
    reduction = Reduction(SLOTS, names, Weighting.EXAMPLES, rule=chosen)
    for name in order(names):
        reduction.offer(name, upload(rows[names.index(name)], 1 + names.index(name)))
    return reduction.close(tuple(names))


def flat(got: Any) -> Any:  # noqa: ANN401  an array
    return np.concatenate([np.ravel(got.total[slot][key]) for slot in ("mean", "zeta") for key in "ab"])


@pytest.mark.parametrize("words", NAMED)
def test_a_reduction_hands_all_mean_slots_to_the_rule_as_one_vector(words: str) -> None:
    rows = np.random.default_rng(6).standard_normal((9, 10)).astype(np.float32)
    got, other = reduced(rows, rule(words)), reduced(rows, rule(words), lambda names: names[::-1])
    wanted = combined(words, rows, np.arange(1.0, 10.0)).astype(np.float32)
    np.testing.assert_array_equal(flat(got), wanted)
    np.testing.assert_array_equal(flat(other), wanted)
    np.testing.assert_array_equal(got.stack["each"]["a"], rows[:, :2])
    assert got.total["zeta"]["b"].shape == (1, 3)


def test_a_round_with_too_few_reports_for_its_rule_is_not_reduced() -> None:
    with pytest.raises(RunError, match="2 reports, and median needs 3"):
        reduced(np.zeros((2, 10), np.float32), rule("median"))
    assert reduced(np.zeros((3, 10), np.float32), rule("median")).devices == ("d0", "d1", "d2")


@given(arrays.arrays(np.float32, (5, 10), elements=st.floats(-100, 100, width=32)), st.floats(0.1, 300))
def test_clipping_shortens_each_upload_to_its_norm(rows: Matrix, norm: float) -> None:
    exact = rows.astype(np.float64)
    norms = np.linalg.norm(exact, axis=1)
    scales = np.array([min(1.0, norm / each) if each else 1.0 for each in norms])
    weights = np.arange(1.0, 6.0)
    wanted = (weights * scales) @ exact / weights.sum()
    got = reduced(rows, rule_of(f"clip:{norm!r}"))
    np.testing.assert_allclose(flat(got), wanted, rtol=1e-5, atol=1e-6 * (np.abs(rows).max() + 1e-3))
    np.testing.assert_array_equal(got.stack["each"]["a"], rows[:, :2])


def test_a_norm_that_nobody_reaches_clips_no_bit() -> None:
    rows = np.random.default_rng(7).standard_normal((5, 10)).astype(np.float32)
    np.testing.assert_array_equal(flat(reduced(rows, rule_of("clip:1e9"))), flat(reduced(rows, None)))
    wild = rows.copy()
    wild[2] = 1e6
    clipped = reduced(wild, rule_of("clip:5"))
    assert np.linalg.norm(flat(clipped)) <= 5
    assert np.linalg.norm(flat(reduced(wild, None))) > 1e5


def test_a_clip_counts_all_columns_of_all_shards() -> None:
    seen: list[float] = []

    def across(partial: torch.Tensor) -> torch.Tensor:
        seen.append(float(partial))
        return partial + 16

    clip = rule_of("clip:2.5")
    assert isinstance(clip, Clip)
    assert clip({"delta": Tree({"a": torch.full((9,), 1.0)})}, across) == 0.5  # sqrt(9 + 16) = 5
    assert seen == [9.0]
    assert clip({"delta": Tree({})}, across) == 1.0
    assert math.isclose(clip({"delta": Tree({"a": torch.ones(25)})}), 0.5)
