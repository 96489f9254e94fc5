"""Short forms for every change, full forms for ``make soak``; seeds that a failure tells; results for the docs.

Three environment variables: EDGEPFL_SOAK=1 asks for the full forms, EDGEPFL_SEED=N for other draws (a failed test
prints the N that replays it), EDGEPFL_PROMISES_JSON=FILE for a line of JSON with each test's measured results.
"""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import TypeVar

Size = TypeVar("Size")

FULL = os.environ.get("EDGEPFL_SOAK") == "1"
"""Whether the full forms are asked for."""
SEED = int(os.environ.get("EDGEPFL_SEED", "0"))
"""Added to every seed."""
RESULTS = "EDGEPFL_PROMISES_JSON"


def scaled(short: Size, full: Size) -> Size:
    """How much of something: what every change is tested with, or what ``make soak`` takes."""
    return full if FULL else short


def seed_of(test: str, number: int = 0) -> int:
    """The seed of a test, printed: pytest shows it with a failure."""
    seed = SEED + number
    full = " EDGEPFL_SOAK=1" if FULL else ""
    print(f"{test}: seed {seed}; replay with EDGEPFL_SEED={SEED}{full}")  # noqa: T201  pytest shows it with a failure
    return seed


def record(promise: int, test: str, **measured: float | str) -> None:
    """Print what a test measured, and add it to the file that EDGEPFL_PROMISES_JSON names."""
    line = {"promise": promise, "test": test, "form": "full" if FULL else "short", **measured}
    print(json.dumps(line))  # noqa: T201  likewise
    if path := os.environ.get(RESULTS):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps({**line, "cores": os.cpu_count() or 0, "machine": platform.machine()}) + "\n")
