from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from edgepfl.errors import ConfigError
from simulators.bench.cli import main
from simulators.bench.fleet import PROCESSES, FleetFound, FleetJob, as_json, markdown, row, text
from simulators.broker import installed

_JOB = FleetJob(4, "fedavg", "mlp-60-128-10", "a.bundle", "a", rounds=10, steps=5, threads=2)
_FOUND = FleetFound(
    seconds=2.0,
    rounds=10,
    cpu={"fleet": 0.2, "coordinator": 0.1, "broker": 0.02},
    reports=44,
    bare_cpu=0.004,
    bare_wall=0.010,
    connect_seconds=0.5,
    pss=103 << 20,
    state=7 << 20,
    parameters=4096,
    bytes_out=440_000,
    bytes_in=880_000,
    messages=0,
)
_ALONE = msgspec.structs.replace(_FOUND, pss=100 << 20, state=1 << 20)


def test_a_row_divides_by_the_device_rounds_that_were_measured() -> None:
    found = row(_JOB, _FOUND, _ALONE)
    assert found.seconds_per_round == pytest.approx(0.2)
    assert found.cpu_ms == pytest.approx({"fleet": 5.0, "coordinator": 2.5, "broker": 0.5})
    assert found.total_ms == pytest.approx(8.0)
    assert found.cpu_ratio == pytest.approx(2.0)  # 8 ms for 4 of arithmetic
    assert found.wall_ratio == pytest.approx(200 / (4 * 10 / 2))  # the bare loop's 4 devices on 2 threads
    assert found.kib_per_agent == pytest.approx((3 + 6) * 1024 / 3)  # of the three beyond the first
    assert found.kb_per_round == pytest.approx(30.0)  # the round that warms up counts, too
    assert found.lost == 0


def test_a_report_that_is_missing_is_lost_and_a_cohort_expects_no_more_than_its_own() -> None:
    assert row(_JOB, msgspec.structs.replace(_FOUND, reports=43), None).lost == 1
    sampled = row(msgspec.structs.replace(_JOB, cohort=2), msgspec.structs.replace(_FOUND, reports=22), None)
    assert (sampled.lost, sampled.cohort) == (0, 2)
    assert sampled.cpu_ms["fleet"] == pytest.approx(10.0)


def test_what_was_not_measured_is_a_dash_and_not_a_nought() -> None:
    given = msgspec.structs.replace(_FOUND, cpu={"fleet": 0.2, "coordinator": 0.1})  # somebody else's broker
    found = row(_JOB, given, None)
    cells = text([found]).splitlines()[-1].split()
    assert cells.count("-") == 2
    assert as_json(found)["kib_per_agent"] is None
    assert markdown([found]).count("\n") == 2


def test_one_agent_is_what_the_others_are_compared_with() -> None:
    assert row(msgspec.structs.replace(_JOB, agents=1), _ALONE, _ALONE).kib_per_agent is None


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (["--agents", "0"], "--agents"),
        (["--agents", "3,many"], "--agents"),
        (["--cohort", "-1"], "--cohort"),
        (["--rounds", "0"], "--rounds"),
        (["--threads", "0"], "--threads"),
        (["--models", "gpt"], "--models"),
        (["--algorithms", "magic"], "--algorithms"),
        (["--state", "/nowhere"], "--state"),
    ],
)
def test_words_that_cannot_be(words: list[str], where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        main(["fleet", *words])
    assert caught.value.where == where


@pytest.mark.skipif(not installed("mosquitto"), reason="its processor time is measured on a broker of its own")
@pytest.mark.timeout(300)
def test_a_fleet_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.json"
    words = ["--agents", "1", "--rounds", "2", "--steps", "2", "--batch", "8"]
    assert main(["fleet", *words, "--state", str(tmp_path), "--json", str(file)]) == 0
    [found] = json.loads(file.read_text())
    assert (found["agents"], found["cohort"], found["rounds"], found["lost"]) == (1, 1, 2, 0)
    assert set(found["cpu_ms"]) == set(PROCESSES)
    assert found["bare_ms"] > 0
    assert found["cpu_ratio"] == pytest.approx(found["total_ms"] / found["bare_ms"])
    assert found["parameter_kib"] == pytest.approx(9098 * 4 / 1024)
    assert found["kb_per_round"] > 2 * 9098 * 4 / 1000  # the model down and its change up
    assert capsys.readouterr().out.startswith("setting")
    assert list(tmp_path.iterdir()) == [file]  # nothing is left behind
