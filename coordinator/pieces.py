"""How a server's state lies in blobs: a big tensor has one of its own, all others of a state share one.

A tensor that an algorithm hands on as the same object is unchanged, so its blob is not written again: a state that only
grows costs no more than what it grows by.  A *manifest* says where every piece is; it is a blob, too, and its digest
names the state.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal, Protocol, TypeAlias, TypeVar, get_args

import msgspec
import numpy as np
import torch
from msgspec import Meta

from edgepfl.errors import CodecError, RunError
from edgepfl.plan import DIMENSION_LIMIT
from edgepfl.tree import Tensor, Tree, Trees
from edgepfl.wire import Count, Sha256

APART = 1 << 20
"""Bytes from which a tensor has a blob of its own."""

LIMIT = 1 << 28
"""Bytes of a manifest: a piece takes about 200, and FPFC's state may have thousands of them."""

DType: TypeAlias = Literal["float64", "float32", "int64", "int32", "uint8", "bool"]
_DTYPES = frozenset(get_args(DType))
T = TypeVar("T")


class Blobs(Protocol):
    """Where blobs are, by their digests."""

    def keep(self, data: bytes | memoryview) -> str:
        """Store a blob; its digest."""
        ...

    def read(self, sha256: str) -> bytes | bytearray:
        """A blob, its digest verified."""
        ...


class Piece(msgspec.Struct, frozen=True):
    """Where one tensor lies: its bytes in a blob, from an offset on."""

    shape: Annotated[tuple[Count, ...], Meta(max_length=DIMENSION_LIMIT)]
    dtype: DType
    blob: Sha256
    offset: Count = 0


Shard: TypeAlias = dict[str, dict[str, Piece]]
"""A state, or one rank's part of it: slot to tensor name to piece."""


class Manifest(msgspec.Struct, frozen=True):
    """A stored state.

    Attributes:
        shards: of each rank that calculates; one where the coordinator does, which is the whole.
        download: digest of the DOWN slots of every device, where aggregators made them.
    """

    shards: Annotated[tuple[Shard, ...], Meta(min_length=1)]
    download: Sha256 | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        """The digests of all blobs that the state needs beside the manifest, in order."""
        pieces = (piece for shard in self.shards for named in shard.values() for piece in named.values())
        return tuple(sorted({piece.blob for piece in pieces} | ({self.download} if self.download else set())))


def put(blobs: Blobs, state: Trees, before: tuple[Trees, Shard] | None = None) -> Shard:
    """Store a state, torch; a tensor that is the same object as before is stored already.

    Args:
        blobs: where to.
        state: torch.
        before: the state that it came from, and where that is.

    Raises:
        StoreError: the store failed.
        RunError: a tensor is of a kind that cannot be stored.
    """
    shard: Shard = {slot: {} for slot in sorted(state)}
    small: list[tuple[str, str, Tensor]] = []
    for slot, name, tensor in _each(state):
        _dtype(slot, name, tensor)
        if tensor.nbytes < APART:
            small.append((slot, name, tensor))
            continue
        known = _known(slot, name, tensor, before)
        shard[slot][name] = known or _piece(slot, name, tensor, blobs.keep(_bytes(tensor)), 0)
    parts = [_bytes(tensor) for _, _, tensor in small]
    blob, offset = blobs.keep(b"".join(parts)) if parts else "", 0
    for (slot, name, tensor), part in zip(small, parts, strict=True):
        shard[slot][name] = _piece(slot, name, tensor, blob, offset)
        offset += len(part)
    return shard


def take(blobs: Blobs, shard: Shard, device: str = "cpu") -> Trees:
    """A stored state, torch, on a device, in memory that may be written to.

    Raises:
        StoreError: it is missing or damaged.
        CodecError: it is not what its pieces say.
    """
    read = Reader(blobs)
    return {
        slot: Tree({name: read.tensor(piece).to(device) for name, piece in named.items()})
        for slot, named in shard.items()
    }


def encode(record: object) -> bytes:
    """The bytes of a record; equal records give equal ones."""
    return msgspec.json.encode(record, order="sorted")


def decode(data: bytes | bytearray, kind: type[T], where: str) -> T:
    """The record in a blob.

    Raises:
        CodecError: too long, or another record.
    """
    if len(data) > LIMIT:
        raise CodecError(f"{len(data)} bytes, at most {LIMIT} are allowed", where=where)
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise CodecError(f"it cannot be read ({str(error)[:200]})", where=where) from error


class Reader:
    """Reads tensors, and the blob that several share only once."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._last: tuple[str, bytes | bytearray] = ("", b"")

    def tensor(self, piece: Piece) -> torch.Tensor:
        """The tensor of a piece, in memory of its own.

        Raises:
            StoreError: its blob is missing or damaged.
            CodecError: it is not there.
        """
        if piece.blob != self._last[0]:
            self._last = (piece.blob, self._blobs.read(piece.blob))
        data, dtype = self._last[1], np.dtype(piece.dtype)
        size = math.prod(piece.shape) * dtype.itemsize
        if piece.offset + size > len(data):
            raise CodecError(f"{size} bytes from {piece.offset} on, in {len(data)}", where=f"blob {piece.blob[:16]}")
        own = bytearray(data[piece.offset : piece.offset + size])  # a copy that may be written to
        try:
            return torch.from_numpy(np.ndarray(piece.shape, dtype, own))
        except ValueError as error:  # it has no elements, and dimensions that no array has
            raise CodecError(f"no tensor has the shape {piece.shape}", where=f"blob {piece.blob[:16]}") from error


def _each(state: Trees) -> Iterator[tuple[str, str, Tensor]]:
    for slot in sorted(state):
        for name, tensor in state[slot].items():
            yield slot, name, tensor


def _known(slot: str, name: str, tensor: Tensor, before: tuple[Trees, Shard] | None) -> Piece | None:
    """Where a tensor lies that did not change."""
    if before is None or before[0].get(slot, Tree({})).get(name) is not tensor:
        return None
    return before[1].get(slot, {}).get(name)


def _piece(slot: str, name: str, tensor: Tensor, blob: str, offset: int) -> Piece:
    dtype = _dtype(slot, name, tensor)
    return Piece(tuple(tensor.shape), dtype, blob, offset)  # type: ignore[arg-type]  # it is one of the literals


def _dtype(slot: str, name: str, tensor: Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in _DTYPES:
        raise RunError(f"{slot}/{name} is {dtype}", where="checkpoint", remedy=f"Use {', '.join(sorted(_DTYPES))}")
    return dtype


def _bytes(tensor: Tensor) -> memoryview:
    flat: memoryview = tensor.detach().cpu().contiguous().numpy().reshape(-1).view(np.uint8).data
    return flat
