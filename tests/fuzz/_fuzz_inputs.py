"""Hostile inputs: valid ones, changed at a byte, a length, a field or a level, from a seeded source.

A maker draws one input from a :class:`random.Random`.  Byte makers know nothing of the format; tree makers change a
parsed value and write it anew, so that what they make passes the outer layers and reaches the inner ones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, TypeAlias

import msgpack

Maker: TypeAlias = Callable[[Random], bytes]
Path: TypeAlias = tuple[Any, ...]

_COUNTS = (1, 1, 1, 2, 3)  # changes of one input
LONGEST = 4096  # bytes that one change adds at most
_EDGES = (
    *b'"[{.,-',
    0,
    1,
    2,
    3,
    4,
    7,
    8,
    15,
    16,
    31,
    32,
    0x7F,
    0x80,
    0x81,
    0x90,
    0x9F,
    0xC0,
    0xC1,
    0xC4,
    0xC7,
    0xDC,
    0xDE,
    0xFE,
    0xFF,
)
_LENGTHS = (0, 1, 127, 128, 255, 256, 65535, 65536, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
_NUMBERS: tuple[float, ...] = (
    0, 1, 2, -1, -2, 255, 256, 4096, 65535, 65536, 1 << 24, (1 << 24) + 1, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 40,
    (1 << 40) + 1, (1 << 53) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -(1 << 31), -(1 << 63), 0.0, -0.0, 0.5, 1e-320,
    1e38, 1e300, -1e300, math.nan, math.inf, -math.inf,
)  # fmt: skip
_TEXTS = (
    "",
    "a",
    "A",
    "a-b",
    "-a",
    "a" * 36,
    "a" * 37,
    "a" * 65,
    "x" * 257,
    "y" * 1025,
    "../a",
    "a/b",
    "a\n",
    "\0",
    "\u00e9",
    "0",
    "1e9",
    "NaN",
)


def _deep(levels: int) -> Any:  # noqa: ANN401  a value of nested lists
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


_OTHERS: tuple[Any, ...] = (
    None, True, False, [], {}, [[]], [{}], {"": None}, {"a": {}}, _deep(8), _deep(100), [[]] * 200, [0] * 300,
    [None] * 17, {str(number): number for number in range(80)},
)  # fmt: skip
_VALUES = (*_NUMBERS, *_TEXTS, *_OTHERS)


def bytes_of(seeds: Sequence[bytes]) -> Maker:
    """Inputs that differ from one of these in a few bytes."""
    return lambda random: changed(_pick(random, seeds), random, seeds)


def changed(data: bytes, random: Random, others: Sequence[bytes] = ()) -> bytes:
    """The bytes with one to three changes."""
    for _ in range(_pick(random, _COUNTS)):
        data = _pick(random, _CHANGES)(data, random, others)
    return data


def _flip(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    if not data:
        return b"\0"
    room = bytearray(data)
    room[int(random.random() * len(data))] ^= 1 << int(random.random() * 8)
    return bytes(room)


def _edge(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    room = bytearray(data or b"\0")
    room[int(random.random() * len(room))] = _pick(random, _EDGES)
    return bytes(room)


def _length(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    """Another number where one might be, of 2, 4 or 8 bytes and of either order."""
    width = 2 << int(random.random() * 3)
    number = (_pick(random, _LENGTHS) & ((1 << 8 * width) - 1)).to_bytes(width, "little")
    at = int(random.random() * (len(data) + 1))
    return bytes(data[:at] + (number if random.random() < 0.5 else number[::-1]) + data[at + width :])


def _cut(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    return data[: int(random.random() * (len(data) + 1))]


def _without(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    at = int(random.random() * (len(data) + 1))
    return data[:at] + data[at + 1 + int(random.random() * 8) :]


def _twice(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    at = int(random.random() * (len(data) + 1))
    return data[: at + int(random.random() * min(64, len(data) + 1))] + data[at:]


def _added(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    at = int(random.random() * (len(data) + 1))
    return data[:at] + random.randbytes(1 + int(random.random() * 8)) + data[at:]


def _grown(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    at = int(random.random() * (len(data) + 1))
    return data[:at] + bytes([_pick(random, _EDGES)]) * (1 << int(random.random() * 12)) + data[at:]


def _joined(data: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    other = _pick(random, others) if others else data
    return data[: int(random.random() * (len(data) + 1))] + other[int(random.random() * (len(other) + 1)) :]


_CHANGES = (_flip, _flip, _edge, _edge, _length, _cut, _without, _twice, _added, _grown, _joined)


# Changes of parsed values.


def messages_of(values: Sequence[Any]) -> Maker:
    """Inputs in MessagePack that differ from one of these in a few places."""
    return trees_of(values, _msgpack)


def json_of(values: Sequence[Any]) -> Maker:
    """Inputs in JSON that differ from one of these in a few places."""
    return trees_of(values, as_json)


def trees_of(values: Sequence[Any], write: Callable[[Any], bytes]) -> Maker:
    """Inputs whose value differs from one of these in a few places.

    Args:
        values: made of mappings, lists and scalars.
        write: their bytes; what it cannot write is written as nothing.
    """
    seeds = [(value, tuple(_paths(value))) for value in values]

    def make(random: Random) -> bytes:
        value, paths = _pick(random, seeds)
        doubled = ""
        for _ in range(_pick(random, _COUNTS)):
            value, key = _replanted(value, _pick(random, paths), random)
            doubled = key or doubled
        try:
            data = write(value)
        except (OverflowError, ValueError, TypeError):
            return b""
        return data.replace(b"~" * len(doubled.encode()), doubled.encode()) if doubled else data

    return make


def either(*makers: Maker) -> Maker:
    """Inputs of any of these makers."""
    return lambda random: _pick(random, makers)(random)


def as_json(value: Any) -> bytes:  # noqa: ANN401  any value
    """JSON, in which numbers that are not finite are words and bytes are text."""
    return json.dumps(value, default=repr, separators=(",", ":")).encode()


def _msgpack(value: Any) -> bytes:  # noqa: ANN401  any value
    data: bytes = msgpack.packb(value)
    return data


def _pick(random: Random, choices: Sequence[Any]) -> Any:  # noqa: ANN401  whatever they are
    return choices[int(random.random() * len(choices))]


def _paths(value: Any, path: Path = ()) -> list[Path]:  # noqa: ANN401  any value
    """The places in a value, itself first."""
    found = [path]
    if isinstance(value, Mapping):
        for key, each in value.items():
            found += _paths(each, (*path, key))
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            found += _paths(each, (*path, index))
    return found


def _replanted(value: Any, path: Path, random: Random) -> tuple[Any, str]:  # noqa: ANN401  any value
    """The value with a change at a path, which may be gone meanwhile, and a key that is to be there twice."""
    if not path:
        found: tuple[Any, str] = _pick(random, _TREE_CHANGES)(value, random)
        return found
    first, *rest = path
    if isinstance(value, Mapping) and first in value:
        new, key = _replanted(value[first], tuple(rest), random)
        return {**value, first: new}, key
    if isinstance(value, list | tuple) and isinstance(first, int) and first < len(value):
        new, key = _replanted(value[first], tuple(rest), random)
        return [*value[:first], new, *value[first + 1 :]], key
    return value, ""


def _other(_: Any, random: Random) -> tuple[Any, str]:  # noqa: ANN401  any value
    return _pick(random, _VALUES), ""


def _near(value: Any, random: Random) -> tuple[Any, str]:  # noqa: ANN401  any value
    """Another value of the same type."""
    if isinstance(value, str):
        return _pick(random, (*_TEXTS, value + "a", value[:-1], value.upper(), value * 2)), ""
    if isinstance(value, bytes):
        return changed(value, random), ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _pick(random, (*_NUMBERS, value + 1, value - 1, -value)), ""
    return _fewer(value, random)


def _fewer(value: Any, random: Random) -> tuple[Any, str]:  # noqa: ANN401  any value
    """Without a key or an item, or with one more, or one twice."""
    if isinstance(value, Mapping) and value:
        key = _pick(random, tuple(value))
        match int(random.random() * 4):
            case 0:
                return {name: each for name, each in value.items() if name != key}, ""
            case 1:
                return {**value, _pick(random, _TEXTS): _pick(random, _VALUES)}, ""
            case 2:
                return {**value, key: _pick(random, tuple(value.values()))}, ""
            case _ if isinstance(key, str) and key:  # written once more in place of as many tildes
                return {**value, "~" * len(key.encode()): value[key]}, key
    if isinstance(value, list | tuple) and value:
        at = int(random.random() * len(value))
        match int(random.random() * 4):
            case 0:
                return [*value[:at], *value[at + 1 :]], ""
            case 1:
                return [*value, value[at]], ""
            case 2:
                return list(value) * (1 << int(random.random() * 8)), ""
            case _:
                return [*value[:at], _pick(random, _VALUES), *value[at:]], ""
    return _pick(random, _VALUES), ""


def _wrapped(value: Any, random: Random) -> tuple[Any, str]:  # noqa: ANN401  any value
    return _pick(random, ([value], {"a": value}, str(value)[:LONGEST])), ""


_TREE_CHANGES = (_other, _near, _near, _fewer, _fewer, _wrapped)
