"""Real processes over a real broker: what a kill -9 in the middle of a run changes, namely nothing."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest
from _shared import digits, digits_bundle

from coordinator.config import RunConfig
from simulators.experiment import Kill, run_on
from simulators.stage import Stage, Trained

ROUNDS = 4
KILLS = {
    "nobody": (),
    "the coordinator": (Kill("coordinator", 2),),
    "an agent": (Kill("agent", 1), Kill("agent", 3)),
    "both": (Kill("coordinator", 1), Kill("agent", 1), Kill("agent", 3), Kill("coordinator", 3)),
}


def train(folder: Path, *, seed: int = 5, kills: tuple[Kill, ...] = ()) -> Trained:
    """A run of four agents, one of them a process of its own like the coordinator."""
    data, bundle = digits(), digits_bundle(folder)
    goal = len(data.devices)
    config = RunConfig(rounds=ROUNDS, goal=goal, minimum=goal, seed=seed, lease=20.0, evaluate_every=2)

    async def run() -> Trained:
        with Stage(data.devices, folder) as stage:
            async with stage.fleet() as fleet:
                return await run_on(stage, fleet, bundle, config, lambda _: None, kills)

    return asyncio.run(run())


def digests(trained: Trained) -> tuple[str, str]:
    """Of the server's state and of everything that the devices keep for themselves, at the end."""
    kept = hashlib.sha256()
    last = [result for result in trained.results if result.round == ROUNDS + 1]
    assert len(last) == 4
    for result in last:
        kept.update(f"{result.device} {result.kept}\n".encode())
    return trained.status.state_sha256, kept.hexdigest()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """What an undisturbed run gives."""
    return digests(train(tmp_path_factory.mktemp("undisturbed")))


@pytest.mark.parametrize("who", KILLS)
def test_the_same_seed_gives_the_same_bits_whoever_is_killed(
    tmp_path: Path, expected: tuple[str, str], who: str
) -> None:
    trained = train(tmp_path, kills=KILLS[who])
    assert digests(trained) == expected
    assert trained.status.round == ROUNDS + 1
    counted = [(result.round, result.device) for result in trained.results]
    assert sorted(counted) == sorted((n, device) for n in range(1, ROUNDS + 2) for device in digits().devices)


def test_another_seed_gives_other_bits(tmp_path: Path, expected: tuple[str, str]) -> None:
    model, personal = digests(train(tmp_path, seed=6))
    assert model != expected[0]
    assert personal != expected[1]
