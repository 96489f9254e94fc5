"""Folding: the same bits in any order, the same numbers as a float64 oracle, and no more memory for more devices."""

from __future__ import annotations

import gc
import hashlib
import itertools
import math
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from coordinator.exact import Grid
from coordinator.reduction import Reduction, Upload
from coordinator.transfer import Transfer
from edgepfl import codec
from edgepfl.algorithms import Cohort
from edgepfl.algorithms.fedavg import FedAvg
from edgepfl.bus.blobs import BlobStore
from edgepfl.errors import RunError
from edgepfl.plan import Reduce, SlotPlan, TensorSpec, Weighting, resolve, up
from edgepfl.tree import Tree, Trees

SPECS = {"a": TensorSpec((2,)), "b": TensorSpec((1, 3))}
SLOTS = resolve({"mean": up(Reduce.MEAN), "sum": up(Reduce.SUM), "stack": up(Reduce.STACK)}, SPECS, ())
NAMES = ("ant", "bee", "cat", "dog", "eel")
GRID = Grid.of(1e6, 1000)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
FLOATS = st.floats(-1e6, 1e6, width=32)
UPLOADS = st.lists(
    st.tuples(st.integers(1, 1000), arrays.arrays(np.float32, 5, elements=FLOATS)), min_size=5, max_size=5
)


