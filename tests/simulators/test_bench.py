from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from _runner_library import library_folder

from edgepfl import algorithms, bundle
from edgepfl.bundle import Bundle
from edgepfl.errors import ConfigError, RunError
from edgepfl.plan import Entry
from exporters.build import build
from exporters.inspection import reports
from exporters.zoo import ZOO
from simulators.bench import job as jobs
from simulators.bench import ordinary, step
from simulators.bench.cli import main
from simulators.bench.floor import operations
from simulators.bench.graphs import step_bundle
from simulators.bench.job import CONTESTANTS, Contestant, Job
from simulators.bench.models import DEFAULT, MODELS
from simulators.bench.resident import pss_mib
from simulators.bench.result import Row, text
from simulators.bench.timing import BUDGET, WARM, measure

SMALL = "mlp-60-128-10"
COUNTS = {SMALL: 9_098, "mlp-784-1024-400-10": 1_217_850, "cnn": 80_202, "cnn1d": 7_287}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    file = tmp_path_factory.mktemp("bench") / "small.bundle"
    file.write_bytes(bundle.pack(build(algorithms.build("fedavg", {}), MODELS[SMALL](4))))
    return Job(SMALL, 4, 1, file)


def test_the_models_are_those_of_the_name() -> None:
    sizes = {name: sum(p.numel() for p in make(8).module.parameters()) for name, make in MODELS.items()}
    assert {name: sizes[name] for name in DEFAULT} == COUNTS
    assert set(sizes) == {*COUNTS, *ZOO}
    assert {make(8).batch for make in MODELS.values()} == {8}


def test_a_run_measures_every_runner_and_writes_the_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.json"
    words = ["step", "--models", SMALL, "--runners", "eager,onnx", "--threads", "1", "--batch", "4", "--rounds", "2"]
    assert main([*words, "--json", str(file)]) == 0
    rows = json.loads(file.read_text())
    assert [(row["model"], row["runner"], row["threads"], row["algorithm"]) for row in rows] == [
        (SMALL, "eager", 1, "fedavg"),
        (SMALL, "onnx", 1, "fedavg"),
    ]
    assert all(0 < row["us"] <= row["median_us"] and row["floor_us"] > 0 for row in rows)
    assert (rows[0]["ratio"], rows[0]["of_onnx"], rows[1]["of_onnx"]) == (1, None, None)
    assert 0 < rows[1]["pss_mib"] < rows[0]["pss_mib"]  # torch alone is some 200 MiB
    said = capsys.readouterr()
    assert len(said.out.strip().splitlines()) == 2 + len(rows)
    assert f"{SMALL}: export, onnx" in said.err


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEPFL_RUNNER", str(library_folder()))


@pytest.mark.usefixtures("library")
def test_executorch_is_compared_with_onnxruntime(tmp_path: Path) -> None:
    said: list[str] = []
    plan = step.Plan([SMALL], ["onnx", "executorch", "executorch-portable"], [1], 4, 2, memory=False)
    rows = step.run(plan, tmp_path, said.append)
    assert [row.runner for row in rows] == plan.runners, said
    assert [row.of_onnx for row in rows[1:]] == [
        pytest.approx(row.us / rows[0].us, abs=0.02 * row.us / rows[0].us) for row in rows[1:]
    ]
    assert [row.ratio for row in rows] == [None] * 3


@pytest.mark.parametrize(("kind", "places"), [("executorch", {"xnnpack", "portable"}), ("portable", {"portable"})])
def test_portable_graphs_delegate_nothing(kind: str, places: set[str]) -> None:
    made = step_bundle(algorithms.build("fedavg", {}), MODELS[SMALL](4), kind)
    graphs = made.graphs["executorch"]
    assert {entry for entry, data in graphs.items() if data} == {Entry.STEP}
    (report,) = reports(Bundle(made.plan, made.model, {"executorch": {Entry.STEP: graphs[Entry.STEP]}}, {}))
    assert {place for place in report.operators if report.count(place)} <= places
    assert report.count("xnnpack" if kind == "executorch" else "portable") > 10


