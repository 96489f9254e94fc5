"""The CI examples of docs/testing.md: they parse, and what they call exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from edgepfl.__main__ import SUMMARIES
from simulators.emulation.scenario_file import names
from simulators.pytest_plugin import markers, options

yaml = pytest.importorskip("yaml", reason="pip install pyyaml")  # executorch brings it along

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "testing.md").read_text(encoding="utf-8")
OWN = re.compile(r"--edgepfl-[a-z]+")
KNOWN_COMMANDS = {"apt-get", "sudo", "pip", "pytest", "systemctl"}


def lines(name: str) -> list[str]:
    """The commands of an example, one a line."""
    found: Any = yaml.safe_load((DOCS / "examples" / name).read_text(encoding="utf-8"))
    if "jobs" in found:
        steps = found["jobs"]["fleet"]["steps"]
        commands = [step["run"] for step in steps if "run" in step]
    else:
        commands = [*found["fleet"]["before_script"], *found["fleet"]["script"]]
    return [part for command in commands for part in command.split(" && ")]


@pytest.fixture
def declared() -> set[str]:
    """The options that the plugin declares."""
    parser = pytest.Parser(_ispytest=True)
    options.pytest_addoption(parser)
    return {name for option in parser.getgroup("edgepfl").options for name in option.names()}


@pytest.mark.parametrize("name", ["github-actions.yml", "gitlab-ci.yml"])
def test_an_example_parses_and_calls_what_exists(name: str, declared: set[str]) -> None:
    calls = [shlex.split(line) for line in lines(name)]
    assert {words[0] for words in calls} <= KNOWN_COMMANDS
    assert any("edgepfl[sim]" in words for words in calls)
    (tests,) = (words for words in calls if words[0] == "pytest")
    ours = {word.partition("=")[0] for word in tests if word.startswith("--edgepfl-")}
    assert ours
    assert ours <= declared
    given = dict(word.split("=", 1) for word in tests[1:])
    assert given["--edgepfl-broker"] in options.KINDS
    assert options.patience_of(given["--edgepfl-patience"]) < 15 * 60  # what the job has
    text = (DOCS / "examples" / name).read_text(encoding="utf-8")
    for output in (given["--junitxml"], given["--edgepfl-artifacts"]):
        assert len(re.findall(rf"\b{re.escape(output)}\b", text)) > 1, f"{output} is no artifact of the job"


def test_the_page_tells_every_option_and_no_other(declared: set[str]) -> None:
    assert set(OWN.findall(TEXT)) == declared


def test_the_page_tells_every_kind_of_fault_and_marker() -> None:
    kinds = TEXT.partition("The kinds are those of scenario files:")[2].partition("\n\n")[0]
    assert [kind for kind in markers.KINDS if f"`{kind}`" not in kinds] == []
    for marker in options.MARKERS:
        assert f"**`{marker.partition('(')[0]}(" in TEXT


def test_what_the_page_names_exists() -> None:
    for scenario in re.findall(r'scenario\("([a-z-]+)"\)', TEXT):
        assert scenario in names()
    for command in re.findall(r"`edgepfl ([a-z-]+)", TEXT):
        assert command in SUMMARIES
    table = TEXT.partition("All are optional.")[2].partition("Every device takes part")[0]
    told = {
        name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1] if "|" in row else "")
    }
    assert told - {"NAME"} <= set(markers.ARGUMENTS)
    for page in re.findall(r"\]\(([\w/.-]+)\)", TEXT):
        assert (DOCS / page).exists(), page
