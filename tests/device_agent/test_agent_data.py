from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import numpy as np
import pytest
from _inputs import only
from _toy import CLASSES, FEATURES, examples, plan_of
from hypothesis import given
from hypothesis import strategies as st

from device_agent import data
from device_agent.data import Examples, held_out, minibatches
from edgepfl import seeds
from edgepfl.errors import DataError
from edgepfl.plan import BatchPlan, ExampleSpec


def numbered(train: int, test: int = 0) -> Examples:
    """Examples whose first feature is their number and whose label follows from it."""
    x = np.stack([np.arange(train + test), np.zeros(train + test)], axis=1).astype(np.float32)
    y = np.arange(train + test) % CLASSES
    return Examples(x[:train], y[:train], x[train:], y[train:])


@given(n=st.integers(1, 40), size=st.integers(1, 17), epochs=st.integers(1, 3), seed=st.integers(0, 2**63 - 1))
def test_an_epoch_counts_every_example_once(n: int, size: int, epochs: int, seed: int) -> None:
    per_epoch = -(-n // size)
    seen: list[Counter[int]] = [Counter() for _ in range(epochs)]
    for index, batch in enumerate(minibatches(numbered(n), size, epochs * per_epoch, seed)):
        assert batch.x[0].shape == (size, FEATURES)
        assert batch.weight.dtype == np.float32
        assert set(batch.weight.tolist()) <= {0.0, 1.0}
        assert (batch.y == batch.x[0][:, 0].astype(int) % CLASSES).all()
        seen[index // per_epoch].update(batch.x[0][batch.weight == 1, 0].astype(int).tolist())
    assert seen == [Counter(range(n))] * epochs


@given(n=st.integers(1, 30), size=st.integers(1, 9), seed=st.integers(0, 99), more=st.integers(0, 9))
def test_minibatches_depend_on_the_seed_and_not_on_how_many_are_asked_for(
    n: int, size: int, seed: int, more: int
) -> None:
    def drawn(steps: int) -> list[bytes]:
        return [batch.x[0].tobytes() + batch.weight.tobytes() for batch in minibatches(numbered(n), size, steps, seed)]

    few = drawn(5)
    assert len(few) == 5
    assert drawn(5 + more)[:5] == few


@given(n=st.integers(1, 30), size=st.integers(1, 9), seed=st.integers(0, 99), first=st.integers(0, 40))
def test_minibatches_can_begin_with_any(n: int, size: int, seed: int, first: int) -> None:
    def drawn(first: int) -> list[tuple[bytes, bytes, bytes]]:
        batches = minibatches(numbered(n), size, 41, seed, first)
        return [(batch.x[0].tobytes(), batch.y.tobytes(), batch.weight.tobytes()) for batch in batches]

    assert drawn(first) == drawn(0)[first:]


def test_to_begin_late_draws_no_epoch_before(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    def generator(seed: int, name: str, epoch: int) -> np.random.Generator:
        drawn.append(epoch)
        return seeds.generator(seed, name, epoch)

    monkeypatch.setattr(data, "generator", generator)
    late = 10**12 + 1
    assert len(list(minibatches(numbered(10), 4, late + 3, 1, late))) == 3
    assert drawn == [late // 3, late // 3 + 1]


def test_each_epoch_and_each_seed_has_an_order_of_its_own() -> None:
    def order(seed: int) -> list[tuple[float, ...]]:
        return [tuple(batch.x[0][:, 0].tolist()) for batch in minibatches(numbered(64), 64, 3, seed)]

    orders = order(1) + order(2)
    assert len(set(orders)) == 6
    assert all(sorted(rows) == list(range(64)) for rows in orders)


def test_held_out_rows_come_once_and_in_order() -> None:
    data = numbered(1, 10)
    rows = [row for batch in held_out(data, 4) for row in batch.x[0][batch.weight == 1, 0].tolist()]
    assert rows == only(data.test_x)[:, 0].tolist()
    assert list(held_out(numbered(3, 0), 4)) == []


def test_rows_that_only_fill_are_rows_of_the_minibatch() -> None:
    [batch] = minibatches(numbered(3), 8, 1, seed=0)
    assert batch.weight.tolist() == [1, 1, 1, 0, 0, 0, 0, 0]
    assert set(batch.x[0][3:, 0].tolist()) <= {0.0, 1.0, 2.0}


def _arrays(**changed: Any) -> dict[str, Any]:  # noqa: ANN401  some of them are no arrays at all
    return {
        "train_x": np.zeros((3, 2)),
        "train_y": np.zeros(3, int),
        "test_x": np.zeros((1, 2)),
        "test_y": np.zeros(1, int),
    } | changed


@pytest.mark.parametrize(
    ("changed", "where", "what"),
    [
        ({"train_x": np.array([[0, 1], [np.nan, 0], [0, 0]])}, "train_x", "row 1 has a value that is not finite"),
        ({"test_x": np.array([[np.inf, 1]])}, "test_x", "row 0"),
        ({"train_y": np.zeros(4, int)}, "data", "train_x has 3 rows and train_y has 4"),
        ({"test_y": np.zeros(0, int)}, "data", "test_x has 1 rows and test_y has 0"),
        ({"train_x": np.zeros((0, 2)), "train_y": np.zeros(0, int)}, "data", "no training example"),
        ({"train_y": np.array(["a", "b", "c"])}, "train_y", "not an array of numbers"),
        ({"train_y": np.array([None, 1, 2])}, "train_y", "object"),
        ({"train_x": [[1, 2]] * 3}, "train_x", "list"),
        ({"train_x": np.float32(1)}, "train_x", "not an array"),
    ],
)
def test_unusable_arrays_are_refused(changed: dict[str, Any], where: str, what: str) -> None:
    with pytest.raises(DataError, match=what) as caught:
        Examples(**_arrays(**changed))
    assert caught.value.where == where


def test_fitting_gives_the_plans_shapes_and_dtypes() -> None:
    raw = Examples(np.ones((3, 2)), np.array([0.0, 1.0, 2.0]), np.ones((2, 2), np.uint8), np.array([1, 2], np.uint8))
    fitted = raw.fit(plan_of())
    assert [only(fitted.train_x).dtype, only(fitted.test_x).dtype] == [np.float32, np.float32]
    assert [fitted.train_y.dtype, fitted.test_y.dtype] == [np.int64, np.int64]
    assert fitted.train_y.tolist() == [0, 1, 2]


def test_flat_rows_are_folded_and_fitting_twice_copies_nothing() -> None:
    plan = plan_of()
    deep = msgspec.structs.replace(plan, batch=BatchPlan(4, (ExampleSpec((3, 2)),), plan.batch.y))
    flat = np.arange(12, dtype=np.float64).reshape(2, 6)
    fitted = Examples(flat, np.array([0, 1]), flat[:0], np.zeros(0, int)).fit(deep)
    assert only(fitted.train_x)[1].tolist() == [[6, 7], [8, 9], [10, 11]]
    assert np.shares_memory(only(fitted.fit(deep).train_x), only(fitted.train_x))


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"train_x": np.zeros((3, 5))}, r"an example is \[5\], and the model takes \[2\]"),
        ({"test_y": np.array([[1, 2]])}, "takes"),
        ({"train_y": np.array([0, 1, CLASSES])}, "values run from 0 to 3, and the model's from 0 to 2"),
        ({"test_y": np.array([-1])}, "values run from -1 to -1"),
        ({"train_y": np.array([0, 0.5, 1])}, "not a whole number"),
        ({"train_y": np.array([0, 1e300, 1])}, "not a whole number"),
        ({"train_x": np.full((3, 2), 1e300)}, "not finite"),
    ],
)
def test_what_does_not_fit_is_refused(changed: dict[str, Any], what: str) -> None:
    data = Examples(**_arrays(**changed))
    with pytest.raises(DataError, match=what):
        data.fit(plan_of())
    assert only(examples().fit(plan_of()).train_x).shape == (6, FEATURES)