def trees_of(row: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> Trees:
    tree = Tree({"a": row[:2].copy(), "b": row[2:].reshape(1, 3).copy()})
    return {"mean": tree, "sum": tree, "stack": tree}


def upload(examples: int, trees: Trees, steps: int = 3) -> Upload:
    return Upload(examples, steps, lambda: trees)


def reduced(
    uploads: Mapping[str, Upload],
    order: tuple[str, ...],
    *,
    cohort: tuple[str, ...] = NAMES,
    weighting: Weighting = Weighting.EXAMPLES,
    slots: Mapping[str, SlotPlan] = SLOTS,
    exact: Grid | None = None,
    device: str = "cpu",
) -> Cohort:
    reduction = Reduction(slots, cohort, weighting, device, exact=exact)
    for name in order:
        reduction.offer(name, uploads[name])
    return reduction.close(order)


def flat(trees: Trees) -> bytes:
    return b"".join(tensor.cpu().numpy().tobytes() for _, tree in sorted(trees.items()) for tensor in tree.values())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("exact", [None, GRID], ids=["in order", "exact"])
@settings(max_examples=10)  # of 120 orders each
@given(rows=UPLOADS)
def test_every_order_gives_the_same_bits(
    device: str, exact: Grid | None, rows: list[tuple[int, np.ndarray[tuple[int], np.dtype[np.float32]]]]
) -> None:
    uploads = {name: upload(examples, trees_of(row)) for name, (examples, row) in zip(NAMES, rows, strict=True)}
    first = reduced(uploads, NAMES, exact=exact, device=device)
    assert first.devices == NAMES
    for order in itertools.permutations(NAMES):
        cohort = ("aal", *NAMES) if order[0] == "cat" else NAMES  # who never reports
        got = reduced(uploads, order, cohort=cohort, exact=exact, device=device)
        assert (got.devices, got.examples) == (first.devices, first.examples)
        assert (flat(got.total), flat(got.stack)) == (flat(first.total), flat(first.stack))


@given(UPLOADS, st.sampled_from(list(Weighting)), st.integers(1, 5), st.sampled_from([None, GRID]))
def test_it_is_what_a_float64_oracle_says(
    rows: list[tuple[int, np.ndarray[tuple[int], np.dtype[np.float32]]]],
    weighting: Weighting,
    count: int,
    exact: Grid | None,
) -> None:
    uploads = {name: upload(examples, trees_of(row)) for name, (examples, row) in zip(NAMES, rows, strict=True)}
    got = reduced(uploads, NAMES[:count], weighting=weighting, exact=exact)
    weights = [examples if weighting is Weighting.EXAMPLES else 1 for examples, _ in rows[:count]]
    for at in range(5):
        column = [float(row[at]) for _, row in rows[:count]]
        mean = math.fsum(w * x for w, x in zip(weights, column, strict=True)) / sum(weights)
        tensor, index = ("a", (at,)) if at < 2 else ("b", (0, at - 2))
        near = 1e-6 * max(map(abs, column)) + (2e-45 if exact is None else 3e-18)  # what float32, or the grid, holds
        assert float(got.total["mean"][tensor][index]) == pytest.approx(mean, rel=1e-6, abs=near)
        assert float(got.total["sum"][tensor][index]) == pytest.approx(math.fsum(column), rel=1e-6, abs=near)
        assert [float(x) for x in got.stack["stack"][tensor][(slice(None), *index)]] == column
    assert got.total["mean"]["a"].dtype is torch.float32


def test_the_weights_are_the_examples_or_one() -> None:
    uploads = {"ant": upload(1, trees_of(np.zeros(5, np.float32))), "bee": upload(3, trees_of(np.ones(5, np.float32)))}
    by_examples = reduced(uploads, ("ant", "bee"), cohort=("ant", "bee"))
    assert by_examples.total["mean"]["a"].tolist() == [0.75, 0.75]
    assert by_examples.total["sum"]["a"].tolist() == [1.0, 1.0]
    assert (by_examples.examples, by_examples.steps) == ((1, 3), (3, 3))
    uniform = reduced(uploads, ("ant", "bee"), cohort=("ant", "bee"), weighting=Weighting.UNIFORM)
    assert uniform.total["mean"]["a"].tolist() == [0.5, 0.5]


def test_small_terms_beside_large_ones_are_not_lost() -> None:
    """Ten thousand ones beside 2^24: in float32 each of them would vanish."""
    rows = {f"d{k:05}": np.full(5, 1 if k else 1 << 24, np.float32) for k in range(10_001)}
    uploads = {name: upload(1, trees_of(row)) for name, row in rows.items()}
    got = reduced(uploads, tuple(rows), cohort=tuple(rows), slots={"sum": SLOTS["sum"]})
    assert got.total["sum"]["a"].tolist() == [float((1 << 24) + 10_000)] * 2
    assert len(got.devices) == 10_001


def test_a_second_upload_of_a_device_is_ignored() -> None:
    once, other = (upload(1, trees_of(np.full(5, value, np.float32))) for value in (1, 9))
    reduction = Reduction(SLOTS, NAMES, Weighting.EXAMPLES)
    for device, each in (("bee", once), ("bee", other), ("ant", once), ("ant", other), ("bee", other)):
        reduction.offer(device, each)
    got = reduction.close(("ant", "bee"))
    assert got.total["sum"]["a"].tolist() == [2.0, 2.0]
    assert got.devices == ("ant", "bee")


def test_an_upload_is_loaded_once_in_its_turn() -> None:
    loaded: list[str] = []

    def watch(name: str) -> Callable[[], Trees]:
        def load() -> Trees:
            loaded.append(name)
            return trees_of(np.ones(5, np.float32))

        return load

    reduction = Reduction(SLOTS, ("ant", "bee", "cat", "dog"), Weighting.UNIFORM)
    for name, so_far in (("cat", []), ("ant", ["ant"]), ("bee", ["ant", "bee", "cat"])):
        reduction.offer(name, Upload(1, 1, watch(name)))
        assert loaded == so_far
    assert reduction.close(("ant", "bee", "cat")).devices == ("ant", "bee", "cat")
    assert loaded == ["ant", "bee", "cat"]


@pytest.mark.parametrize("counted", [("ant",), ("ant", "bee", "cat"), ("ant", "dog")])
def test_it_closes_over_exactly_what_counts(counted: tuple[str, ...]) -> None:
    reduction = Reduction(SLOTS, NAMES, Weighting.EXAMPLES)
    for name in ("ant", "bee"):
        reduction.offer(name, upload(1, trees_of(np.ones(5, np.float32))))
    with pytest.raises(RunError, match="reports count"):
        reduction.close(counted)
    assert reduction.close(("ant", "bee")).devices == ("ant", "bee")


def test_memory_does_not_grow_with_the_cohort() -> None:
    specs = {"w": TensorSpec((100_000,))}
    slots = resolve({"mean": up(Reduce.MEAN), "sum": up(Reduce.SUM)}, specs, ())
    size = 4 * 100_000

    def peak(count: int) -> int:
        names = tuple(f"d{k:03}" for k in range(count))
        reduction = Reduction(slots, names, Weighting.EXAMPLES)

        def load() -> Trees:
            tree = Tree({"w": np.ones(100_000, np.float32)})
            return {"mean": tree, "sum": tree}

        tracemalloc.start()
        for name in reversed(names):  # the worst order: all of them wait until the close
            reduction.offer(name, Upload(1, 1, load))
        reduction.close(names)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    alive = peak(4), peak(64)
    assert alive[1] < alive[0] + size  # NumPy's arrays, which is what is loaded
    before = _tensors()
    reduction = Reduction(slots, [f"d{k}" for k in range(9)], Weighting.EXAMPLES)
    counts = []
    for k in range(9):
        reduction.offer(f"d{k}", Upload(1, 1, lambda: {n: Tree({"w": np.ones(100_000, np.float32)}) for n in slots}))
        counts.append(_tensors() - before)
    assert counts == [3] * 9  # torch's: one sum for each slot, and where numbers are converted


def _tensors() -> int:
    gc.collect()
    return sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())


