"""Data of one's own: functions, files and other distributions' entry points; errors name the device or the row."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from _inputs import only

from device_agent.data import Examples
from edgepfl.errors import ConfigError, DataError
from edgepfl.seeds import generator
from simulators.datasets import FleetData, OnDemand, device, load, own

X = generator(0, "own").normal(size=(300, 6)).astype(np.float32)
Y = np.arange(300) % 3


def arrays(scale: float = 1.0) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    return X * float(scale), Y


def of_each(devices: int, seed: int) -> dict[str, Any]:
    rows = {f"pi-{number}": slice(number * 20, number * 20 + 20) for number in range(devices)}
    return {name: (X[own] + seed, Y[own], X[own][:4], Y[own][:4]) for name, own in rows.items()}


def whole(devices: int) -> FleetData:
    given = Examples(X[:30], Y[:30], X[30:40], Y[30:40])
    return FleetData("mine", {f"d{n}": given for n in range(devices)}, (6,), ("a", "b", "c"), "mlp")


@pytest.fixture(autouse=True)
def mine(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of one's own, with whatever a test puts into it."""
    module = ModuleType("my_data")
    for function in (arrays, of_each, whole):
        setattr(module, function.__name__, function)
    monkeypatch.setitem(sys.modules, "my_data", module)
    return module


def test_arrays_are_dealt_out_by_a_partition() -> None:
    found = load("my_data:arrays", devices=5, seed=1, partition="classes:2+scale:0.1", scale=2.0)
    assert (found.name, found.input_shape, len(found.classes), found.model) == ("my_data:arrays", (6,), 3, "mlp")
    assert sum(each.count + len(each.test_y) for each in found.devices.values()) == 300
    assert [len(np.unique(each.train_y)) for each in found.devices.values()] == [2] * 5
    plain = load("my_data:arrays,train_fraction=0.9", devices=5, seed=1)
    assert {each.count for each in plain.devices.values()} <= set(range(52, 57))
    rows = {row.tobytes() for each in plain.devices.values() for row in (*only(each.train_x), *only(each.test_x))}
    assert rows == {row.tobytes() for row in X}
    same = device(data="my_data:arrays", device="device-003", devices=5, seed=1, train_fraction=0.9)
    assert np.array_equal(same.train_x, plain.devices["device-003"].train_x)


def test_devices_of_ones_own_stay_as_they_are() -> None:
    found = load("my_data:of_each", devices=3, seed=2)
    assert list(found.devices) == ["pi-0", "pi-1", "pi-2"]
    assert np.array_equal(found.devices["pi-1"].train_x, X[20:40] + 2)
    assert len(found.devices["pi-1"].test_y) == 4
    assert load("my_data:whole", devices=2).classes == ("a", "b", "c")
    shifted = load("my_data:whole", devices=2, partition="noise:1")
    assert not np.array_equal(shifted.devices["d1"].train_x, X[:30])
    with pytest.raises(ConfigError, match="cannot be dealt out anew"):
        load("my_data:whole", devices=2, partition="dirichlet:1")


def test_series_get_the_model_for_series(mine: ModuleType) -> None:
    mine.series = lambda: (X.reshape(300, 2, 3), Y)  # type: ignore[attr-defined]  # a module is what one makes it
    assert load("my_data:series", devices=2).model == "cnn1d"


def test_a_file_is_dealt_out(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x=X, y=Y.astype(np.float64))
    found = load(str(tmp_path / "mine.npz"), devices=4, partition="iid+power:1")
    assert sum(each.count + len(each.test_y) for each in found.devices.values()) == 300
    (tmp_path / "mine.npz").write_bytes(b"PK half a file")
    with pytest.raises(DataError, match="cannot be read") as caught:
        load(str(tmp_path / "mine.npz"))
    assert "x and y" in caught.value.remedy


def test_other_distributions_bring_data_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("sensors", "my_data:arrays", own.GROUP)
    monkeypatch.setattr(own, "entry_points", lambda group: [point] if group == own.GROUP else [])
    assert load("sensors", devices=3).name == "sensors"
    with pytest.raises(ConfigError, match="no data set 'sensor'") as caught:
        load("sensor")
    assert "sensors" in caught.value.remedy


