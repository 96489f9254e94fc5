"""Trees as bytes: safetensors, checked against what was declared.

The tensors of slot ``w`` are stored as ``w/NAME`` (a scalar slot's as ``w/``), raw and little-endian.  Encoding the
same values gives the same bytes, so a digest of the bytes names the values.  The bytes are::

    length of the header   8 bytes, little-endian
    header                 {NAME: {"dtype": "F32", "shape": [...], "data_offsets": [begin, end]}, ...} in JSON
    tensors                one after the other, without holes

Decoding reads the header here rather than with the safetensors library, which copies every tensor before anything can
be said about it: each record is compared with what was declared first, and the tensors are views of the bytes where
these can be written to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np
import safetensors.numpy
from msgspec import Meta

from edgepfl.errors import CodecError
from edgepfl.plan import DIMENSION_LIMIT, TensorSpec
from edgepfl.tree import Tree, Trees

HEADER_LIMIT = 1 << 20
"""The most bytes that names, shapes and offsets may take."""

Expected = Mapping[str, Mapping[str, TensorSpec]]
"""Slot name to the tensors it must have."""

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes in one piece."""

_PREFIX = 8  # bytes of the header's length
_NAME_SHOWN = 80  # characters of a stranger's name in an error
_DTYPES = {"F16": "float16", "F32": "float32", "F64": "float64", "I32": "int32", "I64": "int64"}  # as errors name them

_Natural: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a header says of one tensor."""

    dtype: Annotated[str, Meta(max_length=16)]
    shape: Annotated[tuple[_Natural, ...], Meta(max_length=DIMENSION_LIMIT)]
    data_offsets: tuple[_Natural, _Natural]

    def __str__(self) -> str:
        return f"{_DTYPES.get(self.dtype, self.dtype)}{list(self.shape)}"


_HEADER = msgspec.json.Decoder(dict[str, _Record])


def encode(trees: Trees) -> bytes:
    """The bytes of trees of NumPy arrays."""
    flat = {
        f"{slot}/{name}": np.asarray(tensor, order="C") for slot, tree in trees.items() for name, tensor in tree.items()
    }
    return safetensors.numpy.save(flat)


def decode(data: Buffer, expected: Expected, *, where: str = "tensors") -> dict[str, Tree]:
    """The trees of ``data``, which must hold exactly the ``expected`` tensors.

    Nothing in ``data`` is trusted: its length is checked before it is parsed, and every name, dtype, shape and place
    before any tensor is looked at.

    Args:
        data: what :func:`encode` gave, or somebody else.
        expected: what was declared.
        where: the place for errors.

    Returns:
        Arrays that can be written to: views of ``data``, which lives as long as any of them, if it can be written to,
        else of one copy of it.  A tensor that does not lie as its dtype must is copied, too; :func:`encode` makes none.

    Raises:
        CodecError: too long, not safetensors, or a tensor that is missing, not declared or misshapen.
    """
    found = places(data, len(data), expected, where=where)
    whole = memoryview(data)
    room = memoryview(bytearray(whole)) if whole.readonly else whole
    return {
        slot: Tree({name: _view(room, found[f"{slot}/{name}"], spec) for name, spec in specs.items()})
        for slot, specs in expected.items()
    }


def places(head: Buffer, size: int, expected: Expected, *, where: str = "tensors") -> dict[str, int]:
    """Where each of the ``expected`` tensors begins, all checked, for whoever reads only some of the bytes.

    Args:
        head: the first of them, as many as :func:`head_size` says at least.
        size: how many there are.
        expected: what was declared.
        where: the place for errors.

    Returns:
        ``SLOT/NAME`` to the offset of the tensor's first byte.

    Raises:
        CodecError: as :func:`decode`.
    """
    declared = {f"{slot}/{name}": spec for slot, specs in expected.items() for name, spec in specs.items()}
    most = sum(spec.nbytes for spec in declared.values()) + HEADER_LIMIT
    if size > most:
        raise CodecError(f"{size} bytes, and what was declared has at most {most}", where=where)
    start = head_size(head, size, where=where)
    records = _records(memoryview(head)[_PREFIX:start], where)
    if apart := records.keys() ^ declared.keys():
        first = min(apart)
        problem = "was not declared" if first in records else "is missing"
        raise CodecError(f"tensor {first[:_NAME_SHOWN]!r} {problem}", where=where)
    for name, spec in declared.items():
        _check(name, records[name], spec, where)
    _check_places(sorted(record.data_offsets for record in records.values()), size - start, where)
    return {name: start + records[name].data_offsets[0] for name in declared}


def head_size(head: Buffer, size: int, *, where: str = "tensors") -> int:
    """How many bytes come before the tensors.

    Args:
        head: the first 8 bytes, or more.
        size: how many there are.
        where: the place for errors.

    Raises:
        CodecError: too many, or more than there are.
    """
    length = int.from_bytes(head[:_PREFIX], "little")
    if len(head) < _PREFIX or length > min(HEADER_LIMIT, size - _PREFIX):
        raise CodecError(f"not safetensors ({size} bytes, and a header of {length})", where=where)
    return _PREFIX + length


def _records(header: memoryview, where: str) -> dict[str, _Record]:
    """What is said of each tensor."""
    try:
        return _HEADER.decode(header)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise CodecError(f"not safetensors ({str(error)[:_NAME_SHOWN]})", where=where) from error


def _check(name: str, record: _Record, spec: TensorSpec, where: str) -> None:
    if record.shape != spec.shape or _DTYPES.get(record.dtype) != spec.dtype:
        raise CodecError(f"tensor {name!r} is {record}, declared {spec.dtype}{list(spec.shape)}", where=where)
    begin, end = record.data_offsets
    if end - begin != spec.nbytes:
        raise CodecError(
            f"not safetensors (tensor {name!r} lies in {end - begin} bytes and has {spec.nbytes})", where=where
        )


def _check_places(places: Sequence[tuple[int, int]], size: int, where: str) -> None:
    """One after the other from the beginning to the end: so none overlaps another, and none reaches outside."""
    here = 0
    for begin, end in places:
        if begin != here:
            raise CodecError(f"not safetensors (a tensor begins at {begin} and not at {here})", where=where)
        here = end
    if here != size:
        raise CodecError(f"not safetensors (tensors of {here} bytes in {size})", where=where)


def _view(data: memoryview, offset: int, spec: TensorSpec) -> np.ndarray[tuple[int, ...], np.dtype[Any]]:
    flat = np.frombuffer(data, np.dtype(spec.dtype).newbyteorder("<"), spec.size, offset)
    return np.require(flat, requirements="A").reshape(spec.shape)
