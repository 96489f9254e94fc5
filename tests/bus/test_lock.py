"""A lock between processes: one holder, and none that outlives its process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edgepfl.bus.lock import ProcessLock
from edgepfl.errors import StoreError

HOLDER = """
import sys
from pathlib import Path
from edgepfl.bus.lock import ProcessLock
lock = ProcessLock(Path(sys.argv[1]), subject=Path("state"), holder="agent")
print("held", flush=True)
sys.stdin.read()
"""


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    first = ProcessLock(tmp_path / "lock", subject=tmp_path, holder="coordinator")
    with pytest.raises(StoreError, match="another coordinator is using it") as caught:
        ProcessLock(tmp_path / "lock", subject=tmp_path, holder="coordinator")
    assert caught.value.where == str(tmp_path)
    first.close()
    first.close()
    ProcessLock(tmp_path / "lock", subject=tmp_path, holder="coordinator").close()


def test_it_ends_with_its_process_however_that_ends(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StoreError, match="another agent"):
            ProcessLock(path, subject=tmp_path, holder="agent")
        holder.kill()
        holder.wait()
    ProcessLock(path, subject=tmp_path, holder="agent").close()
    assert path.exists()


def test_where_no_file_can_be_there_is_no_lock(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="the store failed"):
        ProcessLock(tmp_path / "nowhere" / "lock", subject=tmp_path, holder="agent")
    assert not (tmp_path / "nowhere").exists()