def test_a_runner_that_cannot_run_is_left_out_by_name(
    job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = {
        "gone": Contestant("the gone one", "no_such_package:step"),
        "refused": Contestant("r", f"{__name__}:refuse"),
    }
    monkeypatch.setattr(step, "CONTESTANTS", {**CONTESTANTS, **broken})
    said: list[str] = []
    plan = step.Plan([SMALL], ["gone", "refused", "eager"], [1], job.batch, 1, memory=False)
    (row,) = step.run(plan, tmp_path, said.append)
    assert (row.runner, row.pss_mib) == ("eager", None)
    assert any("left out the gone one" in line and "no_such_package" in line for line in said)
    assert any("left out r" in line and "not today" in line for line in said)


def refuse(job: Job) -> jobs.Step:
    raise RunError("not today", where=job.model)


def test_torch_compile_needs_a_compiler(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RunError, match="C\\+\\+ compiler") as caught:
        ordinary.compiled(job)
    assert caught.value.remedy == "Install g++"


@pytest.mark.parametrize("runner", ["eager", "onnx"])
def test_every_step_goes_on_from_the_last(job: Job, runner: str) -> None:
    """The same minibatch again and again: the loss must fall, so a step that always starts anew is found out."""
    taken = CONTESTANTS[runner].step(job)
    losses = [taken() for _ in range(60)]
    assert losses[-1] < 0.95 * losses[0]
    assert np.isfinite(losses).all()


def test_an_exported_step_needs_no_torch(job: Job) -> None:
    code = (
        "import sys; from pathlib import Path; from simulators.bench.job import CONTESTANTS, Job\n"
        f"CONTESTANTS['onnx'].step(Job('{SMALL}', 4, 1, Path({str(job.bundle)!r})))()\n"
        "print('torch' in sys.modules, 'onnxruntime' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["False", "True"], done.stderr


def test_memory_is_of_a_process_of_its_own(job: Job) -> None:
    assert 10 < pss_mib("onnx", job) < 150
    with pytest.raises(RunError, match="No such file"):
        pss_mib("onnx", Job(SMALL, 4, 1, Path("/nowhere.bundle")))


def test_the_floor_counts_three_products_for_a_layer_and_two_for_the_first() -> None:
    found = operations(Job(SMALL, 4, 1, Path()))
    assert found == 2 * 4 * (2 * 60 * 128 + 3 * 128 * 10)
    assert operations(Job("cnn", 4, 1, Path())) > 100 * found


def test_turns_are_taken_in_order_and_times_are_of_one_step() -> None:
    turns: list[str] = []
    times = measure({"a": lambda: turns.append("a"), "b": lambda: turns.append("b")}, 3)
    order = re.sub(r"(.)\1*", r"\1", "".join(turns))
    assert order == "ab" + "ab" * 3
    assert all(0 < time.least <= time.median < 1e4 for time in times.values())
    assert all((time.best(1), time.best(2)) == (time.cpu, time.least) for time in times.values())


def test_a_slow_step_takes_fewer_turns_and_waiting_is_no_processor_time() -> None:
    taken: list[int] = []
    wait = BUDGET / 8

    def slow() -> None:
        taken.append(1)
        time.sleep(wait)

    (found,) = measure({"slow": slow}, 1000).values()
    assert len(taken) - WARM - 2 == 8
    assert found.cpu < 0.5 * wait * 1e6 <= found.least


def test_the_table_has_a_line_for_each_row() -> None:
    rows = [
        Row("fedavg", "m", "eager", 1, 1234.4, 1300, None, 100, 1.0),
        Row("fedavg", "m", "onnx", 1, 50, 60, 41.6, 25, 0.04),
        Row("fedavg", "m", "executorch", 1, 75, 80, 30, 25, 0.06, 1.5),
    ]
    lines = text(rows).splitlines()
    assert lines[2].split() == ["m", "eager", "1", "1,234", "1,300", "1.00x", "-", "12.3x", "-"]
    assert lines[3].split() == ["m", "onnx", "1", "50", "60", "0.04x", "-", "2.0x", "42"]
    assert lines[4].split()[5:7] == ["0.06x", "1.50x"]


@pytest.mark.parametrize(
    ("words", "where", "remedy"),
    [
        (["--models", "gpt"], "--models", "mlp-60-128-10"),
        (["--runners", "tvm"], "--runners", "onnx"),
        (["--threads", "1,x"], "--threads", ""),
        (["--batch", "0"], "--batch", ""),
        (["--rounds", "1000000"], "--rounds", ""),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_measured(words: list[str], where: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        main(["step", *words])
    assert caught.value.where == where
    assert remedy in caught.value.remedy
