"""Promise 12: a fleet trains for half an hour among faults, and nothing leaks and nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from _scale import FULL, record, scaled, seed_of

from simulators.broker import BrokerHandle

DEVICES = scaled(50, 1000)
MINUTES = scaled(1 / 5, 30)
WORDS = scaled(("--cuts", "60", "--coordinator-cuts", "0.1", "--kills", "0.1", "--every", "2"), ())


def soak(broker: str, seed: int, picture: Path) -> dict[str, Any]:
    """``edgepfl soak`` in a process; what it says."""
    words = ["--devices", str(DEVICES), "--minutes", str(MINUTES), "--broker", broker, "--seed", str(seed), *WORDS]
    done = subprocess.run(
        [sys.executable, "-m", "simulators.soak", *words, "--json", "--svg", str(picture)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode in {0, 1}, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.broker
@pytest.mark.promise(12)
@pytest.mark.timeout(scaled(200, 2700))
def test_a_fleet_trains_among_faults_and_nothing_leaks_and_nothing_is_lost(
    broker: BrokerHandle, tmp_path: Path
) -> None:
    """In the short form a slope says nothing: there memory is only printed."""
    seed = seed_of("soak", 3)
    broker.stop()  # the soak kills one of its own
    found = soak(broker.name, seed, tmp_path / "soak.svg")
    record(12, "soak", **{name: found[name] for name in ("broker", "devices", "minutes", "rounds", "kills", "cuts")})
    assert (found["reports"], found["behind"]) == (found["expected"], 0), found
    assert found["rounds"] > 0
    assert found["cuts"] > 0
    assert found["control"]["count"] > 0
    assert set(found["memory"]) == {"coordinator", "fleet", "broker"}
    assert (tmp_path / "soak.svg").read_text().startswith("<svg")
    if FULL:
        assert not found["failures"], found
