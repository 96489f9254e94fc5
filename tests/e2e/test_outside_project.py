"""The plugin used by a project of somebody else, from our wheel, in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = Path(__file__).parent / "outside_project"
FAILING = "test_that_is_meant_to_fail"
ORIGINS = """
import importlib.metadata as metadata, json, coordinator, device_agent, edgepfl, exporters, simulators, torch
rooms = [coordinator, device_agent, edgepfl, exporters, simulators]
print(json.dumps({
    "rooms": [room.__file__ for room in rooms],
    "torch": torch.__file__,
    "plugins": [point.value for point in metadata.entry_points(group="pytest11") if point.name == "edgepfl"],
}))
"""


def called(*words: str | Path, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    alone = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON", "EDGEPFL"))}
    return subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={**alone, "OMP_NUM_THREADS": "1", **more},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


@dataclass(frozen=True)
class Outside:
    """The project, its environment, and what its tests came to."""

    python: Path
    site: Path
    folder: Path
    output: str
    cases: dict[str, ET.Element]


def installed(folder: Path) -> tuple[Path, Path]:
    """An environment with our wheel in it, and what we depend on; its interpreter and its packages.

    Dependencies come from the environment of this test by a path file.  What is editable there is found by such a file
    too, and those of a folder that a path file names are not read: so our source tree is not in sight.
    """
    wheels = folder / "wheels"
    words = ("-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--wheel-dir", wheels, ROOT)
    done = called(sys.executable, *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    (wheel,) = wheels.glob("edgepfl-*.whl")
    home = folder / "environment"
    venv.create(home, symlinks=True)
    (site,) = home.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
    done = called(
        sys.executable,
        "-m",
        "pip",
        "--python",
        home,
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        wheel,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return home / "bin" / "python", site


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Outside:
    folder = tmp_path_factory.mktemp("outside")
    python, site = installed(folder)
    project = folder / "project"
    copytree(PROJECT, project)
    words = ("--junitxml=results.xml", "--edgepfl-artifacts=reports", "--edgepfl-seed=5", "-p", "no:cacheprovider")
    plugins = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # others' take seconds to import; ours is named instead
    done = called(python, "-m", "pytest", "-p", "edgepfl", *words, cwd=project, **plugins)
    assert (project / "results.xml").exists(), done.stdout + done.stderr
    found = ET.parse(project / "results.xml")  # noqa: S314  our own
    cases = {case.get("name") or "": case for case in found.iter("testcase")}
    return Outside(python, site, project, done.stdout + done.stderr, cases)


def test_all_that_runs_there_is_of_the_wheel_and_not_of_the_source_tree(outside: Outside) -> None:
    done = called(outside.python, "-c", ORIGINS, cwd=outside.folder)
    assert done.returncode == 0, done.stderr
    origins = json.loads(done.stdout)
    assert all(Path(each).is_relative_to(outside.site) for each in origins["rooms"]), origins
    assert not Path(origins["torch"]).is_relative_to(outside.site)
    assert origins["plugins"] == ["simulators.pytest_plugin"]
    assert str(ROOT) not in outside.output


def test_its_tests_pass_but_for_the_one_that_is_meant_to_fail(outside: Outside) -> None:
    failed = {name for name, case in outside.cases.items() if case.find("failure") is not None}
    errors = {name for name, case in outside.cases.items() if case.find("error") is not None}
    assert (failed, errors) == ({FAILING}, set()), outside.output
    assert len(outside.cases) == 4


def test_the_failure_tells_the_device_s_story_and_the_seed_in_both_places(outside: Outside) -> None:
    failure = outside.cases[FAILING].find("failure")
    assert failure is not None
    for text in (failure.text or "", outside.output):
        story = text.partition("the story of device-003:")[2].partition("the story of")[0]
        lines = [line.split(" s  ", 1)[1] for line in story.splitlines() if " s  " in line]
        cut = next(number for number, line in enumerate(lines) if line.startswith("power cut"))
        assert any(line.startswith("connected") for line in lines[:cut]), story
        assert any(line.startswith("connected") for line in lines[cut:]), story
        assert f"pytest 'tests/test_federation.py::{FAILING}' --edgepfl-seed 5" in text


def test_figures_are_properties_and_reports_are_files(outside: Outside) -> None:
    case = outside.cases["test_every_wearer_is_served_well"]
    found = {each.get("name") or "": each.get("value") or "" for each in case.iter("property")}
    assert found["edgepfl.seed"] == "5"
    assert (found["edgepfl.agents"], found["edgepfl.lost"]) == ("5", "0")
    assert float(found["edgepfl.seconds_per_round"]) > 0
    assert int(found["edgepfl.bytes_per_round"]) > 5 * 1000  # two ways of 268 parameters, and messages
    report = json.loads(Path(found["edgepfl.report"]).read_text(encoding="utf-8"))
    assert Path(found["edgepfl.report"]).is_relative_to(outside.folder / "reports")
    assert (report["agents"], report["seed"], report["status"]) == (5, 5, "done")
    page = Path(found["edgepfl.report"]).with_name("report.html").read_text(encoding="utf-8")
    assert "device-003" in page
    band = outside.cases["test_a_band_survives_power_cuts_and_the_coordinator_too"]
    names = {each.get("name") for each in band.iter("property")}
    assert {"edgepfl.board_memory_mib", "edgepfl.coordinator_log"} <= names
