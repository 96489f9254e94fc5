"""``edgepfl run start --preset``: what the run is to do."""

from __future__ import annotations

import pytest

from coordinator.cli import _run_config, _run_parser
from coordinator.config import RunConfig
from edgepfl import presets
from edgepfl.errors import ConfigError


def config(*words: str) -> RunConfig:
    return _run_config(_run_parser().parse_args(["start", "--config=c", "--bundle=b", *words]))


def test_a_preset_gives_rounds_steps_devices_decay_and_hyperparameters() -> None:
    found = config("--preset", "feddc/mnist")
    assert (found.rounds, found.steps, found.goal) == (300, 60, 15)
    assert found.decay == {"lr": 0.998}
    assert found.hyper == {"lr": "0.1", "alpha": "0.1", "clip": "10.0"}
    assert (found.minimum, found.tune_steps) == (RunConfig().minimum, RunConfig().tune_steps)


def test_what_is_given_beside_a_preset_wins() -> None:
    words = ("--rounds=9", "--steps=3", "--goal=2", "--decay", "lr=0.5", "--decay", "alpha=0.9", "--set", "clip=5")
    found = config("--preset", "feddc/mnist", *words)
    assert (found.rounds, found.steps, found.goal) == (9, 3, 2)
    assert found.decay == {"lr": 0.5, "alpha": 0.9}
    assert found.hyper == {"lr": "0.1", "alpha": "0.1", "clip": "5"}


@pytest.mark.parametrize("name", presets.every())
def test_every_preset_makes_a_run_and_asks_for_steps_that_nobody_knows(name: str) -> None:
    preset = presets.every()[name]
    if preset.epochs is not None and preset.local_steps is None:
        with pytest.raises(ConfigError, match=f"{name} has {preset.epochs} epochs a round.*Give --steps"):
            config("--preset", name)
    else:
        assert config("--preset", name).steps == preset.run.get("steps", RunConfig().steps)
    found = config("--preset", name, "--steps=4")
    assert found.steps == 4
    assert found.rounds == (preset.rounds or RunConfig().rounds)
    assert found.hyper == preset.settings


def test_without_a_preset_nothing_changes_and_an_unknown_one_is_told() -> None:
    assert config() == RunConfig()
    with pytest.raises(ConfigError, match=r"there is no preset 'feddc'.*feddc/cifar10"):
        config("--preset", "feddc")


def test_a_factor_that_is_no_number_is_told() -> None:
    assert config("--decay", "lr=0.5").decay == {"lr": 0.5}
    with pytest.raises(ConfigError, match=r"--decay: lr = 'x' is no number\. Give a factor, such as lr=0\.998"):
        config("--decay", "lr=x")
