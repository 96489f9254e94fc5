from __future__ import annotations

import json
import struct
from random import Random

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepfl import codec
from edgepfl.errors import CodecError
from edgepfl.plan import TensorSpec
from edgepfl.tree import Tree, Trees

FLOATS = st.floats(width=32, allow_nan=True, allow_infinity=True, allow_subnormal=True)
SHAPES = arrays.array_shapes(min_dims=0, max_dims=3, max_side=4)
TENSORS = st.one_of(arrays.arrays(np.float32, SHAPES, elements=FLOATS), arrays.arrays(np.int64, SHAPES))
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6)
SLOTS = st.text("abcxyz_", min_size=1, max_size=4)
TREES = st.dictionaries(SLOTS, st.dictionaries(NAMES, TENSORS, max_size=3).map(Tree), max_size=3)


def declared(trees: Trees) -> dict[str, dict[str, TensorSpec]]:
    return {
        slot: {name: TensorSpec(tensor.shape, str(tensor.dtype)) for name, tensor in tree.items()}
        for slot, tree in trees.items()
    }


def bits(trees: Trees) -> dict[str, dict[str, tuple[tuple[int, ...], str, bytes]]]:
    return {
        slot: {name: (t.shape, str(t.dtype), t.tobytes()) for name, t in tree.items()} for slot, tree in trees.items()
    }


@given(TREES)
def test_what_was_encoded_comes_back_bit_for_bit(trees: dict[str, Tree]) -> None:
    data = codec.encode(trees)
    back = codec.decode(data, declared(trees))
    assert bits(back) == bits(trees)
    assert codec.encode(back) == data


@given(TREES, st.randoms())
def test_the_same_values_give_the_same_bytes_in_any_order(trees: dict[str, Tree], random: Random) -> None:
    slots = list(trees)
    random.shuffle(slots)
    again = {slot: Tree({name: trees[slot][name].copy() for name in reversed(list(trees[slot]))}) for slot in slots}
    assert codec.encode(again) == codec.encode(trees)


def test_other_values_give_other_bytes() -> None:
    zero, minus = (codec.encode({"w": Tree({"a": np.array([value], np.float32)})}) for value in (0.0, -0.0))
    other = codec.encode({"v": Tree({"a": np.array([0.0], np.float32)})})
    assert zero != minus
    assert zero != other


def test_the_memory_layout_does_not_matter() -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    layouts = [values, np.asfortranarray(values), np.repeat(values, 2, axis=1)[:, ::2], values.astype(">f4")]
    encoded = {codec.encode({"w": Tree({"a": layout})}) for layout in layouts}
    assert len(encoded) == 1
    back = codec.decode(encoded.pop(), {"w": {"a": TensorSpec((2, 3))}})
    np.testing.assert_array_equal(back["w"]["a"], values)


def test_a_scalar_keeps_having_no_dimensions() -> None:
    trees = {"alpha": Tree.scalar(np.float32(0.5))}
    back = codec.decode(codec.encode(trees), {"alpha": {"": TensorSpec(())}})
    assert back["alpha"].value.shape == ()
    assert back["alpha"].value == 0.5


EXPECTED = {"w": {"a": TensorSpec((2,)), "b": TensorSpec((2, 2))}, "n": {"": TensorSpec((), "int64")}}
GOOD = {
    "w": Tree({"a": np.ones(2, np.float32), "b": np.ones((2, 2), np.float32)}),
    "n": Tree.scalar(np.array(3, np.int64)),
}
VALID = codec.encode(GOOD)
A = np.ones(2, np.float32)
B = np.ones((2, 2), np.float32)

