"""A hub's settings: what they may say, and what cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.hub.cli import main
from coordinator.hub.config import NestedSettings, load
from edgepfl.errors import ConfigError

PARENT = '[parent]\nfleet = "farm"\ndevice = "shed"\n[parent.broker]\nurl = "mqtts://far:8883"\nca = "ca.pem"\n'
OWN = '[broker]\nurl = "mqtt://localhost:1883"\n'
GOOD = f'fleet = "shed"\n{OWN}{PARENT}'


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "hub.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_hub_has_two_brokers_and_paths_beside_its_file(tmp_path: Path) -> None:
    config = load(written(tmp_path, GOOD))
    assert config.parent.broker.ca == str(tmp_path / "ca.pem")
    assert (config.state, config.relay, config.rounds) == (str(tmp_path / "hub-state"), False, 0)
    assert (config.rounds_as.goal, config.rounds_as.minimum, config.rounds_as.gather) == (500, 1, 5.0)


def test_a_hub_may_train_a_model_of_its_own(tmp_path: Path) -> None:
    text = f"rounds = 3\nminimum = 4\n{GOOD}[nested]\nmu = 0.02\nlr = 5\nstep = 0.1\n"
    config = load(written(tmp_path, text))
    assert (config.rounds, config.rounds_as.minimum, config.nested) == (3, 4, NestedSettings(mu=0.02, lr=5.0, step=0.1))


BAD = {
    "no parent": (f'fleet = "shed"\n{OWN}', "is missing"),
    "no name there": (GOOD.replace('device = "shed"\n', ""), "cannot be a name"),
    "an unknown key of the parent": (GOOD.replace("device =", "devise ="), "no such setting"),
    "no broker of the parent's": (GOOD.replace("mqtts://far", "http://far"), "is no broker"),
    "its own parent": (
        GOOD.replace("shed", "farm").replace('mqtts://far:8883"\nca = "ca.pem"', 'mqtt://localhost:1883"'),
        "its own parent",
    ),
    "more than one report can name": (f"goal = 501\n{GOOD}", "501 is not a whole number from 1 to 500"),
    "a minimum above the goal": (f"goal = 2\nminimum = 3\n{GOOD}", "is above goal"),
    "nested without rounds": (f"{GOOD}[nested]\nmu = 1\nlr = 0.1\nstep = 1\n", "nested needs rounds"),
    "a hub that no device can be": (f'hubs = {{ "North Shed" = 3 }}\n{GOOD}', "hubs: 'North Shed' cannot be a name"),
    "a relay with rounds": (f"relay = true\nrounds = 2\n{GOOD}", "a relay has neither"),
}


@pytest.mark.parametrize(("text", "why"), BAD.values(), ids=BAD.keys())
def test_a_bad_file(text: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, text))
    assert why in str(caught.value)


def test_a_relay_needs_no_name(tmp_path: Path) -> None:
    assert load(written(tmp_path, "relay = true\n" + GOOD.replace('device = "shed"\n', ""))).relay


def test_the_command_says_what_its_file_may_hold(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "relay = true" in capsys.readouterr().out.replace("\n", " ")
