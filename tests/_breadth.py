"""How much of a matrix of cases a session runs.

Unless it is told otherwise, each row and each column at least once; with ``EDGEPFL_MATRIX=full`` (``make matrix``) all.
So do the promises in full (``make soak``).
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from typing import TypeVar

Row = TypeVar("Row")
Column = TypeVar("Column")

FULL = os.environ.get("EDGEPFL_MATRIX") == "full" or os.environ.get("EDGEPFL_SOAK") == "1"


def crossed(rows: Sequence[Row], columns: Sequence[Column], *, full: bool = FULL) -> list[tuple[Row, Column]]:
    """Every row with every column, or each row with the column whose turn it is.

    >>> crossed("abc", "xy", full=False)
    [('a', 'x'), ('b', 'y'), ('c', 'x')]
    """
    if full:
        return [(row, column) for row in rows for column in columns]
    return [(rows[at % len(rows)], columns[at % len(columns)]) for at in range(max(len(rows), len(columns)))]


def chosen(name: str, columns: Sequence[Column]) -> Column:
    """One of the columns, the same in every session: over many names each of them about as often."""
    return columns[zlib.crc32(name.encode()) % len(columns)]