WRONG: dict[str, tuple[Trees, str]] = {
    "missing tensor": ({**GOOD, "w": Tree({"a": A})}, "'w/b' is missing"),
    "missing slot": ({"w": GOOD["w"]}, "'n/' is missing"),
    "extra tensor": ({**GOOD, "w": Tree({"a": A, "b": B, "c": A})}, "'w/c' was not declared"),
    "extra slot": ({**GOOD, "keep": Tree({"a": A})}, "'keep/a' was not declared"),
    "other shape": ({**GOOD, "w": Tree({"a": A, "b": np.ones(4, np.float32)})}, "float32[4], declared float32[2, 2]"),
    "other rank": ({**GOOD, "w": Tree({"a": A[:, None], "b": B})}, "float32[2, 1], declared float32[2]"),
    "wider dtype": ({**GOOD, "w": Tree({"a": np.ones(2), "b": B})}, "float64[2], declared float32[2]"),
    "same width": ({**GOOD, "w": Tree({"a": np.ones(2, np.int32), "b": B})}, "int32[2], declared float32[2]"),
    "narrower": ({**GOOD, "w": Tree({"a": np.ones(2, np.float16), "b": B})}, "float16[2], declared float32[2]"),
    "nothing": ({}, "is missing"),
}


@pytest.mark.parametrize(("trees", "problem"), WRONG.values(), ids=WRONG.keys())
def test_tensors_other_than_declared_are_refused(trees: Trees, problem: str) -> None:
    with pytest.raises(CodecError) as caught:
        codec.decode(codec.encode(trees), EXPECTED, where="upload")
    assert problem in caught.value.what
    assert caught.value.where == "upload"