@dataclass(frozen=True)
class Rebuilding(FedAvg):
    """FedAvg whose server computes two further slots from each upload."""

    rebuilt: ClassVar[Mapping[str, Reduce]] = {"rate": Reduce.SUM, "each": Reduce.STACK}

    def rebuild(self, upload: Trees, steps: int) -> Trees:
        assert {tensor.dtype for tree in upload.values() for tensor in tree.values()} == {torch.float64}
        return {"rate": upload["stack"] / steps, "each": upload["mean"] * steps}


@given(UPLOADS)
def test_what_is_rebuilt_from_an_upload_is_folded_like_what_was_sent(
    rows: list[tuple[int, np.ndarray[tuple[int], np.dtype[np.float32]]]],
) -> None:
    uploads = {
        name: upload(examples, trees_of(row), steps=place)
        for place, (name, (examples, row)) in enumerate(zip(NAMES, rows, strict=True), 1)
    }
    found = []
    for order in (NAMES, NAMES[::-1], ("cat", "ant", "eel", "bee", "dog")):
        reduction = Reduction(SLOTS, NAMES, Weighting.EXAMPLES, algorithm=Rebuilding())
        for device in order:
            reduction.offer(device, uploads[device])
        found.append(reduction.close(order))
    assert len({flat(got.total) + flat(got.stack) for got in found}) == 1
    got = found[0]
    assert [set(got.total), set(got.stack)] == [{"mean", "sum", "rate"}, {"stack", "each"}]
    steps = np.arange(1, 6)
    column = np.stack([row for _, row in rows]).astype(np.float64)
    rate = np.concatenate([tensor.numpy().ravel() for tensor in got.total["rate"].values()])
    each = np.concatenate([tensor.numpy().reshape(5, -1) for tensor in got.stack["each"].values()], 1)
    np.testing.assert_allclose(rate, (column / steps[:, None]).sum(0), rtol=1e-6, atol=1e-6 * np.abs(column).max())
    np.testing.assert_array_equal(each, (column * steps[:, None]).astype(np.float32))


def test_small_terms_that_are_rebuilt_are_not_lost_either() -> None:
    rows = {f"d{k:05}": np.full(5, 1 if k else 1 << 24, np.float32) for k in range(2001)}
    reduction = Reduction(SLOTS, rows, Weighting.UNIFORM, algorithm=Rebuilding())
    for name, row in rows.items():
        reduction.offer(name, upload(1, trees_of(row), steps=1))
    got = reduction.close(tuple(rows))
    assert got.total["rate"]["a"].tolist() == [float((1 << 24) + 2000)] * 2
    assert got.total["rate"]["a"].dtype is torch.float32


