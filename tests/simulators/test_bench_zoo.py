from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from _runner_library import library_folder

from device_agent.runners import Array, Runner
from edgepfl import algorithms
from edgepfl.errors import ConfigError
from edgepfl.plan import Entry
from exporters.build import build
from exporters.eager import EagerRunner
from exporters.zoo import mlp
from simulators.bench import agreement, record, zoo, zoo_page
from simulators.bench.cli import main
from simulators.bench.record import Case, Failure, Record, Runtime, Speed, ZooRow

SVG = "{http://www.w3.org/2000/svg}"


def row(model: str, runtime: Runtime = "onnx", *, error: float = 1e-6, algorithm: str = "fedavg") -> ZooRow:
    case = Case(model, algorithm, runtime, 8)
    return ZooRow(case, model, 1000, 1.5, 100, 2000, 30, None, error, Speed(100.0, 250.0))


@pytest.mark.parametrize(
    "words",
    [
        ["--models", "mlp", "--algorithms", "fedavg", "--runtimes", "onnx,executorch"],
        ["--models", "cnn1d", "--algorithms", "apfl", "--runtimes", "onnx"],
    ],
)
def test_exported_models_of_the_zoo_train_like_torch(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEPFL_RUNNER", str(library_folder()))
    file = tmp_path / "zoo.json"
    assert main(["zoo", *words, "--batch", "4", "--json", str(file)]) == 0
    found = record.read(file)
    assert len(found.rows) == (2 if "mlp" in words else 1)
    assert all(row.error <= agreement.TOLERANCE and row.nodes > 20 for row in found.rows)
    assert all((row.speed is not None) == (row.case.algorithm == "fedavg") for row in found.rows)
    assert all((row.delegated or 0) > 20 for row in found.rows if row.case.runtime == "executorch")
    capsys.readouterr()
    assert main(["zoo", *words, "--batch", "4", "--json", str(file)]) == 0
    assert capsys.readouterr().err.count("measured before") == len(found.rows)


def test_a_row_that_fails_is_listed_does_not_end_the_run_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(*_: object, **__: object) -> None:
        raise RuntimeError("it broke")  # no error of ours, which is the point

    file = tmp_path / "zoo.json"
    words = ["zoo", "--models", "mlp", "--algorithms", "fedper", "--runtimes", "onnx", "--json", str(file)]
    with monkeypatch.context() as patched:
        patched.setattr(zoo, "build", breaks)
        assert main(words) == 1
    said = capsys.readouterr()
    assert "FAILED mlp, fedper, onnx: RuntimeError: it broke" in said.out
    assert [failure.reason for failure in record.read(file).failures] == ["RuntimeError: it broke"]
    assert main(words) == 0
    assert (len(record.read(file).failures), len(record.read(file).rows)) == (0, 1)


def test_the_exit_status_tells_of_an_error_that_is_too_great(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "zoo.json"
    words = ["zoo", "--models", "mlp", "--algorithms", "fedavg", "--runtimes", "onnx", "--json", str(file)]
    for error, status in ((9e-5, 0), (1.1e-4, 1), (float("inf"), 1)):
        if np.isfinite(error):
            record.write(Record((row("mlp", error=error),)), file)
            assert main(words) == status
            assert ("WRONG" in capsys.readouterr().out) == bool(status)
        assert row("mlp", error=error).right is not bool(status)


def test_errors_are_relative_to_what_they_are_in_unless_that_is_next_to_nothing() -> None:
    big, small = np.array([100.0, 0.0]), np.array([1e-7])
    assert agreement.difference({"a": big + 0.5}, {"a": big}) == pytest.approx(0.005)
    assert agreement.difference({"a": big, "b": 2 * small}, {"a": big, "b": small}) == pytest.approx(1e-5)
    with pytest.raises(ValueError, match="b"):
        agreement.difference({"a": big}, {"a": big, "b": small})


class Shifted:
    """Torch's own numbers, a little off."""

    def __init__(self, runner: Runner, factor: float) -> None:
        self._runner, self._factor = runner, factor

    def run(self, entry: Entry, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        found = self._runner.run(entry, feeds)
        return {name: (array * self._factor).astype(np.float32) for name, array in found.items()}


@pytest.mark.parametrize(
    ("dtype", "factor", "draws"), [("float32", 1.0, 1), ("float64", 1.0, 1), ("float32", 1.001, 9)]
)
def test_graphs_follow_torch_in_either_precision_or_are_tried_with_other_data(
    dtype: str, factor: float, draws: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agreement, "DRAWS", agreement.MANY + 1)
    algorithm, model = algorithms.build("fedavg", {}), mlp(batch=4)
    bundle = build(algorithm, model)
    runner = Shifted(EagerRunner(algorithm, model, dtype=getattr(torch, dtype)), factor)
    found = agreement.Eager(algorithm, model).error(bundle, runner)
    assert found.draws == draws
    assert found.value == 0 if factor == 1 else found.value > agreement.TOLERANCE


def test_each_draw_is_other_data() -> None:
    model = mlp(batch=4)
    first, again, other = (np.asarray(agreement.devices(model, draw)["device-0"].train_x) for draw in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    counts = [
        len(agreement.devices(model, draw)["device-0"].train_x[0]) for draw in (agreement.MANY - 1, agreement.MANY)
    ]
    assert counts == [13, 2]


def test_a_record_keeps_the_last_of_each_case_and_survives_the_file(tmp_path: Path) -> None:
    case = row("mlp").case
    failed = Record().having(Failure(case, "no")).having(row("tcn"))
    assert case not in failed
    assert not failed.right
    found = failed.having(row("mlp"))
    assert (case in found, found.failures, found.right) == (True, (), True)
    record.write(found, tmp_path / "r.json")
    assert record.read(tmp_path / "r.json") == found
    assert [each.case.model for each in found.of([case]).rows] == ["mlp"]
    (tmp_path / "r.json").write_text("[1]")
    with pytest.raises(ConfigError, match="no record"):
        record.read(tmp_path / "r.json")


def test_the_page_has_a_line_for_each_row_and_pictures_that_stand_alone(tmp_path: Path) -> None:
    rows = tuple(row(model, runtime) for model in ("mlp", "a<b") for runtime in zoo.RUNTIMES)
    found = Record((*rows, row("mlp", algorithm="ditto")), (Failure(Case("gru", "apfl", "onnx", 8), "too long"),))
    zoo_page.write(found, tmp_path)
    page = (tmp_path / "zoo.md").read_text("ascii")
    assert len(re.findall(r"^\| (mlp|a<b) ", page, re.MULTILINE)) == 5
    assert "- gru, apfl, onnx: too long" in page
    for name in re.findall(r"\]\((\S+\.svg)\)", page):
        picture = ET.fromstring((tmp_path / name).read_text("ascii"))  # noqa: S314  our own file
        assert picture.tag == f"{SVG}svg"
        titles = [title.text or "" for title in picture.iter(f"{SVG}title")]
        assert len(titles) == 6
        assert sum(title.startswith("a<b, ") for title in titles) == 3
        bars = [float(bar.get("width", 0)) for bar in picture.iter(f"{SVG}rect")]
        assert all(width > 0 for width in bars)
    assert len(list(tmp_path.glob("*.svg"))) == 2


def test_a_page_needs_a_row(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no row"):
        zoo_page.write(Record(failures=(Failure(row("mlp").case, "no"),)), tmp_path / "docs")
    assert not (tmp_path / "docs").exists()


@pytest.mark.parametrize(("us", "words"), [(12.34, "12.3 us"), (4567, "4.57 ms"), (2.5e6, "2.5 s")])
def test_times_have_a_fitting_unit(us: float, words: str) -> None:
    assert zoo_page.time_in_words(us) == words
    assert zoo_page.time_in_words(1000 * us) != words
