"""Threat: a few bytes that unpack or parse into gigabytes.  What the decoders take has a small bound."""

from __future__ import annotations

import io
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgpack
import pytest

from edgepfl import bundle, codec, wire
from edgepfl.errors import BundleError, CodecError, EdgepflError, WireError
from edgepfl.plan import TensorSpec

MIB = 1 << 20
# The parser stops at 1,024 levels and reserves a list when it is announced: 1,024 x 4,096 pointers are 32 MiB.
MESSAGE_WORST = 40 * MIB


@contextmanager
def at_most(limit: int) -> Iterator[None]:
    """Fail if Python's allocators held more than ``limit`` bytes at once inside."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= limit


MESSAGES: dict[str, bytes] = {
    "an array of 2^32 - 1": b"\xdd\xff\xff\xff\xff" + bytes(1000),
    "a map of 2^32 - 1": b"\xdf\xff\xff\xff\xff" + b"\xa1a" * 1000,
    "arrays in arrays": b"\xdc\x10\x00" * 40_000,
    "many large arrays": msgpack.packb([1, "gone", {str(k): [[]] * 4000 for k in range(20)}]),
    "a string of 2^32 - 1": b"\xdb\xff\xff\xff\xff" + bytes(1000),
    "a message past its limit": bytes(2 * MIB),
}


@pytest.mark.parametrize("data", MESSAGES.values(), ids=MESSAGES.keys())
def test_messages(data: bytes) -> None:
    with at_most(MESSAGE_WORST), pytest.raises(WireError) as caught:
        wire.decode(data, where="up/pi-07")
    assert caught.value.where == "up/pi-07"


def bomb(name: str, byte: bytes, size: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive, archive.open(name, "w") as member:
        for _ in range(size // MIB):
            member.write(byte * MIB)
    return buffer.getvalue()


def test_bundles(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bundle.MEMBER_LIMIT <= bundle.TOTAL_LIMIT <= 1024 * MIB
    monkeypatch.setattr(bundle, "MEMBER_LIMIT", 32 * MIB)  # a bomb of the real limit takes seconds to make
    plan = bomb("plan.json", b"[", 16 * MIB)
    graph = bomb("graphs/onnx/step", b"\0", 64 * MIB)
    assert len(plan) + len(graph) < MIB
    for data in (plan, graph):
        with at_most(4 * MIB), pytest.raises(BundleError, match="unpacks to"):
            bundle.unpack(data)


def test_tensors() -> None:
    expected = {"delta": {"w": TensorSpec((2,))}}
    header = b'{"delta/w":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}'
    huge = len(header).to_bytes(8, "little") + header
    padded = (1 << 62).to_bytes(8, "little") + b"{" + b" " * MIB
    for data in (huge, padded, bytes(8 * MIB)):
        with at_most(4 * MIB), pytest.raises(CodecError) as caught:
            codec.decode(data, expected, where="upload")
        assert len(str(caught.value)) < 1000


DECODERS: dict[str, Callable[[bytes], object]] = {
    "wire": wire.decode,
    "codec": lambda data: codec.decode(data, {"w": {"a": TensorSpec((1,))}}),
    "bundle": bundle.unpack,
}


@pytest.mark.parametrize("decode", DECODERS.values(), ids=DECODERS.keys())
@pytest.mark.parametrize("byte", [b"\x00", b"\x81", b"\x91", b"[", b"{", b"\xff", b"PK\x03\x04", b"PK\x05\x06"])
def test_a_hundred_kilobytes_of_one_byte(decode: Callable[[bytes], object], byte: bytes) -> None:
    data = byte * (100_000 // len(byte))
    with at_most(MESSAGE_WORST), pytest.raises(EdgepflError) as caught:
        decode(data)
    assert type(caught.value) in {WireError, CodecError, BundleError}
    assert caught.value.what
