"""Fixtures of the tests of FPFC's engines: small slabs and blocks, and a GPU where there is one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="module")
def small_slabs() -> Iterator[None]:
    """Four rows in a slab and five columns in a block, so that a few small rows fill many."""
    from coordinator.fusion import _blocks, _materialise, _slabs, lean  # noqa: PLC0415  every test loads this file

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_slabs, "_LEAST", 1)
        patch.setattr(_slabs, "_ROWS", 4)
        patch.setattr(_blocks, "BLOCK", 1)
        patch.setattr(_blocks, "_CUDA_BLOCK", 1)
        patch.setattr(_blocks, "_NARROWEST", 5)
        patch.setattr(_materialise, "BLOCK", 1)
        patch.setattr(lean, "_BLOCK", 1)
        yield


_NO_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=[pytest.mark.cuda, _NO_CUDA])], scope="module")
def device(request: pytest.FixtureRequest) -> str:
    """Where torch calculates."""
    found: str = request.param
    return found
