"""States on the disk: what is big lies apart, and is written once."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from _plans import model, plan_of

from coordinator import checkpoint, pieces, updater
from coordinator.checkpoint import Saved, Vault
from coordinator.journal import Checkpoint
from coordinator.pieces import Manifest
from coordinator.storage.directory import DirectoryDepot
from edgepfl.algorithms import Algorithm
from edgepfl.errors import CodecError, RunError, StoreError
from edgepfl.tree import Tree, Trees

BIG = pieces.APART // 4  # float32 numbers


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    return Vault.at(tmp_path)


@pytest.fixture
def algorithm() -> Algorithm:
    return updater.algorithm_of(plan_of("fedavg"), {})


def state_of(big: torch.Tensor, **more: torch.Tensor) -> Trees:
    """A state that FedAvg can send, with a slot of its own beside it."""
    return {"w": updater.torch_of({"w": model()})["w"], "rows": Tree({"a": big, **more}), "none": Tree({})}


def ramp(first: float) -> torch.Tensor:
    return torch.arange(first, first + BIG, dtype=torch.float32)


def files(vault: Vault) -> dict[str, int]:
    """Every private blob and when it was written."""
    return {path.name: path.stat().st_mtime_ns for path in vault.private.local.directory.iterdir()}


def same(one: Trees, other: Trees) -> bool:
    return one.keys() == other.keys() and all(
        tree.keys() == other[slot].keys()
        and all(torch.equal(tensor, other[slot][name]) for name, tensor in tree.items())
        and [tensor.dtype for tensor in tree.values()] == [tensor.dtype for tensor in other[slot].values()]
        for slot, tree in one.items()
    )


def piece(saved: Saved, name: str) -> str:
    """The digest of the blob that a tensor of the slot ``rows`` is in."""
    return saved.shard["rows"][name].blob


def test_a_stored_state_comes_back_as_it_was(vault: Vault, algorithm: Algorithm) -> None:
    more = {
        "c": torch.tensor([True, False]),
        "d": torch.tensor(3),
        "e": torch.ones(2, 3, dtype=torch.float64),
        "f": ramp(2).double(),
        "g": torch.zeros(0, 3),
    }
    state = state_of(ramp(1), **more)
    saved = vault.save(algorithm, 3, state)
    assert saved.checkpoint.blobs == set(files(vault))
    assert len({piece(saved, name) for name in "acdefg"}) == 3  # two big ones, and the rest together
    loaded = vault.load(algorithm, saved.checkpoint)
    assert same(loaded.state, state)
    assert loaded == Saved(saved.checkpoint, loaded.state, saved.download, saved.shard)
    loaded.state["rows"]["a"].add_(1)  # an engine may change it in place


def test_equal_states_have_equal_digests(vault: Vault, algorithm: Algorithm) -> None:
    first, again, other = (vault.save(algorithm, 1, state_of(ramp(start))) for start in (1, 1, 2))
    assert first.checkpoint == again.checkpoint
    assert first.checkpoint.state != other.checkpoint.state
    small = [vault.save(algorithm, 1, state_of(torch.full((2,), value))).checkpoint.state for value in (1.0, 1.0, 2.0)]
    assert small[0] == small[1] != small[2]


def test_an_unchanged_tensor_is_not_written_again(vault: Vault, algorithm: Algorithm) -> None:
    kept, changing = ramp(1), ramp(5)
    first = vault.save(algorithm, 1, state_of(kept, b=changing))
    vault.private.local.delete(piece(first, "a"))  # whoever writes it again is found out
    changing.add_(1)
    second = vault.save(algorithm, 2, state_of(kept, b=changing.view_as(changing)), first)
    assert piece(second, "a") == piece(first, "a") not in files(vault)
    assert piece(second, "b") != piece(first, "b")
    third = vault.save(algorithm, 2, state_of(kept.clone(), b=changing), None)
    assert third.checkpoint == second.checkpoint
    assert piece(third, "a") in files(vault)


def test_a_part_that_is_lost_or_damaged_is_refused(vault: Vault, algorithm: Algorithm) -> None:
    saved = vault.save(algorithm, 1, state_of(ramp(1)))
    path = vault.private.local.path(piece(saved, "a"))
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(StoreError, match="damaged"):
        vault.load(algorithm, saved.checkpoint)
    with pytest.raises(StoreError, match="No such file"):
        vault.load(algorithm, saved.checkpoint)


def test_a_state_that_aggregators_hold_is_refused(vault: Vault, algorithm: Algorithm) -> None:
    saved = vault.save(algorithm, 1, state_of(ramp(1)))
    two = Manifest((saved.shard, saved.shard))
    checkpoint = Checkpoint(1, vault.private.keep(pieces.encode(two)), two.parts)
    with pytest.raises(CodecError, match="in 2 shards"):
        vault.load(algorithm, checkpoint)
    with pytest.raises(CodecError, match="in 1 shards"):
        vault.load(algorithm, msgspec.structs.replace(saved.checkpoint, whole=False))


def test_what_is_lost_here_comes_back_from_the_shared_store(tmp_path: Path, algorithm: Algorithm) -> None:
    shared = DirectoryDepot(tmp_path / "shared", grace=0)
    vault = Vault.at(tmp_path, shared)
    saved = vault.save(algorithm, 1, state_of(ramp(1)))
    vault.private.local.delete(piece(saved, "a"))
    assert same(vault.load(algorithm, saved.checkpoint).state, saved.state)
    needed = saved.checkpoint.blobs
    vault.keep_only(needed, set())
    assert set(files(vault)) == needed < shared.digests()  # its download is there, too
    vault.collect(needed)
    assert shared.digests() == needed


def test_a_download_that_no_blob_can_hold_is_no_fault_of_the_disk(
    vault: Vault, algorithm: Algorithm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "BLOB_LIMIT", 100)
    with pytest.raises(RunError, match="a download of"):
        vault.save(algorithm, 1, state_of(ramp(1)))
    assert list(vault.offered.local.directory.iterdir()) == []


def test_a_piece_of_no_shape_that_a_tensor_can_have_is_refused(vault: Vault) -> None:
    blob = vault.private.keep(bytes(16))
    read = pieces.Reader(vault.private)
    assert read.tensor(pieces.Piece((0, 5), "float64", blob)).shape == (0, 5)
    for shape in ((0, 1 << 40, 1 << 40), (1 << 40, 1 << 40), (3,)):
        with pytest.raises(CodecError):
            read.tensor(pieces.Piece(shape, "float64", blob))
