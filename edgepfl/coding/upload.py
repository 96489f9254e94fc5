"""An upload as bytes, by a run's codec.

Slot after slot in the order of their names, each::

    tensors that cross as they are     raw, little-endian, in the order of their names
    the others, as one vector          places (where some are left out), scales (int8, int4), numbers

and all of it packed, where the codec says so.  What is coded are float32 tensors of slots that are shaped like the
model.  Slots of a shape of their own cross as they are, because their numbers are not changes of a model but sums that
the server divides by and the like, and so do running statistics, which are few and may not become negative, and int64.

topk chooses over a whole slot rather than in each tensor: of all vectors with so many numbers that is the nearest, so
the least stays behind, and a layer that moved more sends more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgepfl import codec as safetensors
from edgepfl.codec import Buffer, Expected
from edgepfl.coding import numbers, packing, places
from edgepfl.coding.words import Choice, Codec, codec_of
from edgepfl.errors import CodecError, ConfigError
from edgepfl.plan import Plan, Role, TensorSpec, TensorSpecs
from edgepfl.seeds import generator
from edgepfl.tree import VALUE, Tree, Trees

Vector: TypeAlias = NDArray[np.float32]

RESIDUAL = "residual."
"""Before the name of an UP slot: the KEEP slot with what of it was not sent yet.  No algorithm's slot has a dot."""


@dataclass(frozen=True)
class Size:
    """How long an upload is.

    Attributes:
        bytes: of it.
        exact: whether every upload has so many, or so many at most.
    """

    bytes: int
    exact: bool


@dataclass(frozen=True)
class Encoded:
    """An upload on its way.

    Attributes:
        data: its bytes.
        decoded: what the receiver makes of them.
        residual: what of it was not sent, to be added to the next upload; empty where the codec leaves nothing out.
    """

    data: bytes
    decoded: Trees
    residual: Trees = field(default_factory=dict)


@dataclass(frozen=True)
class _Slot:
    """How one UP slot is laid out."""

    whole: TensorSpecs  # that cross as they are
    coded: TensorSpecs

    @property
    def counts(self) -> list[int]:
        """How many numbers each coded tensor has."""
        return [spec.size for spec in self.coded.values()]

    @property
    def size(self) -> int:
        """How many numbers are coded."""
        return sum(self.counts)


class Coding:
    """A run's codec on its plan.

    Args:
        words: the codec's; empty for :mod:`edgepfl.codec`'s safetensors.
        plan: the run's.

    Raises:
        ConfigError: there is no such codec, or it cannot code so large a model.
    """

    def __init__(self, words: str, plan: Plan) -> None:
        self.codec: Codec = codec_of(words)
        self.plain = not words
        self.plan = plan
        self._declared = {name: slot.tensors for name, slot in sorted(plan.by_role(Role.UP).items())}
        self._slots = {name: _laid_out(tensors, plan.statistics) for name, tensors in self._declared.items()}
        if any(slot.size > places.MOST for slot in self._slots.values()):
            raise ConfigError(f"a slot has more than {places.MOST} numbers", where="codec", remedy="Leave it out")

    @property
    def size(self) -> Size:
        """How long an upload is."""
        if self.plain:
            raw = sum(spec.nbytes for tensors in self._declared.values() for spec in tensors.values())
            return Size(safetensors.HEADER_LIMIT + raw, exact=False)
        body = sum(_most_bytes(self.codec, slot) for slot in self._slots.values())
        exact = self.codec.choice is Choice.ALL and not self.codec.packed
        return Size(packing.most_bytes(body) if self.codec.packed else body, exact)

    @property
    def residuals(self) -> Expected:
        """The KEEP slots of what is not sent yet, and their tensors; none where the codec leaves nothing out."""
        if not self.codec.biased:
            return {}
        return {RESIDUAL + name: slot.coded for name, slot in self._slots.items() if slot.coded}

    def none_left(self) -> dict[str, Tree]:
        """The :attr:`residuals` before the first upload."""
        return {
            name: Tree({key: np.zeros(spec.shape, np.float32) for key, spec in specs.items()})
            for name, specs in self.residuals.items()
        }

    def encode(self, upload: Trees, seed: int, residual: Trees | None = None) -> Encoded:
        """The bytes of an upload, with what was left over from earlier ones.

        Args:
            upload: the UP slots, NumPy.
            seed: of stochastic rounding: the same gives the same bytes.
            residual: as the last :class:`Encoded` that counted has it.

        Raises:
            CodecError: a number is not finite.
        """
        if self.plain:
            return Encoded(safetensors.encode(upload), upload)
        due = _together(upload, residual or {})
        body = b"".join(self._encode(name, due[name], seed) for name in self._slots)
        decoded = self._decode(memoryview(body), "upload")
        left = {
            name: due[slot].like(specs).zip(np.subtract, decoded[slot].like(specs))
            for name, specs in self.residuals.items()
            for slot in [name.removeprefix(RESIDUAL)]
        }
        return Encoded(packing.pack(body) if self.codec.packed else body, decoded, left)

    def decode(self, data: Buffer, *, where: str = "upload") -> dict[str, Tree]:
        """The UP slots of an upload, of which nothing is trusted, in memory that may be written to.

        Raises:
            CodecError: too long, too short, or with a length, place, scale or number that no upload has.
        """
        if self.plain:
            return safetensors.decode(data, self._declared, where=where)
        if len(data) > (most := self.size.bytes):
            raise CodecError(f"{len(data)} bytes, and an upload has at most {most}", where=where)
        view = memoryview(data)
        if self.codec.packed:
            body = sum(_most_bytes(self.codec, slot) for slot in self._slots.values())
            view = packing.unpack(view, body, where)
        return self._decode(view, where)

    def _encode(self, name: str, tree: Tree, seed: int) -> bytes:
        """The bytes of one slot."""
        slot = self._slots[name]
        whole = b"".join(_little(tree[key], spec).tobytes() for key, spec in slot.whole.items())
        vector = _vector(tree, slot, name)
        counts, head = slot.counts, b""
        if self.codec.choice is not Choice.ALL:
            found = places.chosen(self.codec, vector)
            head = places.encode(found, len(vector))
            counts, vector = _counts_at(found, counts), vector[found]
        body = numbers.encode(self.codec.numbers, vector, counts, generator(seed, "codec", name))
        if self.codec.packed:
            body = numbers.planes(self.codec.numbers, body)
        return whole + head + body

    def _decode(self, view: memoryview, where: str) -> dict[str, Tree]:
        found: dict[str, Tree] = {}
        for name, slot in self._slots.items():
            tensors, view = _taken_whole(view, slot, f"{where}, {name}")
            vector, view = self._taken(view, slot, f"{where}, {name}")
            found[name] = Tree({**tensors, **_tensors(vector, slot)})
        if len(view):
            raise CodecError(f"{len(view)} bytes follow it", where=where)
        return found

    def _taken(self, view: memoryview, slot: _Slot, where: str) -> tuple[Vector, memoryview]:
        """The coded numbers at the beginning of ``view``, and what follows them."""
        counts, found = slot.counts, None
        if self.codec.choice is not Choice.ALL:
            found, view = places.decode(view, slot.size, places.most_of(self.codec, slot.size), where)
            counts = _counts_at(found, counts)
        length = numbers.size_of(self.codec.numbers, sum(counts), len(counts))
        body, view = _cut(view, length, where)
        if self.codec.packed:
            body = numbers.joined(self.codec.numbers, body)
        vector = numbers.decode(self.codec.numbers, body, counts, where)
        if found is None:
            return vector, view
        whole = np.zeros(slot.size, np.float32)
        whole[found] = vector
        return whole, view


