"""``edgepfl data``: lists, numbers and pictures of a fleet's data."""

from __future__ import annotations

import doctest
import json
import math
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from device_agent.data import Examples
from edgepfl.__main__ import main
from edgepfl.errors import DataError
from simulators import text_options
from simulators.datasets import DATASETS, Drift, FleetData, load
from simulators.datasets import statistics as statistics_module
from simulators.datasets.pictures import MOST_BARS, picture, shown
from simulators.datasets.statistics import statistics

SVG = "{http://www.w3.org/2000/svg}"


def fleet() -> FleetData:
    """Three devices: 8 and 8 of two classes, 10 of one, 6 of a third."""
    x = np.zeros((20, 2), np.float32)
    labels = {"a": [0] * 8 + [1] * 8, "b": [0] * 10, "c": [2] * 6}
    devices = {
        name: Examples(x[: len(y) // 2], np.array(y[::2]), x[: len(y) // 2], np.array(y[1::2]))
        for name, y in labels.items()
    }
    return FleetData("small", devices, (2,), ("zero", "one", "two"), "mlp")


def test_numbers_are_those_of_the_definitions() -> None:
    found = statistics(fleet())
    assert found.counts == (18, 8, 6)
    assert [(each.train, each.test, each.classes) for each in found.devices] == [(8, 8, 2), (5, 5, 1), (3, 3, 1)]
    assert [each.entropy for each in found.devices] == [1.0, 0.0, 0.0]
    mix = np.array([18, 8, 6]) / 32
    own = np.array([[0.5, 0.5, 0], [1, 0, 0], [0, 0, 1]])
    assert [each.distance for each in found.devices] == pytest.approx((np.abs(own - mix).sum(1) / 2).tolist())
    assert (found.train.min, found.train.median, found.train.max) == (3, 5, 8)
    assert found.train.mean == pytest.approx(16 / 3)
    assert (found.held.max, found.entropy.max, found.examples) == (2, 1.0, 32)


def test_distances_reach_their_limits() -> None:
    same = statistics(load("digits", devices=4, partition="dirichlet:1e7"))
    assert same.distance.max < 0.02
    assert same.entropy.min == pytest.approx(math.log2(10), abs=0.01)
    apart = statistics(load("digits", devices=10, partition="classes:1"))
    assert apart.entropy.max == 0
    assert apart.distance.min == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize(
    ("y", "told"), [(np.array([0, 3]), "from 0 to 3"), (np.array([-1, 0]), "from -1"), (np.zeros(2), "not labels")]
)
def test_a_device_with_other_labels_is_named(y: np.ndarray[tuple[int], np.dtype[np.int64]], told: str) -> None:
    x = np.zeros((2, 2), np.float32)
    good, bad = Examples(x, np.array([0, 1]), x, np.array([0, 1])), Examples(x, y, x, y)
    with pytest.raises(DataError, match=told) as caught:
        statistics(FleetData("small", {"a": good, "b": bad}, (2,), ("zero", "one", "two"), "mlp"))
    assert caught.value.where == "data small, device b"
    with pytest.raises(DataError, match=r"\[2\], not \[3\]"):
        statistics(FleetData("small", {"a": good}, (3,), ("zero", "one"), "mlp"))


def test_bars_are_as_high_as_there_are_examples() -> None:
    drawn = ET.fromstring(picture(statistics(fleet()), Drift()))  # noqa: S314  we drew it
    bars = {
        title.text: (float(rect.get("height", "")), rect.get("fill"))
        for rect in drawn.iter(f"{SVG}rect")
        if (title := rect.find(f"{SVG}title")) is not None and title.text and ":" in title.text
    }
    assert set(bars) == {"a, zero: 8", "a, one: 8", "b, zero: 10", "c, two: 6"}
    unit = bars["b, zero: 10"][0] / 10
    for name, (height, _) in bars.items():
        assert height == pytest.approx(unit * int(str(name).rpartition(" ")[2]), abs=0.05)
    assert bars["a, zero: 8"][1] == bars["b, zero: 10"][1] != bars["a, one: 8"][1]
    edges = {
        str(title.text): (float(rect.get("y", "")), float(rect.get("y", "")) + float(rect.get("height", "")))
        for rect in drawn.iter(f"{SVG}rect")
        if (title := rect.find(f"{SVG}title")) is not None
    }
    assert edges["a, one: 8"][1] == pytest.approx(edges["a, zero: 8"][0], abs=0.05)  # one on the other
    assert edges["a, zero: 8"][1] == edges["b, zero: 10"][1] == edges["c, two: 6"][1]
    words = [text.text for text in drawn.iter(f"{SVG}text")]
    assert {"zero", "one", "two", "Examples of each class, by device"} <= set(words)
    assert any("Drift of labels" in str(each) for each in words)
    assert len(list(drawn.iter(f"{SVG}polyline"))) == 1


def test_of_many_devices_some_are_shown_and_it_says_so() -> None:
    found = statistics(load("synthetic,most=60", devices=200))
    bars = shown(found.devices)
    assert len(bars) == MOST_BARS
    sizes = [each.examples for each in bars]
    assert sizes == sorted(sizes, reverse=True)
    assert (sizes[0], sizes[-1]) == (
        max(each.examples for each in found.devices),
        min(s.examples for s in found.devices),
    )
    assert "80 of 200 shown" in picture(found)


def test_pictures_of_equal_sizes_and_of_one_device_can_be_drawn() -> None:
    for devices in (1, 5):
        ET.fromstring(picture(statistics(load("random,train=5,test=0", devices=devices))))  # noqa: S314  likewise


def test_of_a_large_fleet_it_tells_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "show", "random,features=1,train=1,test=0", "--devices", "5000", "--json"]) == 0
    found = capsys.readouterr()
    assert [line for line in found.err.splitlines() if "devices" in line] == [
        f"{done:,} of 5,000 devices" for done in range(500, 5001, 500)
    ]
    assert len(json.loads(found.out)["devices"]) == 5000


