"""Trees as bytes: safetensors, checked against what was declared.

The tensors of slot ``w`` are stored as ``w/NAME`` (a scalar slot's as ``w/``), raw and little-endian.  Encoding the
same values gives the same bytes, so a digest of the bytes names the values.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import safetensors
import safetensors.numpy

from edgepfl.errors import CodecError
from edgepfl.plan import TensorSpec
from edgepfl.tree import Tree, Trees

HEADER_LIMIT = 1 << 20
"""The most bytes that names, shapes and offsets may take."""

Expected = Mapping[str, Mapping[str, TensorSpec]]
"""Slot name to the tensors it must have."""


def encode(trees: Trees) -> bytes:
    """The bytes of trees of NumPy arrays."""
    flat = {
        f"{slot}/{name}": np.asarray(tensor, order="C") for slot, tree in trees.items() for name, tensor in tree.items()
    }
    return safetensors.numpy.save(flat)


def decode(data: bytes, expected: Expected, *, where: str = "tensors") -> dict[str, Tree]:
    """The trees of ``data``, which must hold exactly the ``expected`` tensors.

    Nothing in ``data`` is trusted: its length is checked before it is parsed, names, shapes and dtypes after.

    Raises:
        CodecError: too long, not safetensors, or a tensor that is missing, not declared or misshapen.
    """
    declared = {f"{slot}/{name}": spec for slot, specs in expected.items() for name, spec in specs.items()}
    most = sum(spec.nbytes for spec in declared.values()) + HEADER_LIMIT
    if len(data) > most:
        raise CodecError(f"{len(data)} bytes, and what was declared has at most {most}", where=where)
    try:
        flat = safetensors.numpy.load(data)
    except (safetensors.SafetensorError, ValueError, TypeError, KeyError) as error:
        raise CodecError(f"not safetensors ({error})", where=where) from error
    if apart := flat.keys() ^ declared.keys():
        first = min(apart)
        problem = "was not declared" if first in flat else "is missing"
        raise CodecError(f"tensor {first!r} {problem}", where=where)
    for name, spec in declared.items():
        _check(name, flat[name], spec, where)
    return {slot: Tree({name: flat[f"{slot}/{name}"] for name in specs}) for slot, specs in expected.items()}


def _check(name: str, tensor: np.ndarray[tuple[int, ...], np.dtype[np.generic]], spec: TensorSpec, where: str) -> None:
    if tensor.shape != spec.shape or tensor.dtype != np.dtype(spec.dtype):
        raise CodecError(
            f"tensor {name!r} is {tensor.dtype}{list(tensor.shape)}, declared {spec.dtype}{list(spec.shape)}",
            where=where,
        )
