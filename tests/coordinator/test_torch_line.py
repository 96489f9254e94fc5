"""The line of torch.distributed, and a rank's own device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from _aggregating import job_in
from torch import distributed

from coordinator import pieces
from coordinator.aggregator.crew import Alone, Crew
from coordinator.aggregator.job import Updated, read_manifest, read_outcome
from coordinator.aggregator.line import Torch, opened
from coordinator.aggregator.member import Member
from coordinator.storage.directory import DirectoryDepot
from edgepfl.errors import ConfigError

CUDA = pytest.param("cuda", marks=pytest.mark.cuda)
BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}


@pytest.fixture(params=["cpu", CUDA])
def device(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A device, and a process group of this process alone that carries its tensors."""
    distributed.init_process_group(
        BACKENDS[request.param], init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1
    )
    yield request.param
    distributed.destroy_process_group()


def test_what_crosses_comes_back(device: str) -> None:
    crew = Crew(Torch())
    assert (crew.rank, crew.ranks) == (0, 1)
    numbers = torch.arange(6, dtype=torch.float32, device=device).reshape(2, 3)
    found = crew.together(lambda: crew.across(numbers.T))
    assert found.device.type == device
    assert torch.equal(found, numbers.T)
    assert torch.equal(crew.across(torch.tensor(3, device=device)).cpu(), torch.tensor(3))
    assert crew.together(lambda: (crew.collect(b"abc"), crew.told(b"d"), crew.share(b""))) == ([b"abc"], b"d", b"")


@pytest.mark.parametrize("name", ["feddyn", "fedcr", "fpfc", "fedamp"])
def test_a_rank_on_its_device_makes_the_same(device: str, name: str, tmp_path: Path) -> None:
    depot = DirectoryDepot(tmp_path / "store")
    job = job_in(depot, tmp_path, name)
    digest = depot.keep(pieces.encode(job))
    states = []
    for crew, where in ((Crew(Torch()), device), (Crew(Alone()), "cpu")):
        outcome = read_outcome(depot.read(Member(crew, depot, where).do(digest, pieces.encode(job))), digest)
        assert isinstance(outcome, Updated)
        states.append(pieces.take(depot, read_manifest(depot.read(outcome.checkpoint.state)).shards[0]))
    for slot, tree in states[1].items():
        for key, tensor in tree.items():
            torch.testing.assert_close(states[0][slot][key], tensor, rtol=1e-5, atol=1e-6)


def test_a_process_that_nobody_launched_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with opened("cpu") as (line, own):
        assert (line.rank, line.ranks, own) == (0, 1, "cpu")


def test_more_ranks_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", str(torch.cuda.device_count()))
    with pytest.raises(ConfigError, match="there is no GPU"), opened("cuda"):
        pass


def test_a_rank_that_torchrun_did_not_start_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ConfigError, match=r"how to find the other ranks.*RANK.*Start it with torchrun"), opened("cpu"):
        raise AssertionError
