"""A model from the words of a user: which inputs, loss, metrics and initial parameters it gets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from edgepfl.errors import ConfigError, ExportError
from edgepfl.plan import ExampleSpec
from exporters.model import Model
from exporters.source import Wanted, load_model

NETS = """
import torch
from torch import nn
from exporters.model import model_of

def linear(outputs=3, bias=True):
    return nn.Linear(4, outputs, bias=bias)

def regression():
    return model_of(nn.Linear(4, 1), [(4,)], loss="mse", personal=("bias",), title="my regression")

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(self.embedding(x).mean(1))

def lookup():
    return nn.Embedding(9, 3)

def normalised():
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))

def weighted(outputs, y):
    return ((outputs - y) ** 2).mean(1) * 3

def accuracy(outputs, y):
    return (outputs.argmax(1) == y).float()

def broken(width):
    raise RuntimeError("no weights")
"""
X, IDS = ExampleSpec((4,)), ExampleSpec((5,), "int64")


@pytest.fixture(autouse=True)
def _nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "nets_of_this_test.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    yield
    monkeypatch.undo()


def _load(name: str, **wanted: Any) -> Model:  # noqa: ANN401  as Wanted says
    return load_model(Wanted(f"nets_of_this_test:{name}", **wanted))


def test_a_module_gets_the_loss_and_its_metrics_and_target() -> None:
    plain, other = _load("linear", inputs=[X]), _load("linear", inputs=[X], loss="huber", batch=3)
    assert (plain.loss.__name__, sorted(plain.metrics), plain.title) == ("cross_entropy", ["accuracy"], "linear")
    assert (other.loss.__name__, sorted(other.metrics), other.batch) == ("huber", ["mae"], 3)
    assert (plain.target, other.target) == (ExampleSpec((), "int64", high=3), ExampleSpec((3,)))


def test_functions_of_the_users_own_and_a_target_of_its_own() -> None:
    path = "nets_of_this_test"
    model = _load("linear", inputs=[X], loss=f"{path}:weighted", metrics=("mse", "mae"), target=ExampleSpec((3,)))
    outputs, y = torch.ones(2, 3), torch.zeros(2, 3)
    assert model.loss(outputs, y).tolist() == [3, 3]
    assert sorted(model.metrics) == ["mae", "mse"]
    assert model.target == ExampleSpec((3,))


@pytest.mark.parametrize(
    "wanted", [{}, {"metrics": ("mae",)}, {"inputs": [X]}, {"batch": 4}, {"target": ExampleSpec((1,))}]
)
def test_a_model_that_knows_its_loss_keeps_it_whatever_else_is_said(wanted: dict[str, Any]) -> None:
    model = _load("regression", **wanted)
    assert (model.loss.__name__, model.target) == ("mse", ExampleSpec((1,)))
    assert (model.personal, model.title, sorted(model.metrics)) == (("bias",), "my regression", ["mae"])
    assert model.batch == wanted.get("batch", 16)


def test_unless_another_is_asked_for() -> None:
    huber = _load("regression", loss="huber", personal=("weight",))
    assert (huber.loss.__name__, huber.personal, huber.title) == ("huber", ("weight",), "my regression")
    classes = _load("regression", loss="cross_entropy")
    assert (classes.target, sorted(classes.metrics)) == (ExampleSpec((), "int64", high=1), ["accuracy"])
    own = _load("regression", loss="nets_of_this_test:weighted")
    assert (own.target, own.metrics) == (ExampleSpec((1,)), {})


def test_whole_numbers_are_indices_of_the_embedding_unless_told_otherwise() -> None:
    assert _load("Tied", inputs=[IDS]).inputs == (ExampleSpec((5,), "int64", high=7),)
    assert _load("Tied", inputs=[ExampleSpec((5,), "int64", high=5)]).inputs[0].high == 5


def test_an_input_may_be_a_single_number_of_each_example() -> None:
    model = _load("lookup", inputs=[ExampleSpec((), "int64")], batch=5)
    assert model.inputs == (ExampleSpec((), "int64", high=9),)
    assert model.zeros[0].shape == (5,)


def test_arguments_go_to_the_factory_and_the_seed_decides_the_rest() -> None:
    model = _load("linear", inputs=[X], arguments={"outputs": 2, "bias": False})
    assert set(model.specs) == {"weight"}
    assert model.target.high == 2
    same, other = _load("linear", inputs=[X]), _load("linear", inputs=[X], seed=1)
    assert torch.equal(same.parameters["weight"], _load("linear", inputs=[X]).parameters["weight"])
    assert not torch.equal(same.parameters["weight"], other.parameters["weight"])


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_initial_parameters_come_from_a_file(tmp_path: Path, suffix: str, dtype: torch.dtype) -> None:
    tensors = {"weight": torch.arange(12).reshape(3, 4).to(dtype), "bias": torch.ones(3, dtype=dtype)}
    file = tmp_path / f"weights{suffix}"
    (safetensors.torch.save_file if suffix == ".safetensors" else torch.save)(tensors, file)
    params = _load("linear", inputs=[X], weights=file).parameters
    assert params["weight"].dtype is torch.float32
    assert params["weight"].tolist() == tensors["weight"].tolist()


def test_running_statistics_come_from_it_too_and_a_counter_need_not(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    tensors = {name: tensor + 2 for name, tensor in module.state_dict().items() if not name.endswith("tracked")}
    safetensors.torch.save_file(tensors, tmp_path / "bn.safetensors")
    params = _load("normalised", inputs=[X], weights=tmp_path / "bn.safetensors").parameters
    assert params["1.running_var"].tolist() == [3, 3, 3]
    assert params["1.running_mean"].tolist() == [2, 2, 2]


@pytest.mark.parametrize("name", ["embedding.weight", "head.weight"])
def test_of_a_tensor_with_two_names_either_will_do(tmp_path: Path, name: str) -> None:
    """What safetensors' ``save_model`` writes has one of them."""
    safetensors.torch.save_file({name: torch.full((7, 4), 2.5)}, tmp_path / "tied.safetensors")
    params = _load("Tied", inputs=[IDS], weights=tmp_path / "tied.safetensors").parameters
    assert set(params) == {"embedding.weight"}
    assert (params["embedding.weight"] == 2.5).all()


