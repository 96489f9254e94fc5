"""``edgepfl doctor`` without a bundle: the readings, and what of a policy is unmet."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from device_agent.doctor import main
from edgepfl.__main__ import main as edgepfl
from edgepfl.errors import ConfigError


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """An agent's settings, whose owner says that it is on a battery and pays for its traffic."""
    zeros = np.zeros((5, 2), np.float32)
    np.savez(tmp_path / "data.npz", train_x=zeros, train_y=np.zeros(5, np.int64))
    file = tmp_path / "agent.toml"
    file.write_text(
        'device = "pi-07"\nfleet = "home"\n[broker]\nurl = "mqtt://localhost"\n[data]\nsource = "data.npz"\n'
        "[conditions]\nmetered = true\npowered = false\n"
    )
    return file


def test_it_shows_what_the_machine_measures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("external power")
    assert any(line.startswith("free memory") and line.endswith(" MiB") for line in lines)
    assert not any("unmet" in line for line in lines)


def test_what_is_unmet_is_told_and_is_the_exit_status(settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--config", str(settings), "--require", "charging", "--require", "min_examples=6"]
    assert main([*words, "--require", "min_interval=9"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "unmet: not charging" in lines
    assert "unmet: 5 examples, at least 6 needed" in lines
    assert lines[-1] == "not judged: min_interval, of which the agent alone knows"
    assert main(["--config", str(settings), "--require", "min_examples=5"]) == 0
    assert "this device meets the conditions" in capsys.readouterr().out


def test_a_script_reads_the_same(settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", str(settings), "--json", "--require", "unmetered"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["unmet"]) == (False, {"unmetered": "its connection is metered"})
    assert (found["readings"]["powered"], found["readings"]["metered"]) == (False, True)


def test_a_policy_that_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no condition 'sun'"):
        main(["--require", "sun"])
    assert edgepfl(["doctor", "--conditions", str(tmp_path / "none.toml")]) == 2