def raw(header: bytes | dict[str, object], body: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file by hand."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def one(dtype: str, shape: list[int], end: int, name: str = "w/a", start: int = 0) -> dict[str, object]:
    return {name: {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}}


HOSTILE = {
    "empty": b"",
    "short": b"\x01\x02\x03",
    "header longer than the file": raw(b"{}", length=1 << 30),
    "header of 2^63 bytes": raw(b"{}", length=1 << 63),
    "header of 2^64 - 1 bytes": raw(b"{}", length=(1 << 64) - 1),
    "no json": raw(b"\xff\xfe\x00"),
    "a list": raw(b"[]"),
    "deep json": raw(b"[" * 200_000 + b"]" * 200_000),
    "deep json in a tensor": raw(b'{"w/a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"),
    "half a surrogate": raw(b'{"\\ud800": 1}'),
    "unknown dtype": raw(one("F99", [2], 8), bytes(8)),
    "bfloat16": raw(one("BF16", [2], 4), bytes(4)),
    "float8": raw(one("F8_E4M3", [2], 2), bytes(2)),
    "float4": raw(one("F4", [2], 1), bytes(1)),
    "complex": raw(one("C64", [2], 16), bytes(16)),
    "overflowing shape": raw(one("F32", [1 << 40, 1 << 40], 8), bytes(8)),
    "empty tensor of a huge shape": raw(one("F32", [0, 1 << 62], 0)),
    "negative shape": raw(one("F32", [-2], 8), bytes(8)),
    "offsets past the end": raw(one("F32", [2], 1 << 40), bytes(8)),
    "offsets reversed": raw(one("F32", [2], 0, start=8), bytes(8)),
    "overlapping tensors": raw(one("F32", [2], 8) | one("F32", [2], 8, "w/b"), bytes(8)),
    "bytes left over": raw(one("F32", [2], 8), bytes(16)),
    "body shorter than said": raw(one("F32", [2], 8), bytes(4)),
    "pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00cos\nsystem\n.",
    "zip": b"PK\x03\x04" + bytes(60),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_bytes_raise_nothing_but_codec_error(data: bytes) -> None:
    with pytest.raises(CodecError) as caught:
        codec.decode(data, {"w": {"a": TensorSpec((2,))}}, where="upload")
    assert caught.value.where == "upload"


def test_too_long_is_refused_before_it_is_parsed() -> None:
    most = sum(spec.nbytes for specs in EXPECTED.values() for spec in specs.values()) + codec.HEADER_LIMIT
    with pytest.raises(CodecError, match=f"at most {most}"):
        codec.decode(VALID + bytes(most), EXPECTED)
    with pytest.raises(CodecError, match="not safetensors"):
        codec.decode(VALID + bytes(most - len(VALID)), EXPECTED)


def test_every_truncation_is_refused() -> None:
    for end in range(len(VALID)):
        with pytest.raises(CodecError):
            codec.decode(VALID[:end], EXPECTED)
    assert bits(codec.decode(VALID, EXPECTED)) == bits(GOOD)


@given(st.lists(st.tuples(st.integers(0, len(VALID) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_mutated_bytes_give_declared_tensors_or_codec_error(changes: list[tuple[int, int]]) -> None:
    data = bytearray(VALID)
    for place, byte in changes:
        data[place] = byte
    try:
        trees = codec.decode(bytes(data), EXPECTED)
    except CodecError as error:
        assert error.what  # noqa: PT017  either outcome is right, and each is looked at
    else:
        assert declared(trees) == EXPECTED


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    for candidate in (data, raw(data), raw(b"{" + data + b"}")):
        with pytest.raises(CodecError):
            codec.decode(candidate, EXPECTED)


def test_tensors_are_views_of_bytes_that_can_be_written_to() -> None:
    data = bytearray(VALID)
    trees = codec.decode(data, EXPECTED)
    trees["w"]["b"][1, 1] = 7.0
    assert codec.decode(data, EXPECTED)["w"]["b"].tolist() == [[1.0, 1.0], [1.0, 7.0]]
    apart = codec.decode(VALID, EXPECTED)
    apart["w"]["b"][1, 1] = 7.0  # a copy, so that it can be written to
    assert bits(codec.decode(VALID, EXPECTED)) == bits(GOOD)
    assert bits(codec.decode(memoryview(VALID), EXPECTED)) == bits(GOOD)


def test_tensors_that_do_not_lie_as_they_must_are_copied() -> None:
    padded = {"w/a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    for spaces in range(8):
        data = bytearray(raw(json.dumps(padded).encode() + b" " * spaces, np.array([3, 4], np.float32).tobytes()))
        array = codec.decode(data, {"w": {"a": TensorSpec((2,))}})["w"]["a"]
        assert array.flags.aligned
        assert array.tolist() == [3.0, 4.0]


PLACES = {
    "a hole": ([0, 8], [12, 20]),
    "overlap": ([0, 8], [4, 12]),
    "the same place": ([0, 8], [0, 8]),
    "not from the beginning": ([4, 12], [12, 20]),
    "longer than it is": ([0, 12], [12, 20]),
    "shorter than it is": ([0, 4], [4, 12]),
    "past the end": ([0, 8], [1 << 40, (1 << 40) + 8]),
}


@pytest.mark.parametrize(("first", "second"), PLACES.values(), ids=PLACES.keys())
def test_tensors_lie_one_after_the_other(first: list[int], second: list[int]) -> None:
    def at(*places: list[int]) -> bytes:
        records: dict[str, object] = {
            f"w/{name}": {"dtype": "F32", "shape": [2], "data_offsets": place}
            for name, place in zip("ab", places, strict=True)
        }
        return raw(records, bytes(min(64, max(end for _, end in places))))

    expected = {"w": dict.fromkeys("ab", TensorSpec((2,)))}
    with pytest.raises(CodecError, match="not safetensors"):
        codec.decode(at(first, second), expected)
    assert codec.decode(at([8, 16], [0, 8]), expected)["w"].keys() == {"a", "b"}


def test_what_is_no_record_is_refused() -> None:
    good: dict[str, object] = one("F32", [2], 8)
    for extra in (
        {"__metadata__": {"format": "pt"}},
        {"w/a": {**good["w/a"], "more": 1}},  # type: ignore[dict-item]  # it is a mapping
        {"w/a": {"dtype": "F32", "shape": [1] * 9, "data_offsets": [0, 4]}},
        {"w/a": {"dtype": "F32", "shape": [2.5], "data_offsets": [0, 8]}},
        {"w/a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8, 8]}},
        {"w/a": {"dtype": "F32", "shape": [2]}},
    ):
        with pytest.raises(CodecError):
            codec.decode(raw({**good, **extra}, bytes(8)), {"w": {"a": TensorSpec((2,))}})
    assert codec.decode(raw(good, bytes(8)), {"w": {"a": TensorSpec((2,))}})["w"]["a"].tolist() == [0.0, 0.0]
