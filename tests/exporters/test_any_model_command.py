"""Models of every kind, exported by the command alone and trained from the bundle as a device does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from device_agent.data import Examples
from device_agent.evaluate import evaluate
from device_agent.interpreter import Interpreter, Start
from device_agent.runners.onnx import OnnxRunner
from edgepfl import bundle
from edgepfl.errors import EdgepflError
from edgepfl.plan import ExampleSpec
from exporters.cli import _arguments, main

NETS = """
import torch
from torch import nn
from torch.nn import functional

def forecast(width=8, activation="relu"):
    return nn.Sequential(nn.Linear(6, width), {"relu": nn.ReLU(), "tanh": nn.Tanh()}[activation], nn.Linear(width, 1))

def tagger():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 4))

class Recommend(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(20, 4)
        self.body = nn.Linear(4 + 3, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, user, items):
        return self.head(torch.tanh(self.body(torch.cat([self.items(items).mean(1), user], 1))))

def pinball(outputs, y):
    error = y - outputs
    return torch.maximum(0.9 * error, -0.1 * error).flatten(1).mean(1)

def bias(outputs, y):
    return (outputs - y).flatten(1).mean(1)
"""
_SOURCE = np.random.default_rng(5)
Arrays = NDArray[np.float32] | NDArray[np.int64]


@dataclass(frozen=True)
class Case:
    """What is typed, and a device's data for it."""

    words: str
    data: Examples
    inputs: tuple[ExampleSpec, ...]
    target: ExampleSpec
    metrics: set[str]


def _both(x: tuple[Arrays, ...], y: Arrays) -> Examples:
    return Examples(x, y, x, y)


_X = _SOURCE.standard_normal((29, 6)).astype(np.float32)
_IDS = _SOURCE.integers(0, 20, (29, 5))
_USER = _SOURCE.standard_normal((29, 3)).astype(np.float32)

REGRESSION = Case(
    "forecast --input 6 --loss users_nets_of_this_test:pinball --target 1 --metric mae "
    "--metric users_nets_of_this_test:bias --model-arg width=5 --model-arg activation=tanh",
    _both((_X,), _X[:, 0] - _X[:, 1]),  # (n,) for a target of (1,)
    (ExampleSpec((6,)),),
    ExampleSpec((1,)),
    {"loss", "mae", "bias"},
)
LABELS = Case(
    "tagger --input 6 --loss bce",
    _both((_X,), (_X[:, :4] > 0).astype(np.float32)),
    (ExampleSpec((6,)),),
    ExampleSpec((4,)),
    {"loss", "binary_accuracy"},
)
TWO_INPUTS = Case(
    "Recommend --input 3 --input 5:int64",
    _both((_USER, _IDS), _IDS[:, 0] % 3),
    (ExampleSpec((3,)), ExampleSpec((5,), "int64", high=20)),
    ExampleSpec((), "int64", high=3),
    {"loss", "accuracy"},
)


@pytest.fixture(autouse=True)
def _nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "users_nets_of_this_test.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)


def _words(text: str) -> list[str]:
    name, *rest = text.split()
    return ["--model", f"users_nets_of_this_test:{name}", "--algorithm", "fedprox", "--quiet", "-o", "a.bundle", *rest]


@pytest.mark.parametrize("case", [REGRESSION, LABELS, TWO_INPUTS], ids=lambda case: case.words.split()[0])
def test_what_the_command_writes_trains_on_a_device(case: Case, tmp_path: Path) -> None:
    assert main([*_words(case.words), "--batch", "8"]) == 0
    made = bundle.unpack((tmp_path / "a.bundle").read_bytes())
    plan = made.plan
    assert (plan.batch.x, plan.batch.y, plan.batch.size) == (case.inputs, case.target, 8)
    interpreter, data = Interpreter(plan, made.model, OnnxRunner(made)), case.data.fit(plan)
    start = Start({"w": made.model}, None, {"lr": 0.2, "mu": 0.0}, seed=3)
    before = evaluate(interpreter, start, data, 0).metrics
    result = interpreter.train(start, data, 60)
    moved = made.model.zip(lambda a, b: a + b, result.upload["delta"])
    after = evaluate(interpreter, replace(start, down={"w": moved}), data, 0).metrics
    assert {name.partition(".")[0] for name in before} == case.metrics
    assert after["loss.global"] < 0.8 * before["loss.global"]


def test_arguments_of_the_factory_are_literals_or_text() -> None:
    texts = ["width=3", "act=relu", "sizes=(1, 2)", "bias=False", "text='8'", "path=a=b", "empty="]
    found = _arguments(texts)
    assert found == {
        "width": 3, "act": "relu", "sizes": (1, 2), "bias": False, "text": "8", "path": "a=b", "empty": ""
    }  # fmt: skip
    assert _arguments([]) == {}


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("forecast --input 6 --model-arg width", "'width' is not KEY=VALUE"),
        ("forecast --input 6 --model-arg 3=4", "'3=4' is not KEY=VALUE"),
        ("forecast --input 6 --model-arg width='8'", "the factory failed"),
        ("forecast --input 6 --loss l1", "there is no loss 'l1'"),
        ("forecast --input 6 --loss mse --target 2", "targets [16, 2] for outputs [16, 1]"),
        ("forecast --input 6 --loss mse --target :int64", "targets [16] for outputs [16, 1]"),
        ("forecast --input 6 --metric loss_of_mine", "there is no metric 'loss_of_mine'"),
        ("Recommend --input 3 --input 5", "does not take inputs of shape float32[16, 3] and float32[16, 5]"),
        ("Recommend --input 5:int64 --input 3", "does not take inputs of shape int64[16, 5] and float32[16, 3]"),
        ("Recommend --input 3", "does not take inputs of shape float32[16, 3]"),
        ("Recommend --input 3 --input 5:int64:21", "index out of range"),
        ("tagger " + "--input 6 " * 17, "a model has 1 to 16 inputs, not 17"),
        ("tagger --input 6 --batch 65537", "65537 will not do"),
        ("tagger --input 6 --weights gone.safetensors", "cannot be loaded"),
    ],
)
def test_words_that_will_not_do_are_told_and_nothing_is_written(words: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(EdgepflError) as caught:
        main(_words(words))
    assert what in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "a.bundle").exists()


@pytest.mark.parametrize(
    "text", ["6x100", "6:half", "6:int64:many", "6:int64:-1", "6:float32:9", "0", "-3", "6:int64:3:4"]
)
@pytest.mark.parametrize("option", ["--input", "--target"])
def test_a_shape_that_is_none_is_a_usage_error(option: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(_words(f"tagger {option}={text}"))
    assert caught.value.code == 2
    assert f"{text!r} is not like 6,100 or 20:int64:1000" in capsys.readouterr().err
