"""Codecs of uploads: what arrives, in how many bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from _coded_plans import PLAN, SHAPES, plan_of, upload_of
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from edgepfl import codec as safetensors
from edgepfl.coding import Codec, Coding, Numbers, codec_of, places
from edgepfl.errors import CodecError, ConfigError
from edgepfl.tree import Tree, Trees

CHOICES = ("", "sparse", "topk:0.2", "threshold:0.5")
FORMS = ("", "float16", "bfloat16", "int8", "int4")
EVERY = [
    "+".join(part for part in (choice, form, packed) if part)
    for choice in CHOICES
    for form in FORMS
    for packed in ("", "zlib")
]
"""Every codec, the one that changes nothing first."""

FLOATS = st.floats(-(2.0**100), 2.0**100, width=32)
VECTORS = arrays.arrays(np.float32, st.integers(1, 300), elements=FLOATS)


def flat(trees: Trees) -> NDArray[Any]:
    """All numbers, in the order of their names."""
    return np.concatenate([array.reshape(-1) for _, tree in sorted(trees.items()) for array in tree.values()])


def sent(words: str, vector: NDArray[np.float32], seed: int = 1) -> NDArray[np.float32]:
    """What arrives of one tensor."""
    coding = Coding(words, plan_of({"delta": {"a": vector.shape}}))
    encoded = coding.encode({"delta": Tree({"a": vector})}, seed)
    found = coding.decode(encoded.data)["delta"]["a"]
    assert found.tobytes() == encoded.decoded["delta"]["a"].tobytes()
    return np.asarray(found)


def test_words_name_a_codec_in_any_order() -> None:
    assert codec_of("") == Codec()
    assert codec_of("zlib+int8+topk:0.05") == codec_of("topk:0.05+int8+zlib")
    assert codec_of("topk:0.05+int8").numbers is Numbers.INT8
    assert [codec_of(words).biased for words in ("sparse", "int4", "topk:0.1", "threshold:2+int8")] == [
        False, False, True, True,
    ]  # fmt: skip
    assert [codec_of(words).lossless for words in ("", "sparse+zlib", "zlib", "float16", "topk:0.5")] == [
        True, True, True, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("int9", "no such part"),
        ("float32", "no such part"),
        ("int8+", "no such part"),
        ("int8+int4", "second form"),
        ("sparse+topk:0.1", "second choice"),
        ("topk", "needs a fraction"),
        ("topk:1", "needs a fraction"),
        ("topk:nan", "needs a fraction"),
        ("topk:much", "no number"),
        ("threshold:0", "needs a magnitude"),
        ("threshold:inf", "needs a magnitude"),
        ("int8:3", "have an amount"),
        ("zlib+zlib", "second packing"),
        ("z" * 65, "no codec"),
    ],
)
def test_words_that_name_none_are_refused_with_the_reason(words: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        codec_of(words)
    assert "topk:0.05+int8+zlib" in str(caught.value)


@pytest.mark.parametrize("words", EVERY)
def test_what_arrives_is_what_the_device_thinks_arrived_and_the_size_is_foretold(words: str) -> None:
    coding = Coding(words, PLAN)
    for number in range(5):
        upload = upload_of(number)
        encoded = coding.encode(upload, seed=number)
        found = coding.decode(encoded.data)
        assert {(s, n): (a.dtype, a.shape) for s, tree in found.items() for n, a in tree.items()} == SHAPES
        for slot, tree in found.items():
            for name, array in tree.items():
                assert array.tobytes() == np.asarray(encoded.decoded[slot][name]).tobytes()
                array[...] = 0  # it may be written to
        size = coding.size
        assert len(encoded.data) == size.bytes if size.exact else len(encoded.data) <= size.bytes
        assert encoded.data == coding.encode(upload, seed=number).data


@pytest.mark.parametrize("words", EVERY)
def test_only_tensors_of_the_models_shape_are_coded(words: str) -> None:
    """Not sums of another shape, running statistics or integers."""
    coding, upload = Coding(words, PLAN), upload_of(3)
    found = coding.decode(coding.encode(upload, 1).data)
    for slot, name in [("precision", ""), ("delta", "bn.mean"), ("delta", "count")]:
        np.testing.assert_array_equal(found[slot][name], upload[slot][name])


@given(VECTORS)
def test_codecs_without_loss_lose_nothing(vector: NDArray[np.float32]) -> None:
    vector[::3] = 0
    for words in ("zlib", "sparse", "sparse+zlib"):
        np.testing.assert_array_equal(sent(words, vector), vector)


@given(VECTORS)
def test_float16_and_bfloat16_are_the_nearest_and_never_infinite(vector: NDArray[np.float32]) -> None:
    nearest = np.clip(vector.astype(np.float64), -65504, 65504).astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(sent("float16", vector), nearest)
    found = sent("bfloat16", vector).astype(np.float64)
    assert (np.abs(found - vector) <= np.maximum(np.abs(vector) * 2.0**-8, 1e-40)).all()
    assert (found.astype(np.float32).view(np.uint32) & 0xFFFF == 0).all()


def test_bfloat16_rounds_halves_to_even_and_stops_at_its_greatest() -> None:
    halves = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0xFF7FFFFF], np.uint32).view(np.float32)
    expected = np.array([0x3F800000, 0x3F820000, 0x3F810000, 0x7F7F0000, 0xFF7F0000], np.uint32)
    np.testing.assert_array_equal(sent("bfloat16", halves).view(np.uint32), expected)


@given(VECTORS, st.integers(0, 1 << 40))
def test_integers_are_within_a_level_and_zeros_stay(vector: NDArray[np.float32], seed: int) -> None:
    vector[::4] = 0
    for words, levels in (("int8", 127), ("int4", 7)):
        found = sent(words, vector, seed)
        level = float(np.abs(vector).max()) / levels
        assert (np.abs(found.astype(np.float64) - vector) <= level * 1.0001 + 1e-36).all()
        assert (found[vector == 0] == 0).all()


@pytest.mark.parametrize(("words", "levels"), [("int8", 127), ("int4", 7), ("topk:0.99+int8", 127)])
def test_integers_are_right_in_the_mean(words: str, levels: int) -> None:
    """Of 4,000 seeds: the mean of rounding errors of at most a level is within 5 of its standard deviations of 0."""
    vector = np.linspace(-1, 0.93, 41, dtype=np.float32) ** 3
    vector[0] = -1
    coding = Coding(words, plan_of({"delta": {"a": vector.shape}}))
    mean = np.mean([coding.encode({"delta": Tree({"a": vector})}, s).decoded["delta"]["a"] for s in range(4000)], 0)
    kept = np.abs(vector) > np.abs(vector).min()
    deviation = 0.5 / levels / math.sqrt(4000)
    assert np.abs(mean - vector)[kept].max() < 5 * deviation
    plain = np.round(vector * levels) / levels
    assert np.abs(plain - vector).max() > 10 * deviation  # rounding to the nearest would fail


def test_seeds_decide_the_rounding_of_each_slot() -> None:
    vector = np.linspace(-1, 1, 1000, dtype=np.float32)
    coding = Coding("int4", plan_of({"one": {"a": (1000,)}, "two": {"a": (1000,)}}))
    upload = {name: Tree({"a": vector}) for name in ("one", "two")}
    first, again, other = (coding.encode(upload, seed) for seed in (1, 1, 2))
    assert first.data == again.data != other.data
    assert first.decoded["one"]["a"].tobytes() != first.decoded["two"]["a"].tobytes()


@pytest.mark.parametrize("least", [0.0, 1e-45, 1e-38, 1e-37, 3e38])
def test_the_smallest_and_greatest_numbers_have_scales(least: float) -> None:
    vector = np.array([least, -least, 0], np.float32)
    for words in ("int8", "int4"):
        found = sent(words, vector)
        assert np.isfinite(found).all()
        assert np.abs(found.astype(np.float64) - vector).max() <= max(1.2e-38 * 127, 1e-6 * least)


@given(VECTORS, st.floats(0.01, 0.99))
def test_topk_takes_the_greatest_over_the_whole_slot(vector: NDArray[np.float32], fraction: float) -> None:
    cut = len(vector) // 2
    parts = {"a": vector[:cut], "b": vector[cut:]} if cut else {"a": vector}
    coding = Coding(f"topk:{fraction!r}", plan_of({"delta": {name: part.shape for name, part in parts.items()}}))
    found = flat(coding.encode({"delta": Tree(parts)}, 1).decoded)
    most = math.ceil(fraction * len(vector))
    order = np.lexsort((np.arange(len(vector)), -np.abs(vector)))[:most]  # the first of equals
    expected = np.zeros_like(vector)
    expected[order] = vector[order]
    np.testing.assert_array_equal(found, expected)


@given(VECTORS, st.floats(1e-3, 1e3))
def test_threshold_takes_what_is_as_great(vector: NDArray[np.float32], least: float) -> None:
    np.testing.assert_array_equal(sent(f"threshold:{least!r}", vector), np.where(np.abs(vector) >= least, vector, 0))


@given(st.lists(VECTORS.map(lambda v: np.clip(v, -1e3, 1e3)), min_size=1, max_size=6), st.sampled_from(CHOICES[2:]))
def test_what_is_left_out_comes_later(vectors: list[NDArray[np.float32]], choice: str) -> None:
    """Error feedback: all that was sent and what is still owed is all that was to be sent."""
    size = min(map(len, vectors))
    for form in ("", "+float16", "+int8"):
        coding = Coding(choice + form, plan_of({"delta": {"a": (size,)}}))
        residual, arrived, due = coding.none_left(), np.zeros(size), np.zeros(size)
        for number, vector in enumerate(vectors):
            encoded = coding.encode({"delta": Tree({"a": vector[:size]})}, number, residual)
            residual = dict(encoded.residual)
            arrived += encoded.decoded["delta"]["a"]
            due += vector[:size]
        assert residual.keys() == {"residual.delta"}
        np.testing.assert_allclose(arrived + residual["residual.delta"]["a"], due, rtol=0, atol=2e-2)


def test_codecs_that_round_owe_nothing() -> None:
    for words in EVERY:
        coding = Coding(words, PLAN)
        owed = {"residual.delta"} if coding.codec.biased else set()
        assert coding.encode(upload_of(1), 1, coding.none_left()).residual.keys() == owed == coding.residuals.keys()


def test_places_are_near_the_least_that_any_code_can_do_with() -> None:
    """Within 4 % of the entropy of independent choices; half of all numbers are a bitmap."""
    rng = np.random.default_rng(1)
    for fraction in (0.001, 0.01, 0.05, 0.1, 0.3):
        vector = np.where(rng.random(200_000) < fraction, 1, 0).astype(np.float32)
        coding = Coding("sparse+int8", plan_of({"delta": {"a": vector.shape}}))
        size = len(coding.encode({"delta": Tree({"a": vector})}, 1).data) - 4 - 4 - np.count_nonzero(vector)
        share = np.count_nonzero(vector) / len(vector)
        entropy = -share * math.log2(share) - (1 - share) * math.log2(1 - share)
        assert size < 1.04 * entropy * len(vector) / 8
    half = np.where(rng.random(200_000) < 0.5, 1, 0).astype(np.float32)
    data = Coding("sparse+int8", plan_of({"delta": {"a": half.shape}})).encode({"delta": Tree({"a": half})}, 1).data
    assert len(data) == 4 + 4 + 25_000 + np.count_nonzero(half)


@pytest.mark.parametrize("words", ["int8", "float16", "topk:0.5", "zlib"])
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused(words: str, number: float) -> None:
    with pytest.raises(CodecError, match="not finite"):
        Coding(words, plan_of({"delta": {"a": (2,)}})).encode({"delta": Tree({"a": np.array([1, number], "f4")})}, 1)


def test_without_words_it_is_safetensors() -> None:
    upload = upload_of(1)
    coding = Coding("", PLAN)
    assert coding.encode(upload, 1).data == safetensors.encode(upload)
    assert coding.decode(safetensors.encode(upload)).keys() == upload.keys()


def test_a_slot_without_tensors_and_a_slot_of_zeros_cross() -> None:
    shapes: Mapping[str, Mapping[str, tuple[int, ...]]] = {"delta": {}, "zero": {"a": (9,)}}
    for words in EVERY:
        coding = Coding(words, plan_of(shapes))
        found = coding.decode(coding.encode({"delta": Tree({}), "zero": Tree({"a": np.zeros(9, "f4")})}, 1).data)
        assert found["delta"] == Tree({})
        assert not found["zero"]["a"].any()


def test_no_places_are_longer_than_foretold() -> None:
    """Of every count of numbers, wherever they are: the longest codes are those of the last places."""
    for size in (*range(1, 70), 1000, 4099):
        longest = 0
        counts = range(size + 1) if size < 70 else range(0, size + 1, 7)
        for count in counts:
            last = np.arange(size - count, size)
            data = places.encode(last, size)
            longest = max(longest, len(data))
            assert longest <= places.most_bytes(count, size)
            found, rest = places.decode(memoryview(data + b"rest"), size, count, "here")
            assert found.tolist() == last.tolist()
            assert bytes(rest) == b"rest"


@given(st.sets(st.integers(0, 2999), max_size=400))
def test_any_places_come_back(chosen: set[int]) -> None:
    data = places.encode(np.array(sorted(chosen), np.int64), 3000)
    found, rest = places.decode(memoryview(data), 3000, 3000, "here")
    assert found.tolist() == sorted(chosen)
    assert not rest
    assert len(data) <= places.most_bytes(len(chosen), 3000)