class _Bomb:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return open, (str(Path.cwd() / "it_ran"), "w")  # type: ignore[return-value]  # as pickle takes it


def _write(file: Path, content: object) -> Path:
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        torch.save(content, file)
    return file


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ({"weight": torch.zeros(3, 4), "bias": _Bomb()}, "holds more than tensors"),
        (_Bomb(), "holds more than tensors"),
        (nn.Linear(4, 3), "holds more than tensors"),
        (b"no file of torch's", "holds more than tensors"),
        ([torch.zeros(3)], "cannot be loaded"),
        ({"weight": torch.zeros(3, 4)}, "it lacks bias and has besides nothing"),
        (
            {"weight": torch.zeros(3, 4), "bias": torch.zeros(3), "more": torch.zeros(1)},
            "lacks nothing and has besides",
        ),
        ({"weight": torch.zeros(2, 4), "bias": torch.zeros(3)}, "size mismatch for weight"),
    ],
)
def test_a_file_that_will_not_do_is_told_in_one_line_and_runs_nothing(
    tmp_path: Path, content: object, what: str
) -> None:
    file = _write(tmp_path / "w.pt", content)
    with pytest.raises(ConfigError) as caught:
        _load("linear", inputs=[X], weights=file)
    assert what in caught.value.what
    assert caught.value.where == str(file)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "it_ran").exists()


@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
def test_so_is_a_file_that_is_not_there(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be loaded") as caught:
        _load("linear", inputs=[X], weights=tmp_path / name)
    assert caught.value.where == str(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "wanted", "where", "what"),
    [
        ("linear", {}, "--input", "gives a module, so it must be given"),
        ("linear", {"inputs": [X], "loss": "l2"}, "", "there is no loss 'l2'"),
        ("linear", {"inputs": [X], "loss": "nets_of_this_test:l2"}, "--loss", "no function or class 'l2'"),
        ("linear", {"inputs": [X], "metrics": ("f1",)}, "--metric", "there is no metric 'f1'"),
        ("linear", {"inputs": [X], "metrics": ("no_such_module:f1",)}, "--metric", "cannot be imported"),
        (
            "linear",
            {"inputs": [X], "metrics": ("accuracy", "nets_of_this_test:accuracy")},
            "--metric",
            "two have the same name",
        ),
    ],
)
def test_words_that_will_not_do_are_told_where(name: str, wanted: dict[str, Any], where: str, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _load(name, **wanted)
    assert what in caught.value.what
    assert caught.value.where == where


@pytest.mark.parametrize(
    ("name", "wanted", "what"),
    [
        ("broken", {"arguments": {"width": 3}}, "the factory failed (no weights)"),
        ("broken", {}, "missing 1 required positional argument: 'width'"),
        ("linear", {"arguments": {"depth": 3}}, "unexpected keyword argument 'depth'"),
        ("weighted", {"arguments": {"outputs": torch.ones(2, 2), "y": 1}}, "gives a Tensor, not a torch.nn.Module"),
    ],
)
def test_a_factory_that_makes_no_module_is_named(name: str, wanted: dict[str, Any], what: str) -> None:
    with pytest.raises(ExportError) as caught:
        _load(name, inputs=[X], **wanted)
    assert what in caught.value.what
    assert caught.value.where == f"nets_of_this_test:{name}"
