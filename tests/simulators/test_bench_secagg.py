from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgepfl.errors import ConfigError
from simulators.bench.cli import main
from simulators.bench.secagg import SecAggRow, text


def test_it_measures_each_combination_and_writes_the_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.json"
    words = ["secagg", "--n", "5,10", "--d", "100", "--dropouts", "0,0.3", "--max-examples", "100"]
    assert main([*words, "--json", str(file)]) == 0
    rows = [SecAggRow(**row) for row in json.loads(file.read_text())]
    assert [(row.n, row.dropouts, row.neighbours, row.threshold) for row in rows] == [
        *((5, 0, 4, 3), (5, 2, 4, 3)),
        *((10, 0, 9, 6), (10, 3, 9, 6)),
    ]
    for row in rows:
        assert (row.d, row.bits, row.upload_bytes) == (100, 32, 400)
        assert row.sent_bytes * row.n == pytest.approx(row.server_got_bytes)
        assert row.got_bytes * row.n == pytest.approx(row.server_sent_bytes)
        assert row.server_sent_bytes > row.n * (row.neighbours * (80 + 64))  # at least shares and keys
        assert min(row.exchange_seconds, row.mask_seconds, row.server_exchange_seconds, row.open_seconds) > 0
    assert text(rows) + "\n" == capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (["--n", "2"], "--n"),
        (["--n", "x"], "--n"),
        (["--d", "0"], "--d"),
        (["--dropouts", "0.4"], "--dropouts"),
        (["--dropouts", "many"], "--dropouts"),
        (["--neighbours", "300"], "--neighbours"),
        (["--max-examples", "-1"], "--max-examples"),
    ],
)
def test_numbers_that_cannot_be(words: list[str], where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        main(["secagg", *words])
    assert caught.value.where == where
