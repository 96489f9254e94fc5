"""SECURITY.md names a test for each promise, and every file that it names is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "SECURITY.md").read_text("utf-8")


def rows() -> list[list[str]]:
    """The table of threats, without its head."""
    table = PAGE.partition("## Threats")[2].partition("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_threat_has_a_promise_and_a_test_of_it() -> None:
    assert len(rows()) > 10
    for who, threat, promise, means, tests in rows():
        assert all((who, threat, promise, means)), threat
        assert re.search(r"`tests/[a-z0-9_/]+\.py`", tests), threat


def test_every_file_that_is_named_is_there() -> None:
    named = {*re.findall(r"`((?:tests|docs)/[^`]+)`", PAGE), *re.findall(r"\]\((?!https?:)([^)#]+)", PAGE)}
    assert len(named) > 15
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
