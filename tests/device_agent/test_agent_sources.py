from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _inputs import only

from device_agent.config import DataSettings
from device_agent.sources import load
from edgepfl.errors import ConfigError, DataError

PLUG_IN = """
import numpy as np
from device_agent.data import Examples

X, Y = np.arange(8.0).reshape(4, 2), np.array([0, 1, 0, 1])

def pair(rows=4):
    return X[:rows], Y[:rows]

def whole():
    return [X, Y, X[:1], Y[:1]]

def named(*, scale):
    return {"train_x": X * scale, "train_y": Y}

def ready():
    return Examples(X, Y, X, Y)

def broken():
    raise RuntimeError("no sensor")

def nothing():
    return None

def half():
    return {"train_x": X}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "plug_in_of_this_test.py").write_text(PLUG_IN, encoding="utf-8")
    yield str(tmp_path)
    sys.modules.pop("plug_in_of_this_test", None)


def plug_in(folder: str, function: str, **options: Any) -> DataSettings:  # noqa: ANN401  as TOML gives them
    return DataSettings(source=f"plug_in_of_this_test:{function}", options=options, folder=folder)


@pytest.mark.parametrize(
    ("function", "options", "rows"),
    [
        ("pair", {}, (4, 0)),
        ("pair", {"rows": 3}, (3, 0)),
        ("whole", {}, (4, 1)),
        ("named", {"scale": 2}, (4, 0)),
        ("ready", {}, (4, 4)),
    ],
)
def test_a_plug_in_gives_examples(folder: str, function: str, options: dict[str, Any], rows: tuple[int, int]) -> None:
    found = load(plug_in(folder, function, **options))
    assert (found.count, len(found.test_x)) == rows
    assert only(found.train_x)[1].tolist() == ([4, 6] if options.get("scale") else [2, 3])
    assert folder not in sys.path


@pytest.mark.parametrize(
    ("function", "options", "error", "says"),
    [
        ("broken", {}, DataError, "RuntimeError: no sensor"),
        ("nothing", {}, DataError, "it returned NoneType"),
        ("half", {}, DataError, "go together"),
        ("named", {}, ConfigError, "scale"),
        ("pair", {"row": 1}, ConfigError, "unexpected keyword argument 'row'"),
        ("missing", {}, ConfigError, "cannot be imported"),
    ],
)
def test_a_plug_in_that_fails_is_named(
    folder: str, function: str, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        load(plug_in(folder, function, **options))
    assert folder not in sys.path


def test_a_module_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="ModuleNotFoundError") as caught:
        load(DataSettings(source="no_such_module_here:load"))
    assert caught.value.where == "data source no_such_module_here:load"


def test_npz_with_and_without_test_data(tmp_path: Path) -> None:
    x, y = np.arange(6.0).reshape(3, 2), np.array([0, 1, 2])
    np.savez(tmp_path / "a.npz", train_x=x, train_y=y)
    np.savez_compressed(tmp_path / "b.npz", train_x=x, train_y=y, test_x=x[:2], test_y=y[:2])
    short, full = (load(DataSettings(source=str(tmp_path / name))) for name in ("a.npz", "b.npz"))
    assert only(short.test_x).shape == (0, 2)
    assert full.test_y.tolist() == [0, 1]


def test_npz_files_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    ran = tmp_path / "ran"

    class Hostile:
        def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
            return (Path.touch, (ran,))

    np.savez(tmp_path / "pickled.npz", train_x=np.array([Hostile()]), train_y=np.array([0]))
    np.savez(tmp_path / "short.npz", train_x=np.ones((1, 1)))
    (tmp_path / "text.npz").write_text("no archive", encoding="utf-8")
    for name, says in (
        ("pickled", "allow_pickle"),
        ("short", "is missing"),
        ("text", "cannot be read"),
        ("none", "No such"),
    ):
        with pytest.raises(DataError, match=says) as caught:
            load(DataSettings(source=str(tmp_path / f"{name}.npz")))
        assert caught.value.where == str(tmp_path / f"{name}.npz")
    assert not ran.exists()
    with pytest.raises(ConfigError, match="unexpected keyword argument"):
        load(DataSettings(source=str(tmp_path / "short.npz"), options={"label": 1}))


def csv(tmp_path: Path, text: str, **options: Any) -> DataSettings:  # noqa: ANN401  as TOML gives them
    path = tmp_path / "data.csv"
    path.write_text(text, encoding="utf-8")
    return DataSettings(source=str(path), options=options)


HEAD = "a,kind,b\n"
ROWS = "1,0,2\n3,1,4\n5,0,6\n7,1,8\n9,2,10\n"


@pytest.mark.parametrize(
    ("text", "options", "labels"),
    [
        (HEAD + ROWS, {"label": "kind"}, [0, 1, 0, 1]),
        ("\ufeff" + HEAD + ROWS, {"label": "kind"}, [0, 1, 0, 1]),
        (ROWS, {"label": 1}, [0, 1, 0, 1]),
        (ROWS.replace(",", ";"), {"label": -2, "delimiter": ";"}, [0, 1, 0, 1]),
        (ROWS, {}, [2, 4, 6, 8]),
    ],
)
def test_csv_with_its_label_by_name_or_number(
    tmp_path: Path, text: str, options: dict[str, Any], labels: list[int]
) -> None:
    found = load(csv(tmp_path, text, **options))
    assert found.train_y.tolist() == labels
    assert (only(found.train_x).shape, only(found.test_x).shape) == ((4, 2), (1, 2))
    assert only(found.test_x)[0, 0] == 9


def test_csv_keeps_the_last_rows_for_testing(tmp_path: Path) -> None:
    found = load(csv(tmp_path, ROWS, label=1, test_fraction=0.4))
    assert only(found.test_x).tolist() == [[7, 8], [9, 10]]
    assert load(csv(tmp_path, ROWS, label=1, test_fraction=0)).test_y.shape == (0,)


@pytest.mark.parametrize(
    ("text", "options", "error", "says"),
    [
        (HEAD + ROWS, {"label": "size"}, ConfigError, "a, kind, b"),
        (ROWS, {"label": "kind"}, ConfigError, "no header"),
        (ROWS, {"label": 3}, ConfigError, "no column 3 of 3"),
        (ROWS, {"test_fraction": 1.0}, ConfigError, "not in"),
        (ROWS, {"lable": 1}, ConfigError, "lable"),
        (ROWS, {"path": "/etc/passwd"}, ConfigError, "path"),
        (ROWS + "1,2\n", {}, DataError, "cannot be read"),
        (ROWS + "1,,2\n", {}, DataError, "no empty cell"),
        (ROWS + "1,nan,2\n", {"label": 0, "test_fraction": 0.0}, DataError, "row 5 has a value that is not finite"),
    ],
)
def test_csv_that_cannot_be_used_is_refused(
    tmp_path: Path, text: str, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    settings = csv(tmp_path, text, **options)
    with pytest.raises(error) as caught:
        load(settings)
    assert says in str(caught.value)


@pytest.mark.parametrize("text", [HEAD, HEAD + "\n \n", "", "\n"])
def test_a_csv_without_rows_has_no_examples(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataError, match="no rows") as caught:
        load(csv(tmp_path, text))
    assert caught.value.where == str(tmp_path / "data.csv")