@pytest.mark.parametrize(
    ("given", "told", "where"),
    [
        ((X, Y[:-1]), "x has 300 rows and y has 299", "data my_data:bad"),
        ((np.where(np.arange(300)[:, None] == 7, np.nan, X), Y), "row 7", "x"),
        ((X, np.where(Y == 1, 3, Y)), "no example has the label 1", "y"),
        ((X, Y - 1), "from -1", "y"),
        ((X, Y + 0.5), "float64", "y"),
        ((X, np.eye(3)[Y]), r"\[300, 3\]", "y"),
        ((np.array([["a"]] * 300), Y), "not an array of numbers", "x"),
        ((X[:0], Y[:0]), "no example", "my_data:bad"),
        (None, "it returned NoneType", "my_data:bad"),
        ({}, "it returned dict", "my_data:bad"),
        ({"pi-0": (X, Y), "pi-1": (X[:, :3], Y)}, r"\[3\], and one of pi-0 is \[6\]", "device pi-1"),
        ({"pi-0": (X, Y), "pi-1": (np.where(X > 2, np.inf, X), Y)}, "not finite", "device pi-1"),
        ({"pi-0": (X, Y), "pi-1": (X, Y - 1)}, "from -1", "device pi-1"),
        ({"pi-0": (X, Y), "pi-1": (X, Y[:5])}, "rows", "device pi-1"),
        ({"pi-0": "nothing"}, "returned str", "device pi-0"),
        ({"pi-0": ((X, X), Y)}, "several inputs", "device pi-0"),
    ],
)
def test_what_cannot_be_used_is_named(mine: ModuleType, given: object, told: str, where: str) -> None:
    mine.bad = lambda: given  # type: ignore[attr-defined]  # likewise
    with pytest.raises(DataError, match=told) as caught:
        load("my_data:bad", devices=4)
    assert where in caught.value.where


def test_a_fleets_devices_are_checked_when_they_are_asked_for(mine: ModuleType) -> None:
    def broken(number: int) -> Examples:
        x = np.where(number == 1, np.nan, X[:8])
        return Examples(x, Y[:8] + 3 * (number == 2), x[:0], Y[:0])

    mine.fleet = lambda: FleetData("f", OnDemand(["a", "b", "c"], broken), (6,), ("0", "1", "2"), "mlp")  # type: ignore[attr-defined]  # likewise
    found = load("my_data:fleet")
    assert found.devices["a"].count == 8
    with pytest.raises(DataError, match="row 0 has a value that is not finite") as caught:
        found.devices["b"]
    assert caught.value.where == "data f, device b"
    with pytest.raises(DataError, match="labels run from 3 to 5, and there are 3") as caught:
        found.devices["c"]
    assert caught.value.where == "data f, device c"


def test_a_module_of_the_working_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lying_here.py").write_text(
        "def load():\n    return [[0.0], [1.0]] * 40, [0, 1] * 40\n", encoding="utf-8"
    )
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])  # as that of an installed command
    monkeypatch.chdir(tmp_path)
    assert len(load("lying_here:load", devices=3).devices) == 3
    monkeypatch.delitem(sys.modules, "lying_here")


def test_a_broken_distribution_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("gone", "no_such_module:load", own.GROUP)
    monkeypatch.setattr(own, "installed", lambda: {"gone": point})
    with pytest.raises(ConfigError, match=r"cannot be imported .*brings no_such_module:load"):
        load("gone")


def test_a_function_that_fails_or_is_not_there_is_named(mine: ModuleType) -> None:
    def fails() -> None:
        raise RuntimeError("the sensor is gone")

    mine.fails = fails  # type: ignore[attr-defined]  # likewise
    with pytest.raises(DataError, match="RuntimeError: the sensor is gone"):
        load("my_data:fails")
    with pytest.raises(ConfigError, match="options do not fit"):
        load("my_data:arrays,shift=1")
    with pytest.raises(ConfigError, match="no function or class 'nothing'"):
        load("my_data:nothing")
    with pytest.raises(ConfigError, match="cannot be imported"):
        load("no_such_module:function")
    with pytest.raises(ConfigError, match="train on is 2"):
        load("my_data:arrays,train_fraction=2")
