"""Child processes end with whoever started them, whatever ended that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from simulators.processes import Command

PATIENCE = 30.0  # seconds; far more than anything here takes
_PARENT = """
import sys
from pathlib import Path
from simulators.processes import Command
with Command(["faults", "--broker", "mqtt://127.0.0.1:1", "--listen", "0"], Path(sys.argv[1])) as command:
    print(command.process, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_process_ends_with_whoever_started_it(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", _PARENT, str(tmp_path / "log")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        os.kill(parent.pid, number)
    gone, _ = psutil.wait_procs([child], timeout=PATIENCE)
    assert gone == [child]


def test_what_ended_has_no_guard_left(tmp_path: Path) -> None:
    with Command(["--version"], tmp_path / "log") as command:
        assert command._process is not None
        assert command._guard is not None
        guard = psutil.Process(command._guard.pid)
        command._process.wait()
        command.start()
        assert not guard.is_running()
        guard = psutil.Process(command._guard.pid)
    assert not guard.is_running()
