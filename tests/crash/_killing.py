"""The rows of the kill matrix that a session's tests have seen: a plugin of tests/conftest.py, for all modules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from _matrix import WHERE, Row, table, write


@pytest.fixture(scope="session")
def matrix() -> Iterator[list[Row]]:
    """Takes rows; at the end they are printed, and written where ``EDGEPFL_KILL_TABLE`` says."""
    rows: list[Row] = []
    yield rows
    if rows:
        print(f"\n{table(rows)}")  # noqa: T201  what a person wants to see
    if WHERE and rows:
        write(rows, Path(WHERE))
