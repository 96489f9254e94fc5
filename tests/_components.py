"""What tests need besides Python packages."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def absent(component: str, remedy: str) -> NoReturn:
    """Skip on a user's machine, saying how to get it; in CI a component that is absent is a failure."""
    message = f"{component} is not installed; get it with: {remedy}"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)
