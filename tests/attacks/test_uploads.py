"""Threat: a device uploads bytes that would poison the model: not finite, enormous, misshapen, or more than asked."""

from __future__ import annotations

import math

import numpy as np
import pytest

from coordinator.screen import screen
from edgepfl import codec
from edgepfl.errors import CodecError
from edgepfl.plan import BatchPlan, ExampleSpec, Plan, Reduce, TensorSpec, down, keep, resolve, up
from edgepfl.tree import Tree, Trees

MODEL = {"bias": TensorSpec((2,)), "weight": TensorSpec((3, 2))}
SLOTS = resolve({"w": down(), "v": keep(first="w"), "delta": up(Reduce.MEAN)}, MODEL, ())
PLAN = Plan("ditto", {}, {}, {}, SLOTS, {}, BatchPlan(4, (ExampleSpec((3,)),), ExampleSpec(())), MODEL, ("own",))


def delta(fill: float = 0.5, *, at: float | None = None, dtype: type[np.generic] = np.float32) -> Tree:
    weight = np.full((3, 2), fill, dtype)
    if at is not None:
        weight[1, 1] = at
    return Tree({"bias": np.full(2, fill, dtype), "weight": weight})


def check(data: bytes, max_norm: float = 100.0) -> Trees:
    return screen(data, PLAN, device="pi-07", max_norm=max_norm)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_value_that_is_not_finite_is_seen(value: float) -> None:
    data = codec.encode({"delta": delta(at=value)})
    carried = codec.decode(data, {"delta": MODEL})["delta"]["weight"]
    assert np.array_equal(carried[1, 1], np.float32(value), equal_nan=True)  # the codec changes nothing
    with pytest.raises(CodecError, match="delta/weight is not finite") as caught:
        check(data)
    assert "pi-07" in caught.value.where


def test_every_pattern_of_bits_that_is_no_number_is_seen() -> None:
    for pattern in (0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFF800001, 0xFFC00000, 0x7F800000, 0xFF800000):
        weight = np.zeros(6, np.uint32)
        weight[5] = pattern
        tree = Tree({"bias": np.zeros(2, np.float32), "weight": weight.view(np.float32).reshape(3, 2)})
        with pytest.raises(CodecError, match="not finite"):
            check(codec.encode({"delta": tree}))
    assert check(codec.encode({"delta": delta()})).keys() == {"delta"}


@pytest.mark.parametrize("fill", [1e3, 1e30, 3.4e38])
def test_an_enormous_upload_is_refused(fill: float) -> None:
    with pytest.raises(CodecError, match="norm"):
        check(codec.encode({"delta": delta(fill)}))
    assert check(codec.encode({"delta": delta(1.0)}))["delta"]["bias"].tolist() == [1.0, 1.0]


HOSTILE: dict[str, bytes] = {
    "a personal slot beside it": codec.encode({"delta": delta(), "v": delta()}),
    "the global slot instead": codec.encode({"w": delta()}),
    "one parameter missing": codec.encode({"delta": delta().like(["bias"])}),
    "one parameter more": codec.encode({"delta": delta() | Tree({"backdoor": np.ones(1, np.float32)})}),
    "transposed": codec.encode({"delta": delta() | Tree({"weight": np.ones((2, 3), np.float32)})}),
    "broadcastable": codec.encode({"delta": delta() | Tree({"weight": np.ones((1, 2), np.float32)})}),
    "doubles": codec.encode({"delta": delta(dtype=np.float64)}),
    "halves": codec.encode({"delta": delta(dtype=np.float16)}),
    "far too long": codec.encode({"delta": delta() | Tree({"weight": np.ones((3, 200_000), np.float32)})}),
    "a pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00cos\nsystem\n.",
    "nothing": b"",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_anything_but_the_declared_tensors_is_refused(data: bytes) -> None:
    with pytest.raises(CodecError) as caught:
        check(data)
    assert "pi-07" in caught.value.where
