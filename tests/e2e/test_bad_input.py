"""What a person may get wrong: exit status 2, one line that says what and where, and no traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from device_agent.store import Store
from edgepfl.__main__ import main

AGENT = """
device = "pi-1"
fleet = "home"
[broker]
url = "mqtt://127.0.0.1:1"
[data]
source = "data.csv"
"""
COORDINATOR = """
fleet = "home"
[broker]
url = "mqtt://127.0.0.1:1"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Good settings and data, to be spoiled."""
    monkeypatch.chdir(tmp_path)
    Path("agent.toml").write_text(AGENT, encoding="utf-8")
    Path("coordinator.toml").write_text(COORDINATOR, encoding="utf-8")
    Path("data.csv").write_text("1,2,0\n3,4,1\n5,6,0\n7,8,1\n9,9,0\n", encoding="utf-8")
    return tmp_path


def spoil(file: str, old: str, new: str) -> Callable[[], None]:
    def change() -> None:
        text = Path(file).read_text(encoding="utf-8")
        assert old in text
        Path(file).write_text(text.replace(old, new), encoding="utf-8")

    return change


def nothing() -> None:
    pass


def empty_state() -> None:
    Path("coordinator-state").mkdir()


RUN = ("--config", "coordinator.toml")
START = ("run", "start", *RUN, "--bundle", "x.bundle")
CASES: dict[str, tuple[tuple[str, ...], Callable[[], None], tuple[str, ...]]] = {
    "no settings": (("agent", "--config", "absent.toml"), nothing, ("absent.toml", "cannot be read")),
    "no coordinator settings": (("coordinator", "--config", "absent.toml"), nothing, ("absent.toml", "cannot be read")),
    "settings that are no TOML": (("agent", "--config", "data.csv"), nothing, ("data.csv", "not TOML")),
    "an unknown setting": (
        ("agent", "--config", "agent.toml"),
        spoil("agent.toml", "url =", "ulr ="),
        ("agent.toml, broker.ulr", "no such setting", "Did you mean 'url'?"),
    ),
    "an unknown coordinator setting": (
        ("coordinator", *RUN),
        spoil("coordinator.toml", "fleet =", "fleets = 3\nfleet ="),
        ("coordinator.toml, fleets", "Did you mean 'fleet'?"),
    ),
    "an impossible device name": (
        ("agent", "--config", "agent.toml"),
        spoil("agent.toml", '"pi-1"', '"Pi 1"'),
        ("agent.toml, device", "'Pi 1' cannot be a name"),
    ),
    "an impossible broker": (
        ("agent", "--config", "agent.toml"),
        spoil("agent.toml", "mqtt://", "http://"),
        ("agent.toml, broker.url", "is no broker"),
    ),
    "no data": (
        ("agent", "--config", "agent.toml"),
        spoil("agent.toml", "data.csv", "absent.csv"),
        ("absent.csv", "cannot be read"),
    ),
    "no plug-in": (
        ("agent", "--config", "agent.toml"),
        spoil("agent.toml", "data.csv", "absent_module:load"),
        ("absent_module:load", "cannot be imported"),
    ),
    "data with a hole": (
        ("agent", "--config", "agent.toml"),
        spoil("data.csv", "3,4,1", "3,,1"),
        ("data.csv", "cannot be read"),
    ),
    "a state directory that is a file": (
        ("agent", "--config", "agent.toml"),
        spoil("agent.toml", '"home"', '"home"\nstate = "data.csv"'),
        ("data.csv",),
    ),
    "no coordinator's state": (("run", "status", *RUN), nothing, ("coordinator-state", "no coordinator")),
    "no coordinator": (
        ("run", "status", *RUN),
        empty_state,
        ("no coordinator answers", "edgepfl coordinator --config"),
    ),
    "no coordinator to start a run": (START, empty_state, ("no coordinator answers",)),
    "a setting that is none": ((*START, "--set", "lr"), empty_state, ("--set", "'lr' is no setting")),
    "rounds that are none": ((*START, "--rounds", "0"), empty_state, ("--rounds: 0 is not a whole number from 1",)),
    "a minimum above the goal": (
        (*START, "--goal", "2", "--minimum", "3"),
        empty_state,
        ("minimum (3) is above goal (2)",),
    ),
}


def refused(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> str:
    """What a command says that must refuse its input."""
    assert main(list(words)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.startswith(f"edgepfl {words[0]}: ")
    return said.err


@pytest.mark.parametrize("case", CASES)
def test_bad_input_gives_status_2_and_one_line(folder: Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    words, change, expected = CASES[case]
    change()
    said = refused(words, capsys)
    assert all(part in said for part in expected), said
    assert folder.exists()


def test_two_agents_with_one_state_directory(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Store(folder / "state" / "store.db"):
        said = refused(("agent", "--config", "agent.toml"), capsys)
    assert "another agent is using it" in said
    assert "a state directory of its own" in said


def test_a_state_directory_of_another_device(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Store(folder / "state" / "store.db") as store:
        store.claim("pi-2")
    assert "another device" in refused(("agent", "--config", "agent.toml"), capsys)


@pytest.mark.parametrize("command", ["agent", "coordinator", "run", "export", "demo"])
def test_unknown_options_are_refused_by_every_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--no-such-option"])
    assert ended.value.code == 2
    assert "usage: edgepfl" in capsys.readouterr().err
