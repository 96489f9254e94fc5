from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgepfl.errors import ConfigError
from simulators.bench.cli import main
from simulators.bench.reduction import ReductionRow, text


def test_a_run_measures_both_ways_and_writes_the_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.json"
    assert main(["reduction", "--d", "700000", "--k", "2,3", "--threads", "1", "--json", str(file)]) == 0
    rows = [ReductionRow(**row) for row in json.loads(file.read_text())]
    assert [(row.way, row.k) for row in rows] == [("ordered", 2), ("exact", 2), ("ordered", 3), ("exact", 3)]
    for row in rows:
        assert (row.d, row.threads, row.device) == (700_000, 1, "cpu")
        assert row.gb_per_second * row.seconds == pytest.approx(4 * row.d * row.k / 1e9)
        assert row.share == pytest.approx(row.gb_per_second / row.read_gb_per_second)
    out = capsys.readouterr().out
    assert text(rows) + "\n" == out
    assert out.count("\n") == 2 + len(rows)


@pytest.mark.parametrize(
    ("words", "where"),
    [(["--d", "0"], "--d"), (["--k", "10,x"], "--k"), (["--k", "-1"], "--k"), (["--threads", "0"], "--threads")],
)
def test_numbers_that_cannot_be(words: list[str], where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        main(["reduction", *words])
    assert caught.value.where == where
