"""Which rank has which columns, and states stored as shards and divided otherwise."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import msgspec
import pytest
import torch
from _crews import whole_of
from _plans import MODEL, model, plan_of
from hypothesis import given
from hypothesis import strategies as st

from coordinator import pieces, updater
from coordinator.aggregator import shards as shards_of
from coordinator.aggregator.job import read_job, read_manifest, read_outcome
from coordinator.aggregator.shards import cut, flattened, joined, placed, places, span
from coordinator.pieces import APART, Manifest
from coordinator.storage.directory import DirectoryDepot
from edgepfl import algorithms
from edgepfl.algorithms import Algorithm
from edgepfl.errors import CodecError, PlanError, RunError, StoreError
from edgepfl.plan import Plan, Role
from edgepfl.tree import Tree, Trees

SHA = "0123456789abcdef" * 4


@given(st.integers(0, 50), st.integers(1, 12))
def test_every_element_is_one_ranks(size: int, ranks: int) -> None:
    found = [index for rank in range(ranks) for index in range(size)[span(size, rank, ranks)]]
    assert found == list(range(size))
    widths = {len(range(size)[span(size, rank, ranks)]) for rank in range(ranks)}
    assert max(widths) - min(widths) <= 1


def started(name: str) -> tuple[Plan, Algorithm, Trees]:
    plan = plan_of(name)
    algorithm = updater.algorithm_of(plan, {})
    return plan, algorithm, updater.first_state(algorithm, plan, model())


def divided(name: str, ranks: int) -> list[Trees]:
    plan, algorithm, state = started(name)
    found = places(algorithm, plan)
    return [
        {
            slot: Tree({key: placed(found, (slot, key), [tensor], rank, ranks) for key, tensor in tree.items()})
            for slot, tree in state.items()
        }
        for rank in range(ranks)
    ]


@pytest.mark.parametrize("name", algorithms.names())
def test_the_first_state_is_cut_where_the_model_is(name: str) -> None:
    plan, algorithm, state = started(name)
    found = places(algorithm, plan)
    first = {(slot, key) for slot, tree in state.items() for key in tree}
    assert first <= found.cut | found.whole
    assert not found.cut & found.whole
    assert found.cut & first
    assert all(key in MODEL for _, key in found.cut)
    for slot, key in found.cut & first:
        assert state[slot][key].shape == MODEL[key].shape


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("name", ["feddyn", "fedcr", "fedem", "fedsplit"])
def test_a_stored_state_is_divided_otherwise(name: str, ranks: int, tmp_path: Path) -> None:
    plan, algorithm, state = started(name)
    depot = DirectoryDepot(tmp_path)
    shards = [pieces.put(depot, part) for part in divided(name, 3)]
    again = [shards_of.divided(depot, shards, places(algorithm, plan), rank, ranks) for rank in range(ranks)]
    for part, expected in zip(again, divided(name, ranks), strict=True):
        for slot, tree in expected.items():
            assert all(torch.equal(part[slot][key], tensor) for key, tensor in tree.items())
    assert all(
        torch.equal(tensor, state[slot][key])
        for slot, tree in whole_of(again, state, MODEL).items()
        for key, tensor in tree.items()
    )


def test_what_nobody_knows_the_columns_of_stays_with_its_ranks() -> None:
    plan, algorithm, _ = started("fpfc")
    found = places(algorithm, plan)
    with pytest.raises(RunError, match="theta/ of 2 ranks cannot be divided among 4") as caught:
        placed(found, ("theta", ""), [torch.ones(1, 3), torch.ones(1, 3)], 0, 4)
    assert caught.value.remedy == "Start 2 processes"
    assert placed(found, ("examples", "ant"), [torch.tensor(5.0)] * 2, 3, 4) == 5.0


KINDS: Trees = {
    "a": Tree({"": torch.tensor(2.5), "empty": torch.empty(0), "ints": torch.arange(5), "flags": torch.tensor([True])}),
    "b": Tree({"double": torch.rand(3, 4, dtype=torch.float64), "row": torch.empty(0, 7)}),
    "big": Tree({"one": torch.rand(APART // 4), "other": torch.rand(2, APART // 4)}),
    "none": Tree({}),
}


def test_a_shard_comes_back_as_it_was(tmp_path: Path) -> None:
    depot = DirectoryDepot(tmp_path)
    shard = pieces.put(depot, KINDS)
    assert len(depot.digests()) == 3
    found = pieces.take(depot, shard)
    assert found.keys() == KINDS.keys()
    for slot, tree in KINDS.items():
        assert found[slot].keys() == tree.keys()
        for name, tensor in tree.items():
            assert found[slot][name].dtype == tensor.dtype
            assert torch.equal(found[slot][name], tensor)
            found[slot][name].zero_()  # it is its own
    again = pieces.take(depot, shard)
    assert all(torch.equal(again[slot][name], KINDS[slot][name]) for slot in KINDS for name in KINDS[slot])


def test_a_tensor_that_did_not_change_is_not_stored_again(tmp_path: Path) -> None:
    depot = DirectoryDepot(tmp_path)
    shard = pieces.put(depot, KINDS)
    depot.delete(shard["big"]["one"].blob)
    depot.delete(shard["big"]["other"].blob)
    after = {**KINDS, "big": KINDS["big"] | Tree({"other": KINDS["big"]["other"].clone()})}
    again = pieces.put(depot, after, (KINDS, shard))
    assert again == shard
    assert (depot.has(shard["big"]["one"].blob), depot.has(shard["big"]["other"].blob)) == (False, True)


def test_a_damaged_or_foreign_piece_is_refused(tmp_path: Path) -> None:
    depot = DirectoryDepot(tmp_path)
    shard = pieces.put(depot, {"a": Tree({"x": torch.rand(4)})})
    piece = shard["a"]["x"]
    with pytest.raises(CodecError):
        pieces.take(depot, {"a": {"x": msgspec.structs.replace(piece, shape=(5,))}})
    with pytest.raises(CodecError):
        pieces.take(depot, {"a": {"x": msgspec.structs.replace(piece, offset=1)}})
    (tmp_path / piece.blob).write_bytes(b"0" * 16)
    with pytest.raises(StoreError):
        pieces.take(depot, shard)
    with pytest.raises(RunError, match="bfloat16"):
        pieces.put(depot, {"a": Tree({"x": torch.ones(2, dtype=torch.bfloat16)})})


@pytest.mark.parametrize("ranks", [1, 2, 4, 9])
@pytest.mark.parametrize("name", ["feddyn", "fedcr"])
def test_downloads_are_joined(name: str, ranks: int) -> None:
    plan, algorithm, state = started(name)
    whole = updater.downloads(algorithm, state, "ant")
    slots = frozenset(slot for slot in whole if set(whole[slot]) <= set(MODEL))
    own = [
        {
            slot: tree.map(partial(cut, rank=rank, ranks=ranks)) if slot in slots else tree
            for slot, tree in whole.items()
        }
        for rank in range(ranks)
    ]
    columns = [flattened(trees, plan, slots, rank, ranks) for rank, trees in enumerate(own)]
    found = joined(own[0], columns, plan, slots)
    assert found.keys() == plan.by_role(Role.DOWN).keys()
    for slot, tree in found.items():
        for key, array in tree.items():
            assert (array == whole[slot][key]).all()
            assert array.shape == whole[slot][key].shape
    if ranks > 1:
        with pytest.raises(PlanError, match="columns"):
            flattened(whole, plan, slots, 0, ranks)


HOSTILE = [
    b"",
    b"{}",
    b"[]",
    b"\xff",
    b"[" * 100_000,
    b'{"type":"updated","job":"' + SHA.encode() + b'"}',
    b'{"type":"updated","job":"'
    + SHA.encode()
    + b'","checkpoint":{"round":1,"state":"x","specs":{}},"download":"..\\/"}',
    b'{"shards":[],"download":null}',
    b'{"shards":[{"a":{"x":{"shape":[-1],"dtype":"float32","blob":"' + SHA.encode() + b'"}}}],"download":null}',
    b'{"shards":[{"a":{"x":{"shape":[1],"dtype":"object","blob":"' + SHA.encode() + b'"}}}],"download":null}',
]


@pytest.mark.parametrize("data", HOSTILE)
def test_what_is_no_record_of_ours_is_refused(data: bytes) -> None:
    for read in (read_job, read_manifest):
        with pytest.raises(CodecError):
            read(data)
    with pytest.raises(CodecError):
        read_outcome(data, SHA)


def test_the_outcome_of_another_job_is_refused() -> None:
    data = b'{"type":"refused","job":"' + SHA.encode() + b'","why":"no"}'
    assert read_outcome(data, SHA).job == SHA
    with pytest.raises(CodecError, match="it is of job"):
        read_outcome(data, SHA[::-1])


def test_a_manifest_names_everything_that_its_state_needs(tmp_path: Path) -> None:
    depot = DirectoryDepot(tmp_path)
    manifest = Manifest((pieces.put(depot, KINDS), pieces.put(depot, {"a": Tree({"x": torch.ones(3)})})), SHA)
    assert read_manifest(pieces.encode(manifest)) == manifest
    assert set(manifest.parts) == depot.digests() | {SHA}
