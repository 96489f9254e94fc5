"""What is refused before and after an upload is fetched, and what passes unchanged."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from coordinator.screen import check_report, screen
from edgepfl import codec
from edgepfl.errors import CodecError
from edgepfl.plan import BatchPlan, ExampleSpec, Plan, Reduce, Shape, TensorSpec, down, keep, resolve, up
from edgepfl.tree import Tree
from edgepfl.wire import BlobRef, Report

MODEL = {"bias": TensorSpec((2,)), "weight": TensorSpec((3, 2))}
SLOTS = resolve(
    {"w": down(), "v": keep(first="w"), "delta": up(Reduce.MEAN), "spread": up(Reduce.SUM, Shape.SCALAR)}, MODEL, ()
)
MOST = 1000
STEPS = 12
PLAN = Plan("toy", {}, {}, {}, SLOTS, {}, BatchPlan(4, (ExampleSpec((3,)),), ExampleSpec(())), MODEL, ("own",))
BYTES = 4 * (2 + 6 + 1)
FLOATS = arrays.arrays(np.float32, 9, elements=st.floats(-1e9, 1e9, width=32))


def upload(row: np.ndarray[tuple[int], np.dtype[np.float32]]) -> bytes:
    delta = Tree({"bias": row[:2], "weight": row[2:8].reshape(3, 2)})
    return codec.encode({"delta": delta, "spread": Tree.scalar(row[8])})


def report(size: int = 100, *, examples: int = 5, steps: int = 10) -> Report:
    ref = BlobRef("a" * 64, size)
    return Report("pi-07", 1, "run", 1, 0, examples, steps, ref, {}, {}, "0" * 64)


@given(FLOATS)
def test_what_was_declared_passes_unchanged(row: np.ndarray[tuple[int], np.dtype[np.float32]]) -> None:
    trees = screen(upload(row), PLAN, device="pi-07", max_norm=1e20)
    assert trees.keys() == {"delta", "spread"}
    assert np.array_equal(trees["delta"]["weight"], row[2:8].reshape(3, 2))
    assert trees["spread"].value == row[8]


@given(FLOATS, st.floats(1.0, 1e10))
def test_the_norm_is_each_slots_own(row: np.ndarray[tuple[int], np.dtype[np.float32]], limit: float) -> None:
    worst = max(math.hypot(*map(float, row[:8])), abs(float(row[8])))
    if worst > limit * (1 + 1e-9):
        with pytest.raises(CodecError, match="has norm"):
            screen(upload(row), PLAN, device="pi-07", max_norm=limit)
    elif worst < limit * (1 - 1e-9):
        assert screen(upload(row), PLAN, device="pi-07", max_norm=limit)["spread"].value == row[8]


def test_a_norm_that_float32_cannot_hold_is_a_number_still() -> None:
    row = np.full(9, 3e38, np.float32)
    with pytest.raises(CodecError, match=r"delta has norm 8\.49e\+38"):
        screen(upload(row), PLAN, device="pi-07", max_norm=1e30)
    assert screen(upload(row), PLAN, device="pi-07", max_norm=1e39)["spread"].value == np.float32(3e38)


@pytest.mark.parametrize("at", [0, 5, 8])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_value_that_is_not_finite(at: int, value: float) -> None:
    row = np.zeros(9, np.float32)
    row[at] = value
    with pytest.raises(CodecError, match="is not finite") as caught:
        screen(upload(row), PLAN, device="pi-07", max_norm=1e30)
    assert caught.value.where == "upload of pi-07"


def test_a_report_is_refused_before_its_upload_is_fetched() -> None:
    most = BYTES + codec.HEADER_LIMIT
    for steps in (1, STEPS):  # a slow device's part counts
        check_report(report(most, steps=steps), PLAN, steps=STEPS, max_examples=MOST)
    refused = {
        f"at most {most} are possible": report(most + 1),
        "it trained on no examples": report(examples=0),
        f"it claims {MOST + 1} examples, at most {MOST} are allowed": report(examples=MOST + 1),
        "it took no step": report(steps=0),
        f"it claims {STEPS + 1} steps, and the round has {STEPS}": report(steps=STEPS + 1),
        "it has no upload": msgspec.structs.replace(report(), upload=None),
    }
    for words, each in refused.items():
        with pytest.raises(CodecError, match=words) as caught:
            check_report(each, PLAN, steps=STEPS, max_examples=MOST)
        assert caught.value.where == "report of pi-07"


def test_where_nothing_is_trained_nothing_is_uploaded() -> None:
    nothing = msgspec.structs.replace(report(examples=0), upload=None)
    check_report(nothing, PLAN, steps=0, max_examples=MOST)
    with pytest.raises(CodecError, match="nothing was to be trained") as caught:
        check_report(report(), PLAN, steps=0, max_examples=MOST)
    assert "pi-07" in caught.value.where


def test_a_tensor_longer_than_a_block_is_looked_at_whole() -> None:
    size = 3 * (1 << 17) + 5
    plan = msgspec.structs.replace(PLAN, slots=resolve({"delta": up(Reduce.MEAN)}, {"w": TensorSpec((size,))}, ()))
    tensor = np.full(size, 2.0, np.float32)
    norm = 2 * math.sqrt(size)
    for at in (0, 1 << 17, size - 1):
        bad = tensor.copy()
        bad[at] = math.nan
        with pytest.raises(CodecError, match="delta/w is not finite"):
            screen(codec.encode({"delta": Tree({"w": bad})}), plan, device="pi-07", max_norm=1e30)
    data = codec.encode({"delta": Tree({"w": tensor})})
    assert screen(data, plan, device="pi-07", max_norm=norm * (1 + 1e-9)).keys() == {"delta"}
    with pytest.raises(CodecError, match="has norm"):
        screen(data, plan, device="pi-07", max_norm=norm * (1 - 1e-9))
