"""The memory of a process that does nothing but take one contestant's steps.

Run as ``python -m simulators.bench.resident RUNNER MODEL BATCH THREADS BUNDLE``, it tells its own.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from device_agent.footprint import pss
from edgepfl.errors import RunError
from simulators.bench.job import CONTESTANTS, Job

_STEPS = 5
_TIMEOUT = 600.0  # seconds; torch.compile takes its time


def pss_mib(runner: str, job: Job) -> float:
    """The proportional set size, in MiB, of a fresh process after some steps.

    Raises:
        RunError: it failed; the error holds the end of what it said.
    """
    words = [runner, job.model, str(job.batch), str(job.threads), str(job.bundle)]
    done = subprocess.run(  # noqa: S603  our own module
        [sys.executable, "-m", "simulators.bench.resident", *words],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
        check=False,
    )
    if done.returncode:
        tail = " | ".join(done.stderr.strip().splitlines()[-2:])
        raise RunError(f"the process that measures memory failed: {tail}", where=runner)
    return float(done.stdout.split()[-1])


def main(words: list[str]) -> int:
    """Take steps and print the process's proportional set size in MiB."""
    runner, model, batch, threads, bundle = words
    step = CONTESTANTS[runner].step(Job(model, int(batch), int(threads), Path(bundle)))
    for _ in range(_STEPS):
        step()
    found = pss()
    if found is None:
        raise RunError("the kernel does not tell the process's memory", where="/proc/self/smaps_rollup")
    sys.stdout.write(f"{found / 2**20:.1f}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
