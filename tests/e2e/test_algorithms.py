"""Algorithms that need more than a broadcast, over a real broker: a kill -9 of the coordinator changes no bit."""

from __future__ import annotations

import asyncio
import itertools
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

from coordinator import pieces
from coordinator.cohort import choose
from coordinator.config import RunConfig
from coordinator.status import RunStatus
from device_agent.data import Examples
from device_agent.models import newest
from edgepfl import algorithms
from edgepfl.bundle import Bundle, pack
from edgepfl.bus.blobs import BlobStore
from exporters import zoo
from exporters.build import build
from exporters.fitting import fitted
from simulators.fleet import AgentFleet
from simulators.stage import Stage, Trained

NAMES = ("ant", "bee", "cat")
SETTINGS: dict[str, dict[str, float | str]] = {
    "fpfc": {"finalize": "cluster_mean"},  # a download of each device's own, and a last touch
    "scaffold": {},  # a slot that the server rebuilds
    "l2sgd": {"p": 0.3},  # the server's coins
    "fedem": {"components": 2},  # a prediction of several models
}
ROUNDS = 3


def data() -> dict[str, Examples]:
    """Little of it, unequal."""
    source = np.random.default_rng(7)
    made = {}
    for place, name in enumerate(NAMES):
        rows = 20 + 5 * place
        x, y = source.standard_normal((rows, 6), dtype=np.float32), source.integers(0, 3, rows)
        made[name] = Examples(x[:-4], y[:-4], x[-4:], y[-4:])
    return made


def bundle_of(name: str) -> Bundle:
    algorithm = algorithms.build(name, SETTINGS[name])
    return build(algorithm, fitted(algorithm, zoo.mlp(inputs=6, hidden=4, classes=3, batch=8)))


def seed_without(absent: str) -> int:
    """A seed whose first round does without this device, and whose second does not."""
    cohorts = (
        (seed, [choose(NAMES, 2, seed, number) for number in range(1, ROUNDS + 2)]) for seed in itertools.count()
    )
    return next(seed for seed, (first, second, *_) in cohorts if absent not in first and absent in second)


CONFIG = RunConfig(
    rounds=ROUNDS, steps=3, goal=2, minimum=2, seed=seed_without("ant"), lease=30.0, evaluate_every=0, tune_steps=2
)


def greetings(stage: Stage) -> dict[str, int]:
    """How often the coordinator welcomed each device, over all its lives."""
    log = (stage.folder / "coordinator.log").read_text(encoding="utf-8")
    return {name: log.count(f"{name} is here") for name in NAMES}


async def here(stage: Stage) -> None:
    """Until the whole fleet is."""
    while not all(greetings(stage).values()):
        stage.coordinator.check()
        await asyncio.sleep(0.05)


@dataclass
class PowerCut:
    """Stops ant, which the second round waits for, until the coordinator was killed and the others are here again."""

    stage: Stage
    before: dict[str, int] | None = None

    def __post_init__(self) -> None:
        self._signal(signal.SIGSTOP)

    def look(self, status: RunStatus) -> None:
        if self.before is None:
            if status.round == 1 and "1 of 2 reported" in status.waiting:
                self.stage.coordinator.kill()
                self.before = greetings(self.stage)
                self.stage.coordinator.start()
        elif all(greetings(self.stage)[name] > self.before[name] for name in ("bee", "cat")):
            self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        assert self.stage.agent._process is not None
        self.stage.agent._process.send_signal(number)


def same(one: Trained, other: Trained) -> None:
    """To the bit, but for the time that it took."""
    assert one.status.state_sha256 == other.status.state_sha256
    told, again = (
        [(r.round, r.device, r.examples, r.steps, r.metrics, r.kept) for r in trained.results]
        for trained in (one, other)
    )
    assert told == again
    assert [len([r for r in one.results if r.round == number]) for number in range(1, ROUNDS + 2)] == [2] * 4


def check_steps(name: str, trained: Trained) -> None:
    steps = {result.round: result.steps for result in trained.results}
    if name == "l2sgd":
        assert len(set(steps.values()) - {0}) > 1  # the coins'
    else:
        assert list(steps.values()) == [CONFIG.steps] * ROUNDS + [0]


def final_state(private: Path, digest: str) -> dict[str, np.ndarray[Any, Any]]:
    """The tensors of a stored state, as ``SLOT/NAME``."""
    blobs = BlobStore(private)
    [shard] = pieces.decode(blobs.read(digest), pieces.Manifest, "state").shards
    trees = pieces.take(blobs, shard)
    return {f"{slot}/{name}": tensor.numpy() for slot, tree in trees.items() for name, tensor in tree.items()}


def check_state(folder: Path, name: str, trained: Trained) -> None:
    """What only a run with a roster, a last touch or several models ends with."""
    state = final_state(folder / "coordinator" / "private", trained.status.state_sha256)
    match name:
        case "scaffold":
            for key in [key for key in state if key.startswith("c_sum/")]:
                mean = state[key.replace("c_sum/", "c/")]
                np.testing.assert_allclose(len(NAMES) * mean, state[key], rtol=1e-5)
        case "fpfc":
            assert {key for key in state if key.startswith("mean/")} == {f"mean/{device}" for device in NAMES}
            assert state["final/"] == 1
        case "fedem":
            last = {result.device for result in trained.results if result.round == ROUNDS + 1}
            for device in last - {"ant"}:
                served = load(newest(folder / "fleet" / device / "store.db").data)
                assert served["pi"].sum() == pytest.approx(1, abs=1e-5)
                assert {key.partition(".")[0] for key in served} == {"0", "1", "pi"}


def test_the_coordinators_power_cut_changes_no_bit(tmp_path: Path) -> None:
    async def scenario() -> None:
        with Stage(data(), tmp_path) as stage:
            async with stage.fleet() as fleet:
                await asyncio.wait_for(here(stage), 60)
                for name in SETTINGS:
                    await both(stage, fleet, name)

    asyncio.run(scenario())


async def both(stage: Stage, fleet: AgentFleet, name: str) -> None:
    """A run without and one with a power cut."""
    bundle = stage.folder / f"{name}.bundle"
    bundle.write_bytes(pack(bundle_of(name)))
    plain = await stage.train(fleet, bundle, CONFIG, lambda _: None)
    cut = PowerCut(stage)
    trained = await stage.train(fleet, bundle, CONFIG, cut.look)
    assert cut.before is not None
    assert trained.status.here == NAMES
    same(plain, trained)
    check_steps(name, trained)
    check_state(stage.folder, name, trained)
