"""Commands that only ask a running coordinator start without torch: seconds of a core, and 190 MB."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["coordinator.cli", "coordinator.hub.cli", "coordinator.asking"])
def test_a_command_is_there_before_torch(module: str) -> None:
    program = f"import sys, {module}; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=120)
    assert found.stdout == "False\n"
