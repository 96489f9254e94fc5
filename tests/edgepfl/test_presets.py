from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.resources import files

import msgspec
import pytest

from edgepfl import algorithms, presets
from edgepfl.errors import ConfigError
from edgepfl.presets import Preset

EVERY = presets.every()


@pytest.mark.parametrize("name", EVERY)
def test_a_preset_is_what_its_algorithm_takes(name: str) -> None:
    preset = EVERY[name]
    built = algorithms.build(preset.algorithm, preset.hyper)
    assert built == algorithms.build(preset.algorithm, preset.settings)  # as texts of a command line
    assert {key: getattr(built, key) for key in preset.hyper} == preset.hyper
    runtime = {key for key, role in algorithms.hyperparameters(type(built)).items() if role == "runtime"}
    assert preset.decay.keys() <= runtime
    assert all(0 < factor < 1 for factor in preset.decay.values())


@pytest.mark.parametrize("name", EVERY)
def test_a_preset_is_named_after_its_algorithm_and_says_where_it_was_read(name: str) -> None:
    preset = EVERY[name]
    algorithm, slash, what = name.partition("/")
    assert (algorithm, slash) == (preset.algorithm, "/")
    assert what == what.lower()
    assert len(preset.source) > 10
    assert preset.hyper
    assert preset.goal is None or preset.devices is None or preset.goal <= preset.devices
    assert not preset.note or preset.note.endswith((".", "?"))


def test_the_file_is_in_the_order_of_the_names_and_every_published_method_has_some() -> None:
    tables = tomllib.loads((files("edgepfl") / "presets.toml").read_text("utf-8"))
    assert list(tables) == sorted(tables) == list(EVERY)
    without = set(algorithms.names()) - {preset.algorithm for preset in EVERY.values()}
    assert without == {"fedsplit", "l2sgd", "proxskip"}  # no source that could be opened has numbers


def test_values_of_some_presets() -> None:
    softmax = presets.load("pfedme/mnist-mclr")
    assert softmax.hyper["inner_lr"] == 0.1
    assert (softmax.batch, softmax.run) == (20, {"rounds": 800, "steps": 20, "goal": 5})
    assert presets.load("pfedme/mnist-mclr-global").run["steps"] == 10
    assert presets.load("pfedbred/mnist-dnn").hyper["lam"] == 30
    assert presets.load("perfedavg/mnist-mclr").hyper == {"alpha": 0.03, "beta": 0.003, "weighting": "examples"}
    assert presets.load("feddr/femnist").hyper == {"lr": 0.003, "eta": 1000.0, "alpha": 1.95}


def test_epochs_are_steps_where_the_examples_are_known() -> None:
    mnist = presets.load("feddc/mnist")
    assert mnist.run == {"rounds": 300, "steps": 5 * 12, "goal": 15}  # 600 examples in minibatches of 50
    assert presets.load("fedprox/mnist").local_steps == 10 * 7  # 69 in minibatches of 10: the last is not full
    unknown = presets.load("fedprox/synthetic")
    assert (unknown.epochs, unknown.local_steps) == (20, None)
    assert "steps" not in unknown.run


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("pfedme/mnist", "pfedme/mnist-mclr"),
        ("pfedme", "pfedme/synthetic-dnn"),
        ("pfedmee/mnist-mclr", "pfedme/mnist-mclr"),
        ("dito/vehicle", "ditto/vehicle"),
        ("", "edgepfl algorithms --presets"),
    ],
)
def test_an_unknown_preset_is_told_with_those_like_it(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match="there is no preset") as caught:
        presets.load(name)
    assert repr(name) in caught.value.what
    assert hint in caught.value.remedy


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 5, "epochs": 1},
        {"rounds": 0},
        {"batch": 1.5},
        {"rouns": 3},
        {"hyper": {"lr": [1]}},
        {"source": None},
    ],
)
def test_a_preset_that_cannot_be(changes: dict[str, object]) -> None:
    good = {"algorithm": "ditto", "data": "any", "source": "a paper", "hyper": {"lr": 0.1}}
    assert msgspec.convert(good, Preset).batch is None
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**good, **changes}, Preset)


def test_they_load_without_torch_and_without_an_algorithm() -> None:
    code = (
        "import sys\nfrom edgepfl import presets\npresets.load('ditto/vehicle')\n"
        "print(sorted({'torch', 'edgepfl.algorithms'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
