"""All targets, by name."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

import _fuzz_agreement
from _fuzz_oracle import Target

_OTHERS = ("_fuzz_files", "_fuzz_shared")  # which import torch


def targets() -> Mapping[str, Target]:
    """All of them."""
    return {target.name: target for target in (*_fuzz_agreement.targets(), *_others())}


def target_of(name: str) -> Target | None:
    """One of them, without the import of what it does not need."""
    found = {target.name: target for target in _fuzz_agreement.targets()}.get(name)
    return found or {target.name: target for target in _others()}.get(name)


def _others() -> tuple[Target, ...]:
    return tuple(target for room in _OTHERS for target in importlib.import_module(room).targets())