@pytest.mark.parametrize("module", [text_options, statistics_module])
def test_the_examples_of_docstrings_are_right(module: ModuleType) -> None:
    failed, tried = doctest.testmod(module)
    assert (failed, tried > 0) == (0, True)


def test_list_tells_every_data_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "list", "--json"]) == 0
    told = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert set(told) >= set(DATASETS)
    assert told["digits"]["options"] == {"alpha": 0.3, "classes": 0, "train_fraction": 0.5}
    assert told["mnist"]["partitions"]
    assert not told["watch"]["partitions"]
    assert main(["data", "list"]) == 0
    assert "synthetic(alpha, beta)" in capsys.readouterr().out


def test_show_prints_and_writes_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["data", "show", "digits", "--devices", "6", "--partition", "mixes:0.5+power:1", "--seed", "3"]
    words += ["--drift", "labels:abrupt,start=2", "--round", "2"]
    assert main([*words, "--svg", str(tmp_path / "a.svg"), "--html", str(tmp_path / "a.html")]) == 0
    text = capsys.readouterr().out
    assert "6 devices, 1,797 examples of 64, 10 classes, seed 3; round 2, of the new concept: 100 %" in text
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert sum(told["counts"]) == 1797
    assert [each["device"] for each in told["devices"]] == [f"device-{number:03}" for number in range(6)]
    for each in told["devices"]:
        assert each["device"] in text
        assert f"{each['train']:,}" in text
        assert each["device"] in (tmp_path / "a.html").read_text(encoding="utf-8")
    ET.parse(tmp_path / "a.svg")  # noqa: S314  likewise
    before = load("digits", devices=6, seed=3, partition="mixes:0.5+power:1")
    shifted = np.roll(np.sum([each.counts for each in statistics(before).devices], axis=0), 1)
    assert told["counts"] == shifted.tolist()
    assert [each["train"] for each in told["devices"]] == [each.train for each in statistics(before).devices]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["show", "digit"], "there is no data set 'digit'"),
        (["show", "digits", "--set", "alpha"], "is no setting"),
        (["show", "digits", "--set", "gamma=1"], "no option gamma"),
        (["show", "digits", "--set", "alpha=1", "--partition", "iid"], "both say who has what"),
        (["show", "digits,alpha=x"], "alpha"),
        (["show", "random", "--devices", "-1"], "no fleet"),
        (["show", "digits", "--drift", "labels:slow"], "slow"),
        (["show", "digits", "--svg", "/nowhere/a.svg"], "cannot be written"),
    ],
)
def test_what_cannot_be_shown_is_told_in_one_line(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", *words]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert "Traceback" not in error
