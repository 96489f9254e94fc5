"""Encoded uploads of devices that lie: each is refused with a CodecError, or gives finite numbers where they belong."""

from __future__ import annotations

import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepfl.coding import Coding, places
from edgepfl.errors import CodecError
from edgepfl.plan import BatchPlan, ExampleSpec, Plan, Reduce, Role, SlotPlan, TensorSpec
from edgepfl.tree import Tree, Trees

SPECS = {"bias": TensorSpec((5,)), "count": TensorSpec((), "int64"), "weight": TensorSpec((40, 9))}
WORDS = [
    f"{choice}{form}{packed}"
    for choice in ("", "sparse+", "topk:0.2+", "threshold:0.5+")
    for form in ("int8", "int4", "float16", "bfloat16")
    for packed in ("", "+zlib")
]


def plan(size: tuple[int, ...] = ()) -> Plan:
    specs = {"w": TensorSpec(size)} if size else SPECS
    up = {"delta": SlotPlan(Role.UP, dict(specs), reduce=Reduce.MEAN)}
    batch = BatchPlan(1, (ExampleSpec((1,)),), ExampleSpec(()))
    return Plan("coded", {}, {}, {}, up, {}, batch, {}, ("",))


def upload() -> Trees:
    rng = np.random.default_rng(1)
    sparse = rng.standard_normal((40, 9)) * (rng.random((40, 9)) > 0.5)
    return {"delta": Tree({"bias": np.ones(5, "f4"), "count": np.int64(7), "weight": sparse.astype("f4")})}


def valid(words: str) -> tuple[Coding, bytes]:
    coding = Coding(words, plan())
    return coding, coding.encode(upload(), 1).data


def harmless(coding: Coding, data: bytes) -> bool:
    """Whether it is decoded; then every number is finite and where it belongs."""
    try:
        found = coding.decode(data, where="upload of pi-07")
    except CodecError:
        return False
    assert {name: (array.shape, str(array.dtype)) for name, array in found["delta"].items()} == {
        name: (spec.shape, spec.dtype) for name, spec in SPECS.items()
    }
    assert all(np.isfinite(array).all() for array in found["delta"].values())
    return True


@pytest.mark.parametrize("words", WORDS)
def test_an_upload_that_is_cut_short_or_goes_on_is_refused(words: str) -> None:
    coding, data = valid(words)
    assert harmless(coding, data)
    assert not any(harmless(coding, data[:end]) for end in range(len(data)))
    assert not harmless(coding, data + b"\0")
    assert not harmless(coding, data + data)


@pytest.mark.parametrize("words", WORDS)
def test_changed_bytes_are_harmless(words: str) -> None:
    coding, data = valid(words)
    rng = np.random.default_rng(2)
    for _ in range(300):
        changed = bytearray(data)
        for place in rng.integers(len(data), size=rng.integers(1, 4)):
            changed[place] = rng.integers(256)
        harmless(coding, bytes(changed))


@given(st.sampled_from(WORDS), st.binary(max_size=500))
def test_any_bytes_are_harmless(words: str, data: bytes) -> None:
    harmless(Coding(words, plan()), data)
    harmless(Coding(words, plan()), zlib.compress(data))


@pytest.mark.parametrize("scale", [np.nan, np.inf, -np.inf, -1.0, 3.4e38])
@pytest.mark.parametrize("words", ["int8", "int4"])
def test_a_scale_that_is_none_is_refused(words: str, scale: float) -> None:
    coding, data = valid(words)
    assert not harmless(coding, data[:8] + struct.pack("<f", scale) + data[12:])
    assert harmless(coding, data[:8] + struct.pack("<f", 1e30) + data[12:])


def test_levels_beyond_the_greatest_are_refused() -> None:
    coding, data = valid("int8")
    assert not harmless(coding, data[:-1] + b"\x80")  # -128
    coding, data = valid("int4")
    assert not harmless(coding, data[:-2] + b"\x08" + data[-1:])  # -8
    assert not harmless(coding, data[:-1] + bytes([data[-1] | 0x10]))  # a 366th number


@pytest.mark.parametrize("words", ["float16", "bfloat16", "sparse", "topk:0.5"])
def test_numbers_that_are_not_finite_are_refused(words: str) -> None:
    coding, data = valid(words)
    assert not harmless(coding, data[:-4] + b"\xff\x7f\xff\x7f")


def coded(body: bytes, words: str = "sparse+int8") -> bool:
    """Whether places and numbers are taken that follow the tensor that crosses as it is."""
    return harmless(Coding(words, plan()), struct.pack("<q", 7) + body)


def numbers_of(count: int) -> bytes:
    return struct.pack("<ff", 1, 1) + bytes([1]) * count


def test_places_that_are_not_there_are_refused() -> None:
    size = 365
    good = places.encode(np.array([3, size - 1]), size)
    assert coded(good + numbers_of(2))
    assert not coded(places.encode(np.array([3, size]), size) + numbers_of(2))  # outside
    assert not coded(places.encode(np.array([3, 1 << 20]), size) + numbers_of(2))
    assert not coded((3).to_bytes(4, "little") + good[4:] + numbers_of(3))  # more than there are
    assert not coded((1 << 31).to_bytes(4, "little") + good[4:] + numbers_of(2))
    assert not coded((0).to_bytes(4, "little") + good[4:] + numbers_of(2))  # fewer
    assert not coded(good[:-1] + bytes([good[-1] | 0x80]) + numbers_of(2))  # a place too many
    assert not coded(good[:-1] + numbers_of(2))
    one = places.encode(np.array([3]), size)  # 8 low bits fill their byte; of 3 places 6 each do not
    assert coded(one + numbers_of(1))
    three = bytearray(places.encode(np.array([3, 5, 7]), size))
    three[4 + 2] |= 0x80
    assert not coded(bytes(three) + numbers_of(3))


def test_more_numbers_than_topk_sends_are_refused() -> None:
    for count, taken in ((73, True), (74, False)):
        body = places.encode(np.arange(count), 365) + numbers_of(count)
        assert coded(body, "topk:0.2+int8") == taken


def test_what_unpacks_to_more_than_an_upload_can_have_is_not_unpacked() -> None:
    """Megabytes of zeros for a model of 4 KiB: no more than that is ever made of them."""
    coding = Coding("int8+zlib", plan((1024,)))
    good = coding.encode({"delta": Tree({"w": np.ones(1024, "f4")})}, 1).data
    coding.decode(good)
    bomb = zlib.compress(bytes(10 << 20), 9)[: coding.size.bytes]
    little = zlib.compress(bytes(1029))
    assert 200 < len(bomb) <= coding.size.bytes
    tracemalloc.start()
    try:
        for data in (bomb, little):
            with pytest.raises(CodecError, match="unpacks to more than the 1028"):
                coding.decode(data)
        assert tracemalloc.get_traced_memory()[1] < 64 << 10
    finally:
        tracemalloc.stop()


def test_an_upload_that_is_longer_than_possible_is_not_looked_at() -> None:
    for words in WORDS:
        coding = Coding(words, plan())
        with pytest.raises(CodecError, match=r"upload of pi-07: .* at most"):
            coding.decode(bytes(coding.size.bytes + 1), where="upload of pi-07")
