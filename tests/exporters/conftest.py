"""Bundles of the tiny model, each built once."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
from _models import tiny_cnn

from edgepfl import algorithms
from edgepfl.bundle import Bundle
from exporters.build import build


@pytest.fixture(scope="session")
def bundle_of() -> Callable[[str], Bundle]:
    """Algorithm to its bundle."""
    return functools.cache(lambda name: build(algorithms.build(name, {}), tiny_cnn()))
