"""What takes long to make, made once for all processes of a test session."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

FOLDER = "EDGEPFL_TESTS_SHARED"
"""The environment variable that names the session's folder; tests/conftest.py sets it."""


def once(name: str, make: Callable[[], bytes]) -> bytes:
    """The bytes of this name: of the process that asked first."""
    place = Path(os.environ[FOLDER]) / hashlib.sha256(name.encode()).hexdigest()
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            fresh = place.with_suffix(".new")
            fresh.write_bytes(make())
            fresh.replace(place)
    return place.read_bytes()
