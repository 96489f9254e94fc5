from __future__ import annotations

from pathlib import Path

import pytest

from edgepfl import bundle
from edgepfl.errors import EdgepflError
from exporters.cli import main

NETS = """
from torch import nn

def linear(seed):
    return nn.Linear(4, 3)

def batch_norm():
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False))

def text():
    return "no module"

def broken():
    raise RuntimeError("no weights")

number = 3
"""


@pytest.fixture(autouse=True)
def _nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny_nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)


def _arguments(**changes: str) -> list[str]:
    settings = {"model": "tiny_nets:linear", "algorithm": "fedavg", "input": "4", "output": "a.bundle"}
    return [part for name, value in (settings | changes).items() if value for part in (f"--{name}", value)]


def test_it_writes_a_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(
        [*_arguments(algorithm="fedprox", set="lr=0.3", batch="2", seed="7"), "--personal", "weight", "--quiet"]
    )
    assert status == 0
    made = bundle.unpack((tmp_path / "a.bundle").read_bytes())
    assert made.plan.hyper["lr"] == 0.3
    assert made.plan.batch.size == 2
    assert made.plan.personal == ("weight",)
    told = capsys.readouterr().out
    assert "fedprox on linear, 15 parameters, 6 graphs" in told
    assert "an example: float32[4] -> one of 3 classes\n" in told
    assert sorted(path.name for path in tmp_path.glob("*a.bundle*")) == ["a.bundle"]  # no temporary file is left


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"loss": "mse"}, "float32[4] -> float32[3]"),
        ({"input": "7,4"}, "float32[7, 4] -> one of 7 classes at each of [3]"),
    ],
)
def test_it_tells_what_is_learned(more: dict[str, str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*_arguments(**more), "--quiet"]) == 0
    assert capsys.readouterr().out.endswith(f"an example: {told}\n")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm": "fedsgd"}, "no algorithm 'fedsgd'. Choose one of apfl"),
        ({"set": "mu=1"}, "no hyperparameter 'mu'"),
        ({"set": "lr"}, "'lr' is no setting"),
        ({"set": "lr=fast"}, "fedavg.lr: 'fast' will not do"),
        ({"model": "tiny_nets"}, "'tiny_nets' is not MODULE:FUNCTION"),
        ({"model": "tiny_knots:linear"}, "module tiny_knots cannot be imported"),
        ({"model": "tiny_nets:square"}, "no function or class 'square'"),
        ({"model": "tiny_nets:number"}, "no function or class 'number'"),
        ({"model": "tiny_nets:text"}, "gives a str, not a torch.nn.Module"),
        ({"model": "tiny_nets:broken"}, "the factory failed (no weights)"),
        ({"model": "tiny_nets:batch_norm"}, "module 1 (BatchNorm1d): it predicts with the statistics"),
        ({"input": ""}, "--input: tiny_nets:linear gives a module"),
        ({"input": "5"}, "does not take inputs of shape float32[16, 5]"),
        ({"loss": "hinge"}, "no loss 'hinge'"),
        ({"personal": "head.*"}, "no parameter matches 'head.*'"),
        ({"algorithm": "fedper"}, "keeps a part of the model on the device, and none is named"),
        ({"output": "missing/a.bundle"}, "the folder to write to does not exist"),
    ],
)
def test_bad_input_is_told_in_one_line_and_writes_nothing(
    changes: dict[str, str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(EdgepflError) as caught:
        main([*_arguments(**changes), "--quiet"])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("*.bundle"))


def test_help_tells_a_newcomer_what_to_type(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    told = capsys.readouterr().out
    assert "edgepfl export --model exporters.zoo:cnn1d --algorithm ditto -o watch.bundle" in told
    assert "'head.*'" in told


def test_sizes_that_are_none_are_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(_arguments(input="6x100"))
    assert caught.value.code == 2
    assert "'6x100' is not like 6,100 or 20:int64:1000" in capsys.readouterr().err
