"""Every promise has a test with its mark, and docs/promises.md names each file that has one."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROMISES = range(1, 13)


def marked(source: str) -> set[int]:
    """The promises whose marks decorate a test in this source, or all of its tests."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(attr="promise"), args=[ast.Constant(value=int(number))]):
                found.add(number)
    return found


def files() -> dict[int, set[str]]:
    """Promise to the test files that have its mark."""
    found: dict[int, set[str]] = defaultdict(set)
    for path in (ROOT / "tests").rglob("test_*.py"):
        for number in marked(path.read_text("utf-8")):
            found[number].add(str(path.relative_to(ROOT)))
    return found


def test_every_promise_has_a_test_and_no_other_number_has() -> None:
    assert sorted(files()) == list(PROMISES)


def test_the_page_names_every_file_that_has_a_mark() -> None:
    page = (ROOT / "docs" / "promises.md").read_text("utf-8")
    assert [path for paths in files().values() for path in sorted(paths) if path not in page] == []


def test_the_marks_are_found() -> None:
    assert marked("@pytest.mark.promise(3)\ndef test_a(): pass\npytestmark = pytest.mark.promise(4)") == {3, 4}
    assert marked("@pytest.mark.broker\ndef test_a(): pass") == set()
