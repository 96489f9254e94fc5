"""The order in which files of tests are given out to workers, so that no core waits for another at the end.

Files whose tests wait for processes and networks are spread over the first part, between those that calculate; the
rest goes by the number of tests, the greatest first.  Workers must take files in this order: --no-loadscope-reorder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

WAITING = (
    "tests/crash/",
    "tests/e2e/",
    "tests/promises/",
    "tests/simulators/emulation/",
    "tests/simulators/test_pytest",
)
"""Where tests wait more than they calculate."""
_FIRST = 0.7  # the part of the session over which their files are spread


def ordered(files: Sequence[str]) -> dict[str, float]:
    """A place for each file.

    Args:
        files: of each test, relative to the repository.
    """
    counts = Counter(files)
    waiting = [file for file in counts if file.startswith(WAITING)]
    others = sorted(counts.keys() - waiting, key=lambda file: (-counts[file], file))
    return {file: _FIRST * place / len(waiting) for place, file in enumerate(waiting)} | {
        file: place / len(others) for place, file in enumerate(others)
    }
