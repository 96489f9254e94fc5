"""The plugin's frame in projects of somebody else: what it costs, refuses, prints and leaves alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from simulators.pytest_plugin.options import patience_of, seed_of

LIGHT = {
    "simulators",
    "simulators.pytest_plugin",
    "simulators.pytest_plugin.fixtures",
    "simulators.pytest_plugin.hooks",
    "simulators.pytest_plugin.options",
    "simulators.pytest_plugin.witness",
}
"""What a project that does not use the plugin pays for."""
OURS = ("coordinator", "device_agent", "edgepfl", "exporters", "simulators")
HEAVY = {"torch", "onnxruntime", "onnx", "msgspec", "paho"}


def project(folder: Path, test: str) -> Path:
    """A project with one file of tests and no settings."""
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\nfilterwarnings = error\n")
    (folder / "test_it.py").write_text(test)
    return folder


def run(folder: Path, *words: str, status: int, found_by_itself: bool = False) -> str:
    """What pytest prints there; it has our plugin and pytest-xdist only, to be quick."""
    if not found_by_itself:
        words = ("-p", "edgepfl", "-p", "xdist", *words)
    alone = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "EDGEPFL"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words],
        cwd=folder,
        env=alone if found_by_itself else {**alone, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_project_that_does_not_use_it_pays_for_its_own_few_modules_only(tmp_path: Path) -> None:
    probe = (
        "import json, pathlib, sys\nbefore = sorted(sys.modules)\n"
        "def test_nothing():\n"
        "    pathlib.Path('modules.json').write_text(json.dumps([before, sorted(sys.modules)]))\n"
    )
    run(project(tmp_path, probe), status=0, found_by_itself=True)
    for modules in json.loads((tmp_path / "modules.json").read_text()):
        assert {name for name in modules if name.partition(".")[0] in OURS} == LIGHT
        assert HEAVY.isdisjoint(modules)


def test_fixtures_of_the_same_names_in_a_project_are_the_project_s(tmp_path: Path) -> None:
    own = (
        "import pytest\n@pytest.fixture(params=[1, 2])\ndef broker(request): return request.param\n"
        "@pytest.fixture\ndef fleet(): return 'trucks'\n"
        "def test_mine(broker, fleet): assert broker in (1, 2) and fleet == 'trucks'\n"
    )
    assert "2 passed" in run(project(tmp_path, own), status=0)


def test_a_wrong_option_is_a_usage_error_that_says_what_would_do(tmp_path: Path) -> None:
    text = run(project(tmp_path, ""), "--edgepfl-broker=rabbit", status=pytest.ExitCode.USAGE_ERROR)
    assert "ERROR: --edgepfl-broker rabbit: there is no such broker. Give auto, mosquitto, iotcore or mqtt://" in text


@pytest.mark.parametrize(
    ("option", "value"), [("seed", "-1"), ("seed", "x"), ("seed", str(1 << 63)), ("patience", "0")]
)
def test_so_is_a_wrong_number(option: str, value: str) -> None:
    with pytest.raises(pytest.UsageError, match=f"^--edgepfl-{option} {value}: give "):
        (seed_of if option == "seed" else patience_of)(value)


MARKED = """
import pytest

@pytest.mark.fleet(agnets=3)
def test_misspelt(fleet): pass

@pytest.mark.faults("kill", devices=1)
def test_forgotten(): pass

@pytest.mark.scenario("broker-restrat")
def test_scenario(fleet): pass

@pytest.mark.board(profile="pi-44")
def test_board(board): pass
"""


def test_a_wrong_marker_is_told_in_a_line_without_a_traceback(tmp_path: Path) -> None:
    text = run(project(tmp_path, MARKED), status=1)
    for told in (
        "@pytest.mark.fleet(agnets=3): there is no argument 'agnets'. Did you mean 'agents'? It takes: seed",
        "@pytest.mark.faults does nothing here: the test does not ask for the fixture 'fleet'",
        "there is no scenario 'broker-restrat'. Did you mean 'broker-restart'",
        "'pi-44'",
    ):
        assert told in text, text
    assert "pytest_plugin/" not in text
    assert "4 errors" in text


def test_fixtures_are_documented_where_people_look(tmp_path: Path) -> None:
    text = run(project(tmp_path, ""), "--fixtures", status=0)
    for fixture in ("broker [session scope] --", "fleet --", "make_fleet [session", "coordinator --", "board --"):
        assert fixture in text


WITNESSED = """
import os
import pathlib

import pytest
from simulators.pytest_plugin.options import Options
from simulators.pytest_plugin.witness import Witness

class Told(Witness):
    def figures(self):
        return {"lost": 3, "seed": 7}

    def account(self, test):
        return f"the story of device-003: <power cut>, as {test} saw it"

@pytest.fixture
def told(): return Told()

@pytest.fixture
def twin(): return Told()

class Broken(Told):
    def account(self, test):
        raise RuntimeError("its thread is gone")

@pytest.fixture
def broken(): return Broken()

def test_broken(broken): assert 3 == 4

def test_good(told): pass

def test_bad(told, twin): assert 1 == 2

def test_short(told): pytest.fail("no", pytrace=False)

@pytest.fixture(autouse=True, scope="session")
def seed(pytestconfig):
    pathlib.Path(f"{os.getpid()}.seed").write_text(str(Options.of(pytestconfig).seed))
"""


def test_a_failure_tells_its_story_on_the_terminal_and_in_junit_xml_over_workers_of_one_seed(tmp_path: Path) -> None:
    words = ("--junitxml=o.xml", "-n", "2", "--edgepfl-seed=random")
    text = run(project(tmp_path, WITNESSED), *words, status=1)
    for name in ("test_bad", "test_short"):
        assert text.count(f"the story of device-003: <power cut>, as test_it.py::{name} saw it") == 1
    assert "assert 3 == 4" in text
    assert "cannot be told of: its thread is gone" in text
    cases = {case.get("name") or "": case for case in ET.parse(tmp_path / "o.xml").iter("testcase")}  # noqa: S314  ours
    for name in ("test_good", "test_bad", "test_short"):
        properties = {each.get("name"): each.get("value") for each in cases[name].iter("property")}
        assert properties == {"edgepfl.lost": "3", "edgepfl.seed": "7"}, name
        failure = cases[name].find("failure")
        assert (failure is None) == (name == "test_good")
        assert failure is None or "the story of device-003: <power cut>" in (failure.text or "")
    # Each worker is given tests at once, so each has begun a session, however slow one of them is.
    first, second = (each.read_text() for each in tmp_path.glob("*.seed"))
    assert first == second
    assert f"edgepfl: seed {first}" in text
