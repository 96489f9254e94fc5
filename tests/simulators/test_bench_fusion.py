"""The benchmark of FPFC's engines."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest

from coordinator.fusion import ENGINES
from edgepfl.errors import ConfigError, RunError
from simulators.bench import fusion
from simulators.bench.cli import main
from simulators.bench.fusion import Plan, needed, run, text
from simulators.bench.fusion_work import Job, load, opened, work


def job(engine: str = "naive", m: int = 12, active: int = 4, rounds: int = 6, dtype: str = "float64") -> Job:
    return Job(engine, m, 300, active, rounds, "cpu", 1, dtype)


def test_a_run_measures_every_engine_and_writes_the_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.json"
    size = ["--m", "12", "--d", "30000"]  # with less, a process may have had all the pages before: a peak of 0
    words = ["fusion", *size, "--active", "0.3", "--rounds", "4", "--threads", "1"]
    assert main([*words, "--dtype", "float64", "--engines", "naive,hybrid", "--json", str(file)]) == 0
    naive, hybrid = json.loads(file.read_text())
    assert (naive["engine"], naive["m"], naive["d"], naive["active"], naive["against"]) == ("naive", 12, 30_000, 4, "")
    assert (hybrid["engine"], hybrid["against"], hybrid["threads"]) == ("hybrid", "naive", 1)
    assert hybrid["max_error"] < 1e-12
    assert min(row[name] for row in (naive, hybrid) for name in ("seconds", "peak_bytes", "floor_seconds")) > 0
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 4
    assert "hybrid, m = 12, d = 30,000, 4 active" in shown.err


@pytest.mark.parametrize("engine", ENGINES)
def test_engines_go_through_the_same_rounds(engine: str) -> None:
    everyone = engine == "potential"
    traces = [io.BytesIO(), io.BytesIO()]
    for name, trace in zip(("naive", engine), traces, strict=True):
        work(job(name, active=12 if everyone else 4), trace)
    naive, other = (np.frombuffer(trace.getvalue()) for trace in traces)
    assert len(naive) == 2 * 6 * (12 if everyone else 4) * 300
    assert np.abs(naive).max() > 0.1
    np.testing.assert_allclose(other, naive, rtol=0, atol=1e-12)


def test_an_engine_that_does_not_fit_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion, "_free", lambda _: 1 << 20)
    told: list[str] = []
    plan = Plan(["naive", "history"], [40], [300], [0.1], 2, "cpu", 1, "float32")
    (row,) = run(plan, told.append)
    assert (row.engine, row.against) == ("history", "")
    assert "naive" in told[0]
    assert "left out" in told[0]
    assert text([row]).splitlines()[-1].endswith("-")


def test_what_an_engine_needs_and_moves() -> None:
    row = 300 * 8
    assert needed(job()) == (12 * 11 + 36 + 20) * row
    assert needed(job("history")) == (24 + 36 + 20) * row
    operations, moved = load(opened(job()), job())
    hit = 4 * 8 + 6
    assert (operations, moved) == (0, (5 * hit + 12 + 12) * row)
    assert load(opened(job("history")), job("history")) == (0, 12 * row)  # no upload yet


def test_a_process_that_fails_is_told() -> None:
    plan = Plan(["potential"], [6], [30], [0.5], 2, "cpu", 1, "float32")
    with pytest.raises(RunError, match=r"3 of 6 devices took part") as caught:
        run(plan, lambda _: None)
    assert caught.value.where == "potential"


@pytest.mark.parametrize("words", [["--active", "0"], ["--active", "1.5"], ["--active", "x"], ["--d", "0"]])
def test_sizes_that_cannot_be_are_refused(words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        main(["fusion", *words])
    assert caught.value.where == words[0]