def test_it_says_what_the_round_and_the_run_were() -> None:
    reduction = Reduction(SLOTS, NAMES, Weighting.EXAMPLES)
    reduction.offer("bee", upload(4, trees_of(np.ones(5, np.float32)), steps=7))
    got = reduction.close(("bee",), number=9, fleet=("zebra", "ant", "bee"), statistics=("b",))
    assert (got.number, got.fleet, got.statistics) == (9, ("ant", "bee", "zebra"), ("b",))
    assert (got.devices, got.examples, got.steps) == (("bee",), (4,), (7,))


def test_tensors_longer_than_what_is_converted_at_a_time_are_folded_in_place() -> None:
    long = 2 * 262_144 + 5
    slots = resolve({"mean": up(Reduce.MEAN)}, {"w": TensorSpec((long, 1)), "s": TensorSpec(())}, ())
    source = np.random.default_rng(8)
    rows = [source.standard_normal(long).astype(np.float32) for _ in "ab"]
    reduction = Reduction(slots, "ab", Weighting.EXAMPLES)
    for name, row in zip("ab", rows, strict=True):
        trees = {"mean": Tree({"w": row.reshape(long, 1), "s": row[0]})}
        reduction.offer(name, upload(3 if name == "a" else 5, trees))
    total = reduction.close(tuple("ab")).total["mean"]
    wanted = ((3 * rows[0].astype(np.float64) + 5 * rows[1].astype(np.float64)) / 8).astype(np.float32)
    np.testing.assert_array_equal(total["w"].numpy().ravel(), wanted)
    assert float(total["s"]) == wanted[0]


def test_an_upload_is_folded_from_the_received_bytes(tmp_path: Path) -> None:
    """The tensors that are added lie in the memory that the blob was read into, and are not changed."""
    store = BlobStore(tmp_path)
    rooms: list[bytearray] = []

    def room(size: int) -> bytearray:
        rooms.append(bytearray(size))
        return rooms[-1]

    trees = trees_of(np.arange(5, dtype=np.float32))
    sha256 = store.put(codec.encode(trees)).sha256
    decoded = codec.decode(store.read_into(sha256, room), dict.fromkeys(trees, SPECS))
    moved = Transfer("cpu")(decoded)
    start = np.frombuffer(rooms[0], np.uint8).ctypes.data
    for tree in moved.values():
        assert all(start <= tensor.data_ptr() < start + len(rooms[0]) for tensor in tree.values())
    reduction = Reduction(SLOTS, NAMES, Weighting.EXAMPLES)
    reduction.offer("ant", upload(7, decoded))
    assert hashlib.sha256(rooms[0]).hexdigest() == sha256


def test_an_exact_reduction_folds_each_upload_when_it_comes() -> None:
    loaded: list[str] = []
    reduction = Reduction(SLOTS, NAMES, Weighting.EXAMPLES, exact=GRID)

    def watch(name: str) -> Callable[[], Trees]:
        def load() -> Trees:
            loaded.append(name)
            return trees_of(np.ones(5, np.float32))

        return load

    for name in ("cat", "ant", "eel"):
        reduction.offer(name, Upload(1, 1, watch(name)))
    assert loaded == ["cat", "ant", "eel"]
    assert reduction.close(("ant", "cat", "eel")).devices == ("ant", "cat", "eel")


def test_what_an_exact_sum_has_no_room_for_is_refused() -> None:
    reduction = Reduction(SLOTS, NAMES, Weighting.EXAMPLES, exact=GRID)
    with pytest.raises(RunError, match="is above"):
        reduction.offer("ant", upload(1, trees_of(np.full(5, 1e12, np.float32))))


def test_more_uploads_than_were_expected_are_stacked_too() -> None:
    reduction = Reduction(SLOTS, ("ant",), Weighting.UNIFORM)
    for number, name in enumerate(NAMES):
        reduction.offer(name, upload(1, trees_of(np.full(5, number, np.float32))))
    assert reduction.close(NAMES).stack["stack"]["a"][:, 0].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
