"""The library that runs ExecuTorch programs, built once for all tests."""

from __future__ import annotations

import atexit
import platform
import shutil
import tempfile
from functools import cache
from pathlib import Path

from _components import absent

from device_agent.build_runner import build
from device_agent.runners import toolchain, wheel
from edgepfl.errors import ConfigError


@cache
def library_folder() -> Path:
    """The native library, built once for all tests."""
    folder = Path(tempfile.mkdtemp(prefix="edgepfl-runner-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        tools = toolchain.toolchain(platform.machine())
        package = wheel.examine(wheel.installed(tools.target), tools.target)
    except ConfigError as error:
        absent(error.what, error.remedy)
    build(tools, package, folder / "runner")
    return folder / "runner"
