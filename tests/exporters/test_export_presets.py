"""``edgepfl export --preset``: what is chosen, without an export."""

from __future__ import annotations

import pytest

from edgepfl import algorithms
from edgepfl.algorithms import Algorithm
from edgepfl.errors import ConfigError
from exporters.cli import _chosen, _parser, main

MODEL = ["--model", "exporters.zoo:mlp", "-o", "a.bundle"]


def chosen(*words: str) -> tuple[Algorithm, int]:
    return _chosen(_parser().parse_args([*MODEL, *words]))


def test_a_preset_gives_algorithm_hyperparameters_and_minibatch() -> None:
    algorithm, batch = chosen("--preset", "pfedbred/mnist-mclr")
    usual: dict[str, float | str] = {
        "lr": 0.01,
        "inner_lr": 0.01,
        "lam": 15.0,
        "eta": 0.05,
        "eta_a": 0.01,
        "variant": "mg_maml",
        "start": "w",
    }
    assert algorithm == algorithms.build("pfedbred", usual)
    assert batch == 40


def test_what_is_given_beside_a_preset_wins() -> None:
    words = ("--preset", "pfedme/mnist-mclr", "--set", "lam=10", "--batch", "7", "--algorithm", "pfedme")
    algorithm, batch = chosen(*words)
    expected = algorithms.build("pfedme", {"lam": 10, "inner_wd": 0.001, "weighting": "examples"})
    assert (algorithm, batch) == (expected, 7)
    assert chosen("--preset", "fpfc/synthetic")[1] == chosen("--algorithm", "fpfc")[1] == 16  # it says none


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--preset", "pfedme/mnist-mclr", "--algorithm", "ditto"], "pfedme/mnist-mclr is of pfedme, not of ditto"),
        (["--preset", "pfedme/mnist-mlcr"], "there is no preset 'pfedme/mnist-mlcr'. Did you mean pfedme/mnist-dnn"),
        (["--preset", "ditto/vehicle", "--set", "mu=1"], "ditto has no hyperparameter 'mu'"),
    ],
)
def test_what_does_not_go_together(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        main([*MODEL, *words])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_export_needs_an_algorithm_or_a_preset(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(MODEL)
    assert caught.value.code == 2
    assert "one of --algorithm and --preset is required" in capsys.readouterr().err
