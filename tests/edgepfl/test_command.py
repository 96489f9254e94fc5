"""The ``edgepfl`` command, in processes of its own; a distribution with probe commands stands beside edgepfl's."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import edgepfl
from edgepfl.__main__ import CLOSED, GROUP, OURS, SUMMARIES

PROBE = """
from edgepfl.errors import ConfigError

def works(words):
    print("got", *words)
    return 5

def refuses(words):
    raise ConfigError("no such fleet", where="a.toml", remedy="Name one")

def stops(words):
    raise KeyboardInterrupt

def breaks(words):
    raise ZeroDivisionError("a fault of ours")
"""
ENTRIES = """[edgepfl.commands]
probe = edgepfl_probe:works
probe-refuses = edgepfl_probe:refuses
probe-stops = edgepfl_probe:stops
probe-breaks = edgepfl_probe:breaks
probe-needs = edgepfl_probe_needs:main
probe-broken = edgepfl_probe_broken:main
"""


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds an installed distribution with commands of its own."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "edgepfl_probe.py").write_text(PROBE)
    (folder / "edgepfl_probe_needs.py").write_text("import a_package_nobody_has.inside\n")
    (folder / "edgepfl_probe_broken.py").write_text("import edgepfl.no_such_module\n")
    metadata = folder / "edgepfl_probe-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: edgepfl-probe\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRIES)
    return folder


def run(*words: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(path), environment.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    command = [sys.executable, "-m", "edgepfl", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",), ("help",)], ids=" ".join)
def test_help_lists_the_commands(words: tuple[str, ...]) -> None:
    done = run(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: edgepfl COMMAND")
    for command in ("agent", "coordinator", "demo", "export", "run"):
        assert any(line.split()[:1] == [command] and len(line.split()) > 3 for line in done.stdout.splitlines())


def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"edgepfl {edgepfl.__version__}\n")


def test_an_unknown_command_is_named_and_the_others_listed() -> None:
    done = run("frobnicate")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("edgepfl: there is no command 'frobnicate'\n")
    assert "coordinator" in done.stderr


def test_a_command_gets_its_words_and_gives_its_status(beside: Path) -> None:
    done = run("probe", "--fleet", "a b", path=beside)
    assert (done.returncode, done.stdout, done.stderr) == (5, "got --fleet a b\n", "")
    assert "probe-needs" in run(path=beside).stdout


@pytest.mark.parametrize(
    ("command", "status", "message"),
    [
        ("probe-refuses", 2, "edgepfl probe-refuses: a.toml: no such fleet. Name one\n"),
        ("probe-stops", 130, "edgepfl probe-stops: stopped\n"),
        (
            "probe-needs",
            2,
            (
                "edgepfl probe-needs: needs the package 'a_package_nobody_has', which is not installed. "
                "Install it with: pip install 'edgepfl[sim]'\n"
            ),
        ),
    ],
)
def test_what_the_user_can_mend_is_one_line_without_a_traceback(
    beside: Path, command: str, status: int, message: str
) -> None:
    done = run(command, path=beside)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", message)


@pytest.mark.parametrize(
    ("command", "error"), [("probe-breaks", "ZeroDivisionError"), ("probe-broken", "ModuleNotFoundError")]
)
def test_our_own_faults_show_a_traceback(beside: Path, command: str, error: str) -> None:
    done = run(command, path=beside)
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert error in done.stderr


def test_the_agreement_imports_neither_torch_nor_a_command() -> None:
    modules = ["__main__", "bundle", "bus", "codec", "errors", "plan", "seeds", "topics", "tree", "wire"]
    code = (
        "import sys\n"
        f"import {', '.join(f'edgepfl.{name}' for name in modules)}\n"
        "print(sorted({'torch', 'onnx', 'onnxruntime', 'coordinator', 'device_agent', 'exporters', 'simulators',"
        " 'edgepfl.algorithms'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "[]\n"


def test_a_reader_who_has_seen_enough_is_no_error() -> None:
    words = [sys.executable, "-u", "-m", "edgepfl", "algorithms"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == CLOSED


def test_every_command_of_ours_has_a_line_in_the_help() -> None:
    ours = {point.name for point in entry_points(group=GROUP) if point.module.partition(".")[0] in OURS}
    assert ours == set(SUMMARIES)
