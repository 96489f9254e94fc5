"""What ``edgepfl estimate`` tells before anyone trains is what a run over a real broker then moves."""

from __future__ import annotations

import asyncio
from pathlib import Path

from _shared import digits

from coordinator.config import RunConfig
from coordinator.estimate import estimate
from coordinator.estimated import Estimate
from edgepfl import algorithms
from edgepfl.bundle import Bundle, pack, unpack
from exporters.build import build
from exporters.zoo import mlp
from simulators.stage import FLEET, Stage, Trained

DEVICES, ROUNDS = 4, 4
CODECS = ("", "int8", "topk:0.05+float16")


def bundle(folder: Path) -> tuple[Bundle, Path]:
    """FedAvg on a model of 600 kB, which crosses in chunks."""
    data = pack(build(algorithms.build("fedavg", {}), mlp(inputs=64, hidden=2000, classes=10, batch=8)))
    path = folder / "wide.bundle"
    path.write_bytes(data)
    return unpack(data, golden=False), path


def trained(folder: Path, path: Path) -> dict[str, Trained]:
    """A run with each codec on one stage."""

    async def run() -> dict[str, Trained]:
        found = {}
        with Stage(digits(DEVICES).devices, folder) as stage:
            async with stage.fleet() as fleet:
                for words in CODECS:
                    found[words] = await stage.train(fleet, path, settings(words), lambda _: None)
        return found

    return asyncio.run(run())


def settings(words: str) -> RunConfig:
    return RunConfig(rounds=ROUNDS, steps=5, goal=DEVICES, minimum=DEVICES, evaluate_every=0, lease=60.0, codec=words)


def assert_near(found: float, expected: float, what: str, most: float = 0.03) -> None:
    print(f"{what}: {found:.0f} bytes moved, {expected:.0f} estimated, {found / expected - 1:+.2%}")  # noqa: T201  what a failure is judged by
    assert -0.03 * expected < found - expected < most * expected, what


def test_a_run_moves_the_bytes_that_were_estimated(tmp_path: Path) -> None:
    opened, path = bundle(tmp_path)
    runs = trained(tmp_path, path)
    ins: dict[str, float] = {}
    for words, run in runs.items():
        told: Estimate = estimate(opened, settings(words), list(digits(DEVICES).devices), FLEET)
        rounds = [run.costs[number] for number in range(2, ROUNDS + 1)]
        ins[words] = min(cost.bytes_in for cost in rounds)
        outs = min(cost.bytes_out for cost in rounds)  # in others a device may have asked late, and for itself
        assert_near(ins[words], told.round.coordinator_in, f"{words or 'raw'}, into the coordinator")
        assert_near(outs, told.round.coordinator_out, f"{words or 'raw'}, out of it")
        assert run.status.metrics["accuracy.personal"] > 0.5, run.status.metrics
    whole = estimate(opened, settings(""), list(digits(DEVICES).devices), FLEET).run
    assert_near(runs[""].status.bytes_in, whole.coordinator_in, "the first run, into the coordinator", most=0.1)
    assert_near(runs[""].status.bytes_out, whole.coordinator_out, "the first run, out of it", most=1.0)
    assert ins["int8"] < 0.26 * ins[""]
    assert ins["topk:0.05+float16"] < 0.06 * ins[""]
