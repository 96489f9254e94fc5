"""The comparison's runs: kept, not made again, and none that fails loses the others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from edgepfl.errors import ConfigError
from simulators import compare, runs_file
from simulators.report import Summary
from simulators.runs_file import Ran, Runs, Setup

SETUP = Setup("digits", 3, 2, 1, ())
GOOD = Ran("ditto", 0, {"ditto": Summary(0.5, 0.4, 0.6, before=0.1), "ditto, global": Summary(0.3, 0.2, 0.4)})


def test_runs_come_out_of_their_file_as_they_went_in_and_the_last_counts(tmp_path: Path) -> None:
    file = tmp_path / "runs.json"
    failed = Ran("ditto", 0, {}, "it diverged")
    runs = Runs(SETUP).having(failed)
    assert runs.of("ditto", 0) is None  # it is made again
    runs = runs.having(GOOD)
    runs_file.write(runs, file)
    assert runs_file.read(file, SETUP) == runs == Runs(SETUP, (GOOD,))
    assert runs.of("ditto", 0) == GOOD
    assert runs.of("ditto", 1) is None
    assert [path.name for path in tmp_path.iterdir()] == ["runs.json"]


def test_runs_of_another_setup_are_not_mixed_in(tmp_path: Path) -> None:
    file = tmp_path / "runs.json"
    runs_file.write(Runs(SETUP, (GOOD,)), file)
    with pytest.raises(ConfigError, match="rounds=9"):
        runs_file.read(file, replace(SETUP, rounds=9))
    file.write_text("[]")
    with pytest.raises(ConfigError, match="holds no runs"):
        runs_file.read(file, SETUP)
    assert runs_file.read(tmp_path / "none.json", SETUP) == runs_file.read(None, SETUP) == Runs(SETUP)


def test_a_run_that_diverges_ends_no_comparison_and_one_that_was_made_is_not_made_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "runs.json"
    words = ["--data", "digits", "--devices", "3", "--rounds", "2", "--steps", "2", "--seeds", "1", "--json", str(file)]
    assert compare.main([*words, "--algorithms", "fedavg", "--set", "lr=1e30"]) == 1
    said = capsys.readouterr()
    assert "FAILED fedavg, seed 0" in said.err
    assert "local only" not in said.out or "fedavg" not in said.out
    with pytest.raises(ConfigError, match="lr=1e30"):
        compare.main([*words, "--algorithms", "fedavg"])
    file.unlink()
    assert compare.main([*words, "--algorithms", "fedavg"]) == 0
    first = json.loads(file.read_text())
    assert {run["algorithm"] for run in first["runs"]} == {"local only", "fedavg"}
    table = capsys.readouterr().out
    assert all(row in table for row in ("local only", "fedavg, global", "fedavg, fine-tuned", "round 0"))
    assert compare.main([*words, "--algorithms", "fedavg"]) == 0
    said = capsys.readouterr()
    assert said.out == table
    assert "round 1/2" not in said.err
    assert json.loads(file.read_text()) == first


def test_a_model_that_is_the_methods_own_has_no_second_row() -> None:
    same = Summary(0.5, 0.4, 0.6)
    runs = Runs(SETUP, (GOOD, Ran("fedprox", 0, {"fedprox": same, "fedprox, global": same})))
    assert list(compare._table(runs, ["ditto", "fedprox"], [0])) == ["ditto", "ditto, global", "fedprox"]
    assert list(compare._table(runs, ["fedprox"], [1])) == []
