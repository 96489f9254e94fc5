from __future__ import annotations

import subprocess
import sys

import pytest

from edgepfl.bus.heap import give_back_large_blocks

_SCRIPT = """
import resource, sys
import numpy as np
from edgepfl.bus.heap import give_back_large_blocks, keep_freed_blocks
assert (keep_freed_blocks if sys.argv[1] == "kept" else give_back_large_blocks)()
def fault():
    kept = []
    for _ in range(8):
        kept.append(np.ones(1 << 17))  # 1 MiB each, freed together
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
before = [fault() for _ in range(3)][-1]
print([fault() for _ in range(20)][-1] - before)
"""


def _faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", _SCRIPT, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not give_back_large_blocks(), reason="only glibc can")
def test_freed_memory_that_stays_with_the_process_costs_no_page_faults_when_it_is_used_again() -> None:
    assert _faults("kept") < 1000
    assert _faults("given back") > 10_000  # else the loop above shows nothing
