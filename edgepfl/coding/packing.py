"""Packing with zlib, which comes with Python."""

from __future__ import annotations

import zlib

from edgepfl.errors import CodecError

_LEVEL = 1  # higher ones gain under 1 % on updates and take several times as long: see docs/codecs.md


def most_bytes(size: int) -> int:
    """The most bytes that ``size`` bytes become: zlib's own bound."""
    return size + (size >> 12) + (size >> 14) + (size >> 25) + 13


def pack(data: bytes) -> bytes:
    """Packed bytes."""
    return zlib.compress(data, _LEVEL)


def unpack(data: memoryview, most: int, where: str) -> memoryview:
    """What was packed.

    Args:
        data: packed bytes.
        most: how many they may become: no more are made.
        where: the place for errors.

    Raises:
        CodecError: they become more, are not zlib's, cut short, or followed by others.
    """
    unpacker = zlib.decompressobj()
    try:
        found = unpacker.decompress(data, most + 1)
    except zlib.error as error:
        raise CodecError(f"not packed ({error})", where=where) from error
    if len(found) > most:
        raise CodecError(f"it unpacks to more than the {most} bytes that are possible", where=where)
    if not unpacker.eof or unpacker.unused_data:
        raise CodecError("packed bytes are cut short, or others follow them", where=where)
    return memoryview(found)
