"""Data of models with several inputs, of whole numbers, and of targets that are no classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from _inputs import only
from _toy import plan_of

from device_agent import memory
from device_agent.config import DataSettings
from device_agent.data import Examples, held_out, minibatches
from device_agent.sources import load
from edgepfl.errors import DataError
from edgepfl.plan import BatchPlan, ExampleSpec, Plan, Role, SlotPlan, TensorSpec

SENSOR, IDS, CLASS = ExampleSpec((2, 3)), ExampleSpec((4,), "int64", high=9), ExampleSpec((), "int64", high=3)


def _plan(*x: ExampleSpec, y: ExampleSpec = CLASS) -> Plan:
    return msgspec.structs.replace(plan_of(), batch=BatchPlan(4, x, y))


def _sensor(n: int) -> np.ndarray[Any, Any]:
    """Every number of a row tells which it is."""
    return np.arange(n)[:, None, None] + np.zeros((n, 2, 3))


def _ids(n: int) -> np.ndarray[Any, Any]:
    return np.arange(n)[:, None] % 9 + np.zeros((n, 4), np.int32)


def _two(n: int = 7, m: int = 5) -> Examples:
    return Examples((_sensor(n), _ids(n)), np.arange(n) % 3, (_sensor(m), _ids(m)), np.arange(m) % 3)


def test_rows_of_all_inputs_stay_together_and_of_their_dtypes() -> None:
    data = _two().fit(_plan(SENSOR, IDS))
    for batch in minibatches(data, 4, 6, seed=1):
        sensor, ids = batch.x
        assert (sensor.shape, str(sensor.dtype)) == ((4, 2, 3), "float32")
        assert (ids.shape, str(ids.dtype)) == ((4, 4), "int64")
        assert (sensor[:, 0, 0] % 9 == ids[:, 0]).all()
        assert (sensor[:, 0, 0] % 3 == batch.y).all()
    assert sum(int(batch.weight.sum()) for batch in held_out(data, 4)) == 5
    assert data.count == 7


def test_each_input_has_a_place_of_its_own() -> None:
    data = _two().fit(_plan(SENSOR, IDS))
    batch = next(minibatches(data, 4, 1, seed=1))
    places: memory.Memory = {}
    memory.put(batch, places)
    assert list(places) == [("batch", "x", "0"), ("batch", "x", "1"), ("batch", "y", ""), ("batch", "weight", "")]
    assert places["batch", "x", "1"] is batch.x[1]


def test_fitting_folds_flat_rows_of_each_input() -> None:
    flat = Examples(
        (_sensor(3).reshape(3, 6), _ids(3)), np.arange(3), (_sensor(0).reshape(0, 6), _ids(0)), np.arange(0)
    )
    fitted = flat.fit(_plan(SENSOR, IDS))
    assert [x.shape for x in fitted.train_x] == [(3, 2, 3), (3, 4)]
    assert [x.shape for x in fitted.test_x] == [(0, 2, 3), (0, 4)]


@pytest.mark.parametrize("rows", [np.arange(6.0), np.arange(6.0).reshape(6, 1)])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_target_of_one_number_may_be_written_with_or_without_its_axis(
    rows: np.ndarray[Any, Any], shape: tuple[int, ...]
) -> None:
    data = Examples(np.zeros((6, 2)), rows, np.zeros((0, 2)), rows[:0]).fit(
        _plan(ExampleSpec((2,)), y=ExampleSpec(shape))
    )
    assert (data.train_y.shape, data.test_y.shape) == ((6, *shape), (0, *shape))
    assert data.train_y.dtype == np.float32
    assert data.train_y.ravel().tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("y", "spec", "what"),
    [
        (np.zeros((3, 2)), ExampleSpec((1,)), r"an example is \[2\], and the model takes \[1\]"),
        (np.zeros((3, 2)), ExampleSpec(()), r"an example is \[2\], and the model takes \[\]"),
        (np.zeros(3), ExampleSpec((4,)), r"an example is \[\], and the model takes \[4\]"),
        (np.zeros((3, 4, 1)), ExampleSpec((4,)), r"an example is \[4, 1\]"),
        (np.array([0, 1, 3]), CLASS, "values run from 0 to 3, and the model's from 0 to 2"),
    ],
)
def test_a_target_of_another_shape_or_range_is_refused(y: np.ndarray[Any, Any], spec: ExampleSpec, what: str) -> None:
    data = Examples(np.zeros((3, 2)), y, np.zeros((0, 2)), y[:0])
    with pytest.raises(DataError, match=what) as caught:
        data.fit(_plan(ExampleSpec((2,)), y=spec))
    assert caught.value.where == "train_y"


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ([0, 8, 9], "values run from 0 to 9, and the model's from 0 to 8"),
        ([-1, 0, 3], "values run from -1 to 3, and the model's from 0 to 8"),
        ([0.5, 1, 2], "not a whole number"),
        ([0, 1, 2**63], "not a whole number|values run from"),
    ],
)
@pytest.mark.parametrize("part", ["train", "test"])
def test_an_index_that_the_model_does_not_have_is_refused_on_both_sides(
    part: str, values: list[float], what: str
) -> None:
    good = np.array([0, 4, 8])
    x = {"train": good, "test": good} | {part: np.array(values)}
    data = Examples(x["train"], np.arange(3), x["test"], np.arange(3))
    with pytest.raises(DataError, match=what) as caught:
        data.fit(_plan(ExampleSpec((), "int64", high=9)))
    assert caught.value.where == f"{part}_x"


def test_where_nobody_knows_the_range_only_negative_ones_are_refused() -> None:
    plan = _plan(ExampleSpec((), "int64"))
    far = Examples(np.array([0, 10**9]), np.arange(2), np.zeros(0, int), np.arange(0)).fit(plan)
    assert only(far.train_x).tolist() == [0, 10**9]
    with pytest.raises(DataError, match=r"values run from -2 to 0, and the model's from 0$"):
        Examples(np.array([0, -2]), np.arange(2), np.zeros(0, int), np.arange(0)).fit(plan)


@pytest.mark.parametrize(
    ("x", "specs", "what"),
    [
        (_sensor(3), (SENSOR, IDS), "there are 1 inputs, and the model takes 2"),
        ((_sensor(3), _ids(3)), (SENSOR,), "there are 2 inputs, and the model takes 1"),
        ((_sensor(3), _ids(3), _ids(3)), (SENSOR, IDS), "there are 3 inputs, and the model takes 2"),
        ((), (SENSOR,), "there are 0 inputs"),
    ],
)
def test_other_numbers_of_inputs_are_refused(x: Any, specs: tuple[ExampleSpec, ...], what: str) -> None:  # noqa: ANN401
    data = Examples(x, np.arange(3), x, np.arange(3))
    with pytest.raises(DataError, match=what) as caught:
        data.fit(_plan(*specs))
    assert caught.value.where == "train_x"
    assert "train_x0, train_x1" in caught.value.remedy


@pytest.mark.parametrize(
    ("changed", "where", "what"),
    [
        ({"train_x": (_sensor(3), _ids(2))}, "data", "train_x1 has 2 rows and train_y has 3"),
        ({"train_x": (_sensor(3), np.full((3, 4), np.nan))}, "train_x1", "row 0 has a value that is not finite"),
        ({"test_x": (_sensor(1), [[1, 2]])}, "test_x1", "it is list"),
        ({"test_x": (_sensor(1), np.array(["a"]))}, "test_x1", "not an array of numbers"),
    ],
)
def test_an_input_that_cannot_be_used_is_named_by_its_number(changed: dict[str, Any], where: str, what: str) -> None:
    good: dict[str, Any] = {
        "train_x": (_sensor(3), _ids(3)),
        "train_y": np.arange(3),
        "test_x": (_sensor(1), _ids(1)),
        "test_y": np.arange(1),
    }
    with pytest.raises(DataError, match=what) as caught:
        Examples(**good | changed)
    assert caught.value.where == where


@pytest.mark.parametrize("tested", [True, False])
def test_an_npz_file_numbers_its_inputs(tmp_path: Path, *, tested: bool) -> None:
    arrays = {"train_x0": _sensor(7), "train_x1": _ids(7), "train_y": np.arange(7) % 3}
    arrays |= {"test_x0": _sensor(2), "test_x1": _ids(2), "test_y": np.arange(2)} if tested else {}
    np.savez(tmp_path / "two.npz", **arrays)  # type: ignore[arg-type]  # its stubs take a flag too
    data = load(DataSettings(source=str(tmp_path / "two.npz"))).fit(_plan(SENSOR, IDS))
    assert [x.shape for x in data.train_x] == [(7, 2, 3), (7, 4)]
    assert [len(x) for x in data.test_x] == [2 * tested, 2 * tested]


@pytest.mark.parametrize("missing", ["train_x0", "train_x1", "train_y", "test_x0"])
def test_an_npz_file_that_lacks_one_is_refused(tmp_path: Path, missing: str) -> None:
    arrays = {"train_x0": _sensor(7), "train_x1": _ids(7), "train_y": np.arange(7) % 3}
    arrays |= {"test_x0": _sensor(2), "test_x1": _ids(2), "test_y": np.arange(2)}
    del arrays[missing]
    np.savez(tmp_path / "two.npz", **arrays)  # type: ignore[arg-type]  # its stubs take a flag too
    with pytest.raises(DataError) as caught:
        load(DataSettings(source=str(tmp_path / "two.npz"))).fit(_plan(SENSOR, IDS))
    assert any(word in str(caught.value) for word in ("missing", "go together", "there are 1 inputs"))


def test_a_plug_in_gives_a_tuple_of_inputs_and_a_list_is_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "two_inputs_of_this_test.py").write_text(
        "def pair():\n    return ([[1.0, 2.0], [3.0, 4.0]], [[0], [1]]), [0, 1]\n"
        "def several():\n    return (([[1.0, 2.0], [3.0, 4.0]], [5, 6]), [0, 1])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    several = load(DataSettings(source="two_inputs_of_this_test:several"))
    assert isinstance(several.train_x, tuple)
    assert [x.tolist() for x in several.train_x] == [[[1, 2], [3, 4]], [5, 6]]
    fitted = several.fit(_plan(ExampleSpec((2,)), ExampleSpec((), "int64", high=7)))
    assert [len(x) for x in fitted.test_x] == [0, 0]


def test_noise_depends_on_the_seed_the_slot_the_tensor_and_the_step() -> None:
    specs = {"000": TensorSpec((50,)), "001": TensorSpec((50,))}
    slots = {"dropout": SlotPlan(Role.NOISE, specs), "eps": SlotPlan(Role.NOISE, {"000": TensorSpec((50,))})}
    drawn = [array.tobytes() for seed in (1, 2) for step in (0, 1) for array in memory.draw(slots, seed, step).values()]
    assert len(set(drawn)) == len(drawn) == 12
    assert drawn[:3] == [array.tobytes() for array in memory.draw(slots, 1, 0).values()]
    everything = np.frombuffer(b"".join(drawn), np.float32)
    assert abs(float(everything.mean())) < 0.2
    assert float(everything.std()) == pytest.approx(1, abs=0.15)