def _laid_out(tensors: TensorSpecs, statistics: tuple[str, ...]) -> _Slot:
    coded = {
        name: spec
        for name, spec in sorted(tensors.items())
        if name != VALUE and name not in statistics and spec.dtype == "float32"
    }
    return _Slot({name: tensors[name] for name in sorted(tensors.keys() - coded.keys())}, coded)


def _most_bytes(codec: Codec, slot: _Slot) -> int:
    """The most bytes of one slot."""
    most = places.most_of(codec, slot.size)
    head = 0 if codec.choice is Choice.ALL else places.most_bytes(most, slot.size)
    whole = sum(spec.nbytes for spec in slot.whole.values())
    return whole + head + numbers.size_of(codec.numbers, most, len(slot.coded))


def _together(upload: Trees, residual: Trees) -> dict[str, Tree]:
    """An upload with what earlier ones left over."""
    due = dict(upload)
    for name, left in residual.items():
        slot = name.removeprefix(RESIDUAL)
        due[slot] = due[slot] | due[slot].like(left).zip(np.add, left)
    return due


def _vector(tree: Tree, slot: _Slot, name: str) -> Vector:
    """The coded tensors, one after the other."""
    parts = [np.asarray(tree[key], np.float32).reshape(-1) for key in slot.coded]
    vector = np.concatenate(parts) if parts else np.empty(0, np.float32)
    if not np.isfinite(vector).all():
        raise CodecError("it has a number that is not finite", where=name)
    return vector


def _tensors(vector: Vector, slot: _Slot) -> dict[str, Vector]:
    """The coded tensors in a vector, which they are views of."""
    parts = np.split(vector, np.cumsum(slot.counts)[:-1]) if slot.coded else []
    return {name: part.reshape(spec.shape) for (name, spec), part in zip(slot.coded.items(), parts, strict=True)}


def _counts_at(found: places.Places, counts: list[int]) -> list[int]:
    """How many of the places are in each tensor."""
    ends = np.searchsorted(found, np.cumsum(counts, dtype=np.int64))
    return [int(count) for count in np.diff(ends, prepend=0)]


def _little(array: NDArray[Any], spec: TensorSpec) -> NDArray[Any]:
    return np.asarray(array, np.dtype(spec.dtype).newbyteorder("<"), order="C")


def _taken_whole(view: memoryview, slot: _Slot, where: str) -> tuple[dict[str, NDArray[Any]], memoryview]:
    """The tensors that cross as they are, from the beginning of ``view``, and what follows them."""
    found: dict[str, NDArray[Any]] = {}
    for name, spec in slot.whole.items():
        part, view = _cut(view, spec.nbytes, where)
        array = np.frombuffer(part, np.dtype(spec.dtype).newbyteorder("<")).astype(spec.dtype)
        found[name] = array.reshape(spec.shape)
    return found, view


def _cut(view: memoryview, length: int, where: str) -> tuple[memoryview, memoryview]:
    """The first bytes and the rest.

    Raises:
        CodecError: there are not so many.
    """
    if len(view) < length:
        raise CodecError(f"{len(view)} bytes are left, and {length} are due", where=where)
    return view[:length], view[length:]
